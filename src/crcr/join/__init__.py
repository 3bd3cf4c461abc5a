"""How a downstream joins: the files, the allowlist entry and the registration that it needs, made from its wishes."""
