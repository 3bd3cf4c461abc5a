"""The REST API as an ASGI app."""
