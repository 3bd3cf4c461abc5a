"""PostgreSQL: connections, batching of statements, LISTEN and NOTIFY."""
