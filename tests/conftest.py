"""Which tests `make check` leaves to `make test`, and how property tests run: untimed, because timings belong to `bench/`."""

from pathlib import Path

import pytest
from hypothesis import settings

from support.clock import ManualClock

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

_TESTS = Path(__file__).parent
_SLOW = (
    "chaos",
    "e2e",
    "contract/clickhouse",
    "contract/postgres",
    "contract/records/test_retention.py",
    "contract/records/test_retention_steps.py",
    "contract/records/test_sums.py",
    "sim/runner/test_sim_traffic.py",
    "unit/decide/checks/test_gate_properties.py",
    "unit/join/test_workflows_linted.py",
    "unit/receive/test_linear_parsers.py",
)
"""Folders and modules with real processes, other stores than SQLite, or many rounds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(_TESTS)
        if any(path.is_relative_to(slow) for slow in _SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
