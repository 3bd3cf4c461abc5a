"""`POST /github/webhook`: GitHub's events, verified and parsed."""
