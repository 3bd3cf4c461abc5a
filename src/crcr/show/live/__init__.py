"""Server-sent events and what feeds them."""
