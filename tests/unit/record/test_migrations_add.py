"""Migrations only add, so that a process of the previous release keeps working on the new schema."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from crcr.record.migrations import run

VERSIONS = sorted((Path(run.__file__).parent / "versions").glob("0*.py"))
ADDS = {"add_column", "create_index", "create_table"}
ELSE = {"bulk_insert", "drop_index", "execute", "f", "get_bind", "get_context"}
"""What changes no table's shape. An index is gone before its successor is there: slower for a moment, and no failure."""


def calls(version: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(version.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="op"), attr=name)):
                yield name, node


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.stem)
def test_a_migration_takes_nothing_away(version: Path) -> None:
    assert {name for name, _ in calls(version)} <= ADDS | ELSE


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.stem)
def test_an_old_process_can_still_write_rows(version: Path) -> None:
    """It knows nothing of a new column, so that one may be empty or has a default in the database."""
    columns = [ast.unparse(call) for name, call in calls(version) if name == "add_column"]
    assert [
        column for column in columns if "nullable=True" not in column and "server_default" not in column
    ] == []
