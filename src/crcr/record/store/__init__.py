"""The database behind `write`, `read` and `glance`: units of work with group commit."""
