"""Latency of pages over a large database, and of live updates in a browser."""
