"""Fixtures of the contract suite. The fast part asks SQLite alone; the other stores are left to `make test`."""

from pathlib import Path

import pytest

from contract.databases import database, open_database, stores

__all__ = ["database", "open_database", "stores"]

_HERE = Path(__file__).parent
_OF_OTHER_STORES = (
    *("test_change_feed", "test_history_", "test_lanes", "test_moving", "test_postgres_", "test_races"),
    *("test_redis_", "test_same_answers"),
)
_OTHER_STORES = frozenset({"memory", "postgresql", "redis", "clickhouse", "chdb"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == _HERE and _asks_another_store(item):
            item.add_marker(pytest.mark.slow)


def _asks_another_store(item: pytest.Item) -> bool:
    given = (
        item.callspec.params.values()
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else ()
    )
    return item.path.stem.startswith(_OF_OTHER_STORES) or not _OTHER_STORES.isdisjoint(
        each for each in given if isinstance(each, str)
    )
