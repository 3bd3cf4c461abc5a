"""The App's key and installation tokens."""
