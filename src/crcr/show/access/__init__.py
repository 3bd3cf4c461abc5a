"""Readers, tokens, sessions, and the routes of administrators."""
