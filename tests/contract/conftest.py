"""Fixtures of the contract suite. The fast tests use SQLite only; tests of other stores run in `make test`."""

from pathlib import Path

import pytest

from support.stores.databases import database, open_database, sqlite_in_threads, stores

__all__ = ["database", "open_database", "sqlite_in_threads", "stores"]

_HERE = Path(__file__).parent
_OF_OTHER_STORES = ("test_change_feed", "test_history_", "test_redis_", "test_same_answers")
"""Modules whose every test needs another store than SQLite; the folders of other stores are slow as a whole."""
_OTHER_STORES = frozenset({"memory", "postgresql", "redis", "clickhouse", "chdb"})
_POSTGRESQL_SEEDS = 8
"""Seeds of test_sums that run on PostgreSQL; SQLite runs all of them."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(_HERE)]
    deselected = {item for item in ours if _is_deselected(item)}
    config.hook.pytest_deselected(items=list(deselected))
    items[:] = [item for item in items if item not in deselected]
    for item in ours:
        if _needs_another_store(item):
            item.add_marker(pytest.mark.slow)


def _needs_another_store(item: pytest.Item) -> bool:
    parameters = [value for value in _parameters(item).values() if isinstance(value, str)]
    named = "postgresql" in item.name or item.path.stem.startswith(_OF_OTHER_STORES)
    return named or not _OTHER_STORES.isdisjoint(parameters)


def _is_deselected(item: pytest.Item) -> bool:
    parameters, module = _parameters(item), item.path.stem
    kind, seed = parameters.get("open_database"), parameters.get("seed")
    beyond_limit = isinstance(seed, int) and seed >= _POSTGRESQL_SEEDS
    return kind == "postgresql" and module == "test_sums" and beyond_limit


def _parameters(item: pytest.Item) -> dict[str, object]:
    return (
        dict(item.callspec.params) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
