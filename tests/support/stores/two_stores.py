"""The same rows in SQLite and PostgreSQL, and a comparison of values that includes their types."""

import asyncio
import random
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import Double

from crcr.record.schema.all_tables import metadata
from support.services.postgres import new_database


def copy_to_postgresql(path: Path, seed: int = 1) -> str:
    """Copy a SQLite file to a new PostgreSQL database, rows shuffled so that only an ORDER BY gives an order; return its URL."""
    url = new_database()
    _in_eighths(path)
    asyncio.run(_copied(path, url, random.Random(seed)))
    return url


def _in_eighths(path: Path) -> None:
    """Round all seconds to eighths, whose sum does not depend on the order of addition."""
    with closing(sqlite3.connect(path)) as source, source:
        for table in metadata.sorted_tables:
            for column in (each.name for each in table.columns if isinstance(each.type, Double)):
                source.execute(f"UPDATE {table.name} SET {column} = round({column} * 8) / 8.0")  # noqa: S608


async def _copied(path: Path, url: str, chance: random.Random) -> None:
    connection = await asyncpg.connect(url)
    with closing(sqlite3.connect(path)) as source:
        for table in metadata.sorted_tables:
            names = [column.name for column in table.columns]
            rows = source.execute(f"SELECT {', '.join(names)} FROM {table.name}").fetchall()  # noqa: S608
            chance.shuffle(rows)
            await connection.copy_records_to_table(table.name, records=rows, columns=names)
            for column in table.primary_key:
                await _count_on(connection, table.name, column.name)
    await connection.execute("ANALYZE")
    await connection.close()


async def _count_on(connection: "asyncpg.Connection[Any]", table: str, column: str) -> None:
    counter = await connection.fetchval("SELECT pg_get_serial_sequence($1, $2)", table, column)
    if counter is not None:
        newest = f"SELECT setval('{counter}', max({column})) FROM {table} HAVING max({column}) IS NOT NULL"  # noqa: S608
        await connection.execute(newest)


_PLAIN = frozenset({str, int, float, bool, type(None)})


def typed_outline(value: object) -> Any:
    """A value with the type of each part: 1, True, 1.0 and Decimal(1) are equal, and are not the same in JSON."""
    if type(value) in _PLAIN:  # most parts are
        return type(value).__name__, value
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, {
            each.name: typed_outline(getattr(value, each.name)) for each in fields(value)
        }
    if isinstance(value, Mapping):
        return {key: typed_outline(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [typed_outline(each) for each in value]
    if isinstance(value, Enum):
        return str(value)
    return type(value).__name__, value


def outline_differences(one: Any, other: Any, where: str = "") -> list[str]:
    """The paths at which two outlines differ."""
    if one == other:  # nearly always, and to compare them as a whole is quick
        return []
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            found
            for key in sorted({*one, *other}, key=str)
            for found in outline_differences(
                one.get(key, "missing"), other.get(key, "missing"), f"{where}.{key}"
            )
        ]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        return [
            found
            for place, (a, b) in enumerate(zip(one, other, strict=True))
            for found in outline_differences(a, b, f"{where}[{place}]")
        ]
    return [f"{where}: {str(one)[:200]} / {str(other)[:200]}"]
