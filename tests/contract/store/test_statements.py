"""Every statement of the stores is valid on every supported database."""

import importlib
import pkgutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import asyncpg

import crcr.record
from crcr.record.store.statement import Statement, SumUpsert
from support.running_relay import place_empty_database
from support.services.postgres import new_database


def statements() -> Iterator[tuple[str, Statement]]:
    for module in pkgutil.walk_packages(crcr.record.__path__, "crcr.record."):
        if module.name.startswith("crcr.record.migrations"):
            continue
        module_members = importlib.import_module(module.name)
        for name, value in sorted(vars(module_members).items()):
            yield from (
                (f"{module.name}.{path}", statement) for path, statement in statements_in(name, value)
            )


def statements_in(name: str, value: object) -> Iterator[tuple[str, Statement]]:
    if isinstance(value, Statement):
        yield name, value
    elif isinstance(value, SumUpsert):
        yield name, value.statement
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from statements_in(f"{name}[{key}]", item)
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from statements_in(f"{name}[{index}]", item)


def test_the_search_for_statements_finds_those_of_all_stores() -> None:
    assert len({statement for _, statement in statements()}) > 250


async def test_postgresql_can_prepare_every_statement() -> None:
    connection = await asyncpg.connect(new_database())
    refused = []
    for name, statement in statements():
        try:
            await connection.prepare(statement.for_dialect("postgresql").sql)
        except asyncpg.PostgresError as fault:
            refused.append(f"{name}: {fault}")
    await connection.close()
    assert refused == []


def test_sqlite_can_explain_every_statement(tmp_path: Path) -> None:
    place_empty_database(tmp_path / "crcr.db")
    refused = []
    with closing(sqlite3.connect(tmp_path / "crcr.db")) as connection:
        for name, statement in statements():
            compiled = statement.for_dialect("sqlite")
            try:
                connection.execute(f"EXPLAIN {compiled.sql}", _NullForAnyName())
            except sqlite3.Error as fault:
                refused.append(f"{name}: {fault}")
    assert refused == []


class _NullForAnyName(dict[str, None]):
    def __missing__(self, _: str) -> None:
        return None
