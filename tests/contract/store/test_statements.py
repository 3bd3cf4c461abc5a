"""Every statement of the stores is understood by every database, before anybody needs it."""

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
        here = importlib.import_module(module.name)
        for name, value in sorted(vars(here).items()):
            yield from ((f"{module.name}.{where}", found) for where, found in _within(name, value))


def _within(name: str, value: object) -> Iterator[tuple[str, Statement]]:
    if isinstance(value, Statement):
        yield name, value
    elif isinstance(value, SumUpsert):
        yield name, value.statement
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _within(f"{name}[{key}]", each)
    elif isinstance(value, tuple | list):
        for place, each in enumerate(value):
            yield from _within(f"{name}[{place}]", each)


def test_there_are_statements_to_look_at() -> None:
    assert len({found for _, found in statements()}) > 250


async def test_postgresql_understands_every_statement() -> None:
    connection = await asyncpg.connect(new_database())
    misunderstood = []
    for name, statement in statements():
        try:
            await connection.prepare(statement.for_dialect("postgresql").sql)
        except asyncpg.PostgresError as fault:
            misunderstood.append(f"{name}: {fault}")
    await connection.close()
    assert misunderstood == []


def test_sqlite_understands_every_statement(tmp_path: Path) -> None:
    place_empty_database(tmp_path / "crcr.db")
    misunderstood = []
    with closing(sqlite3.connect(tmp_path / "crcr.db")) as connection:
        for name, statement in statements():
            compiled = statement.for_dialect("sqlite")
            try:
                connection.execute(f"EXPLAIN {compiled.sql}", _Anything())
            except sqlite3.Error as fault:
                misunderstood.append(f"{name}: {fault}")
    assert misunderstood == []


class _Anything(dict[str, None]):
    def __missing__(self, _: str) -> None:
        return None
