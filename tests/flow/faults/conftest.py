"""Tests of faults found by attacking the relay run on both stores: a hole closed in one of them may be open in the other."""

import pytest


@pytest.fixture(autouse=True, params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store of the test; `stage.database_url` reads it."""
    monkeypatch.setenv("CRCR_TEST_STORE", request.param)
    return str(request.param)
