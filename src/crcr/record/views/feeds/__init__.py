"""Queries of the feeds."""
