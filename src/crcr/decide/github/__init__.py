"""Requests to GitHub and its answers as values, and the rules on what to ask."""
