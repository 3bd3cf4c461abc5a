"""Prometheus metrics and the probes."""
