"""Fixtures of the contract suite. The fast part asks SQLite alone; the other stores are left to `make test`."""

from pathlib import Path

import pytest

from support.stores.databases import database, open_database, sqlite_in_threads, stores

__all__ = ["database", "open_database", "sqlite_in_threads", "stores"]

_HERE = Path(__file__).parent
_OF_OTHER_STORES = ("test_change_feed", "test_history_", "test_redis_", "test_same_answers")
"""Modules that need more than SQLite in every test; the folders of other stores are slow as a whole."""
_OTHER_STORES = frozenset({"memory", "postgresql", "redis", "clickhouse", "chdb"})
_FEWER_WALKS = 8
"""Of the long walks of test_sums; SQLite goes all of them."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(_HERE)]
    spared = {item for item in ours if _is_spared(item)}
    config.hook.pytest_deselected(items=list(spared))
    items[:] = [item for item in items if item not in spared]
    for item in ours:
        if _asks_another_store(item):
            item.add_marker(pytest.mark.slow)


def _asks_another_store(item: pytest.Item) -> bool:
    given = [each for each in _parameters(item).values() if isinstance(each, str)]
    named = "postgresql" in item.name or item.path.stem.startswith(_OF_OTHER_STORES)
    return named or not _OTHER_STORES.isdisjoint(given)


def _is_spared(item: pytest.Item) -> bool:
    given, module = _parameters(item), item.path.stem
    kind, seed = given.get("open_database"), given.get("seed")
    later = isinstance(seed, int) and seed >= _FEWER_WALKS
    return kind == "postgresql" and module == "test_sums" and later


def _parameters(item: pytest.Item) -> dict[str, object]:
    return (
        dict(item.callspec.params) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
