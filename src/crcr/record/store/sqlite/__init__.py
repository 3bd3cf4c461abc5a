"""SQLite: one writing connection, and backups while in use."""
