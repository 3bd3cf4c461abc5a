"""Fixtures of the contract suite."""

from contract.databases import database, open_database, stores

__all__ = ["database", "open_database", "stores"]
