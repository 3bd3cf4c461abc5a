"""The front page in a real browser."""
