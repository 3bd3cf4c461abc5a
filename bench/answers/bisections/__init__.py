"""Bisections on histories with known culprits: a downstream that answers runs by the truth, and the score of the outcomes."""
