"""Queries of culprits: the red jobs of the base branch, and the evidence about the changes that may have broken them."""
