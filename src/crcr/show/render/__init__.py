"""Parts of pages: charts, matrix, statuses, templates."""
