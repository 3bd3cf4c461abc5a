"""Simulated CI of downstream repositories: runs and jobs that a dispatch starts, and their reports."""
