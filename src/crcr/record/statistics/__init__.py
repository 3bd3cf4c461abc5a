"""Sums by hour and by job and day, kept with every fact."""
