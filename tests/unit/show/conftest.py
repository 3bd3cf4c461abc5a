"""Fixture `store`: a store of the relay with rows in it."""

from support.data.store_rows import store

__all__ = ["store"]
