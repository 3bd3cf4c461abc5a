"""Fixture `store`: a store of the relay that tests fill with rows."""

from support.data.store_rows import store

__all__ = ["store"]
