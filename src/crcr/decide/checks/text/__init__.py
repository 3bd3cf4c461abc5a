"""The titles, summaries and annotations of check runs."""
