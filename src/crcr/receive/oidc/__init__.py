"""From a bearer token to a proved identity."""
