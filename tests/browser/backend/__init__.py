"""A backend's page in a real browser."""
