"""Queries behind verdicts and groups of failures on pages and in the API."""
