"""Fixture `shell`: an operator's commands on a database with a history."""

from pathlib import Path

import pytest

from support.data.operator_database import OperatorShell, database_with_history


@pytest.fixture
def shell(tmp_path: Path) -> OperatorShell:
    return database_with_history(tmp_path)
