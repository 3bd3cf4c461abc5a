"""Servers that tests start: PostgreSQL, Redis, ClickHouse."""
