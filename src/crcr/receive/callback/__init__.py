"""`POST /github/callback`: a downstream's report."""
