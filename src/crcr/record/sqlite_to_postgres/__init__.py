"""`crcr migrate --from … --to …`: copies an installation from SQLite to PostgreSQL."""
