"""The store itself is tested as it is in a relay's process."""

import pytest


@pytest.fixture
def sqlite_in_threads() -> bool:
    return True
