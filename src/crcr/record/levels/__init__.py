"""Levels by evidence: what is measured of a backend, its recorded standing, evaluations, changes and overrides."""
