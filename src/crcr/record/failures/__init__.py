"""Failures with their fingerprints and verdicts, and the order of the base's commits that verdicts rest on."""
