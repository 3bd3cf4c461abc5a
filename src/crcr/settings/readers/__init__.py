"""Readers of single settings: each returns a checked value or raises `InvalidValue`."""
