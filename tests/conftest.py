"""Which tests `make check` leaves to `make test`, how garbage is collected, and how property tests run.

They are untimed, and `make check` runs a quarter of their examples (`--hypothesis-profile=fewer`).

Timings belong to `bench/`.
"""

import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from support.clock import ManualClock
from support.services.cleanup import clean_up, clean_up_after_test, set_up_shared_fixture

settings.register_profile("untimed", deadline=None)
settings.register_profile("fewer", deadline=None, max_examples=25)
settings.load_profile("untimed")

_TESTS = Path(__file__).parent
_SLOW = (
    "browser",
    "chaos",
    "e2e",
    "contract",
    "sim/runner/test_sim_traffic.py",
    "unit/decide/checks/test_gate_properties.py",
    "unit/docs/test_site_build.py",
    "unit/join/test_workflows_hostile.py",
    "unit/join/test_workflows_linted.py",
    "unit/receive/test_linear_parsers.py",
    "unit/show/test_released_values.py",
)
"""Folders and modules with real processes, other stores than SQLite, or many rounds."""
_LONGEST = (
    "chaos",
    "deploy",
    "e2e",
    "browser/test_accessibility.py",
    "flow/relay/test_demo_life.py",
)
"""They begin first, so that no worker is left alone with them at the end."""


def pytest_collection() -> None:
    """No test is garbage while tests are collected."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What all tests share is not searched for garbage again and again, and the rest is searched less often."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


def pytest_sessionfinish() -> None:
    clean_up()
    gc.freeze()  # pytest searches for garbage five times before it ends


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: "pytest.FixtureDef[Any]") -> Generator[None, Any, Any]:
    if fixturedef.scope == "function":
        return (yield)
    with set_up_shared_fixture():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        clean_up_after_test()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(_TESTS)
        if any(path.is_relative_to(slow) for slow in _SLOW):
            item.add_marker(pytest.mark.slow)
    items[:] = _spread_longest(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _spread_longest(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Each worker begins with its part of the list: put some of the longest modules at the beginning of each part."""
    modules: dict[Path, list[pytest.Item]] = {}
    others: list[pytest.Item] = []
    for item in items:
        path = item.path.relative_to(_TESTS)
        is_long = any(path.is_relative_to(long) for long in _LONGEST)
        (modules.setdefault(path, []) if is_long else others).append(item)
    size = -(-len(others) // workers)
    spread: list[pytest.Item] = []
    for worker in range(workers):
        for module in list(modules.values())[worker::workers]:
            spread += module
        spread += others[worker * size : (worker + 1) * size]
    return spread


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
