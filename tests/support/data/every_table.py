"""A SQLite database with rows in every table, generated from the schema, and readers of SQLite and PostgreSQL tables."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Column, Double, Integer, LargeBinary, SmallInteger, Table

from crcr.record.schema.all_tables import metadata
from support.running_relay import place_empty_database
from support.services.postgres import run_on

HOSTILE = (
    "'; DROP TABLE jobs; --",
    "tab\there, line\nthere, back\\slash, \\N and \\.",
    "\u202eright to left\u202c and \U0001f525\U00100000",
    "\x01\x1b[2J\x7f\ufffe\uffff",
    "",
    '{"a": "\\u0000"}',
)
_WHOLE = {SmallInteger: 1 << 15, BigInteger: 1 << 63, Integer: 1 << 31}
_NUMBERS = (0.1, -0.0, 1.7976931348623157e308, 5e-324, float("inf"), 3.0)


def _values(column: Column[Any]) -> Iterator[Any]:
    for kind, bound in _WHOLE.items():
        if isinstance(column.type, kind):
            return cycle((0, 1, -1, bound - 1, -bound, 7))
    if isinstance(column.type, Double):
        return cycle(_NUMBERS)
    return (
        cycle((bytes(range(256)), b"", b"\\x00")) if isinstance(column.type, LargeBinary) else cycle(HOSTILE)
    )


def _rows(table: Table, count: int) -> list[dict[str, Any]]:
    values = {column.name: _values(column) for column in table.columns}
    rows = [{name: next(each) for name, each in values.items()} for _ in range(count)]
    for number, row in enumerate(rows):
        for column in table.columns:
            if column.nullable and number % 3 == 2:
                row[column.name] = None
        for column in table.primary_key:
            row[column.name] = (
                number + 1 if isinstance(column.type, Integer) else f"{number} {row[column.name]}"
            )
    if table.name in {"builds", "failures"}:  # they have a second unique key
        for number, row in enumerate(rows):
            row["run_id"] = str(number)
    if table.name == "checks":
        for number, row in enumerate(rows):
            row["round"] = number
    return rows


def filled_database(path: Path, rows: int = 7) -> Path:
    """A database of this release with so many rows in each of its tables."""
    place_empty_database(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in metadata.sorted_tables:
            names = [column.name for column in table.columns]
            sql = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"  # noqa: S608
            connection.executemany(sql, _rows(table, rows))
    return path


def execute_sql(path: Path, sql: str, *params: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql, params)


def sqlite_rows(path: Path, table: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return _sorted([dict(row) for row in connection.execute(f"SELECT * FROM {table}")])  # noqa: S608


def postgresql_rows(url: str, table: str) -> list[dict[str, Any]]:
    return _sorted(run_on(url, f"SELECT * FROM {table}"))  # noqa: S608


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(({name: row[name] for name in sorted(row)} for row in rows), key=repr)


def row_counts(url: str) -> dict[str, int]:
    """The number of rows of each table; empty for a database without the relay's tables."""
    there = run_on(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    ours = [row["tablename"] for row in there if row["tablename"] in metadata.tables]
    if not ours:
        return {}
    each = (f"SELECT '{name}' AS name, count(*) AS number FROM {name}" for name in ours)  # noqa: S608
    return {row["name"]: row["number"] for row in run_on(url, " UNION ALL ".join(each)) if row["number"]}
