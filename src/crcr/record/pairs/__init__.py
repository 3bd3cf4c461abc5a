"""Pairs: upstream pull requests with the pull requests of backends that they depend on."""
