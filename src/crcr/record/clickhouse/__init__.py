"""ClickHouse beside the main store: feeding it, and reading history from it."""
