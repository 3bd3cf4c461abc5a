"""Migrations only add, so that a process of the previous release keeps working on the new schema."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from crcr.record.migrations import run

VERSIONS = sorted((Path(run.__file__).parent / "versions").glob("0*.py"))
ADDS = {"add_column", "create_index", "create_table"}
HARMLESS = {"bulk_insert", "drop_index", "execute", "f", "get_bind", "get_context"}
"""Operations that change no columns. An index may be dropped before its successor exists: slower for a moment, no failure."""


def calls(version: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(version.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="op"), attr=name)):
                yield name, node


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.stem)
def test_a_migration_drops_no_table_or_column(version: Path) -> None:
    assert {name for name, _ in calls(version)} <= ADDS | HARMLESS


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.stem)
def test_a_process_of_the_previous_release_can_still_insert_rows(version: Path) -> None:
    """An old process does not set a new column, so the column must be nullable or have a server default."""
    columns = [ast.unparse(call) for name, call in calls(version) if name == "add_column"]
    assert [
        column for column in columns if "nullable=True" not in column and "server_default" not in column
    ] == []
