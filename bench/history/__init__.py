"""A database with millions of past jobs, and queries over it on SQLite and ClickHouse."""
