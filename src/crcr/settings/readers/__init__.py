"""Readers of single settings: each returns a checked value or says what is wrong."""
