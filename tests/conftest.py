"""Which tests `make check` leaves to `make test`, how garbage is collected, and how property tests run.

They are untimed, and `make check` runs a quarter of their examples (`--hypothesis-profile=fewer`).

Timings belong to `bench/`.
"""

import gc
from pathlib import Path

import pytest
from hypothesis import settings

from support.clock import ManualClock

settings.register_profile("untimed", deadline=None)
settings.register_profile("fewer", deadline=None, max_examples=25)
settings.load_profile("untimed")

_TESTS = Path(__file__).parent
_SLOW = (
    "browser",
    "chaos",
    "e2e",
    "contract/clickhouse",
    "contract/postgres",
    "contract/records/test_retention.py",
    "contract/records/test_retention_steps.py",
    "contract/records/test_sums.py",
    "sim/runner/test_sim_traffic.py",
    "unit/decide/checks/test_gate_properties.py",
    "unit/join/test_workflows_hostile.py",
    "unit/join/test_workflows_linted.py",
    "unit/receive/test_linear_parsers.py",
)
"""Folders and modules with real processes, other stores than SQLite, or many rounds."""


def pytest_collection() -> None:
    """No test is garbage while tests are collected."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What all tests share is not searched for garbage again and again, and the rest is searched less often."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(_TESTS)
        if any(path.is_relative_to(slow) for slow in _SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
