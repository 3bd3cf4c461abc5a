"""Request bodies within limits, JSON, the client's address, and the response."""
