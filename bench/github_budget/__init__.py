"""Calls to GitHub, and delays of gates and effects, within GitHub's rate limits."""
