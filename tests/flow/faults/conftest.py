"""Every fault found by attacking the relay is tried on both stores: a hole that one of them closes may be open in the other."""

import pytest


@pytest.fixture(autouse=True, params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store of the test's stage; `stage.database_url` reads it."""
    monkeypatch.setenv("CRCR_TEST_STORE", request.param)
    return str(request.param)
