"""Atom feeds of backends and pull requests."""
