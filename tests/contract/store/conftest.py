"""The store is tested as it runs in a relay's process."""

import pytest


@pytest.fixture
def sqlite_in_threads() -> bool:
    return True
