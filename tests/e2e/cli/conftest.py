"""Fixtures for tests of the commands: an operator's folder with a database, and a downstream's checkout with a relay."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.data.operator_database import OperatorShell, database_with_history
from support.downstream.init_command import ONBOARDING_FACTS, checkout, serve_facts


@pytest.fixture
def shell(tmp_path: Path) -> OperatorShell:
    """An operator's shell over a database with a history."""
    return database_with_history(tmp_path)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout of a downstream."""
    return checkout(tmp_path / "backend")


@pytest.fixture
def relay_url() -> Iterator[str]:
    """The address of a server that answers `/api/v1/onboarding` like a relay."""
    with serve_facts(ONBOARDING_FACTS) as url:
        yield url
