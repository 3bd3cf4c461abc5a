"""Levels: the page, its data as JSON and CSV."""
