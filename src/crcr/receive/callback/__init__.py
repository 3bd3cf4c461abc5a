"""`POST /github/callback`: a downstream reports on its own job, with an OIDC token."""
