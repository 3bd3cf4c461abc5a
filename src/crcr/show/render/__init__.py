"""Markup from values, without routes or queries: charts, matrix, statuses, notices, templates. The routes are in `show.pages`."""
