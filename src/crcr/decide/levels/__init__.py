"""Levels that move on evidence: criteria, their evaluation, the standing of a backend, and proposals for the allowlist."""
