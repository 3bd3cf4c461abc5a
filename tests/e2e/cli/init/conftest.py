"""Fixtures for tests of `crcr init`: a downstream's checkout, and a relay's address."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.downstream.init_command import ONBOARDING_FACTS, checkout, serve_facts


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout of a downstream."""
    return checkout(tmp_path / "backend")


@pytest.fixture
def relay_url() -> Iterator[str]:
    """The URL of a server that serves `/api/v1/onboarding` like a relay."""
    with serve_facts(ONBOARDING_FACTS) as url:
        yield url
