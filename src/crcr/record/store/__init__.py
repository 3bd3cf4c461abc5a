"""The database behind `write`, `read` and `quick_read`: units of work with group commit."""
