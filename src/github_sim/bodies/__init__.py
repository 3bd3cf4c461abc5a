"""GitHub's JSON bodies, in full."""
