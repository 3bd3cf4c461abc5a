"""The connection to Redis and what is kept there."""
