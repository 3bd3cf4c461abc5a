"""Operators' acts, over HTTP and by command line."""
