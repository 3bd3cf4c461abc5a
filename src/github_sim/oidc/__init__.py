"""OIDC issuers of GitHub Actions and of other CIs."""
