"""Sending requests to GitHub: connections, rate limits, ETags, errors."""
