"""Bisections: their range, their runs and their end."""
