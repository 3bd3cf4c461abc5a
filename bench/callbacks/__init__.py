"""Callbacks and dispatches per second: one relay, several replicas, and a bare app to compare with."""
