"""How a downstream joins: the files, the allowlist entry and the registration that it needs, generated from a join request."""
