"""Writes without a result: kept until a query needs them done, then sent as one statement for several tables.

A unit that writes goes on at once, so the last writes of all units of a group, and the sums, share one round trip. A
statement does not see its own writes, so it has one write for each table, and none of these reads a table.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from crcr.record.store.postgres.connection import Connection
from crcr.record.store.postgres.parameter_arrays import (
    Execution,
    ParameterArrays,
    distinct_keys,
    key_parameters,
    renumbered,
)

_ARRAYS = ParameterArrays()
_JSON_ROWS = " FROM json_to_recordset("
_INSERT = re.compile(rf"INSERT INTO (\w+) \([^()]*\) (?:VALUES \(|SELECT .*{re.escape(_JSON_ROWS)})")
_UPDATE = re.compile(r"UPDATE (\w+) SET ")
_READS = re.compile(r"\b(SELECT|RETURNING)\b")


@dataclass(frozen=True, slots=True)
class Write:
    """One statement with its parameter sets."""

    sql: str
    parameter_sets: list[list[Any]]
    distinct: bool = False
    """Whether no two of the sets have the same key."""

    @classmethod
    def join(cls, sql: str, parts: Sequence[list[list[Any]]]) -> "Write":
        """The parameter sets of several units: two transactions that change the same rows do so in the same order."""
        if len(parts) == 1:
            return cls(sql, parts[0])
        parameter_sets = [each for part in parts for each in part]
        try:
            return cls(sql, sorted(parameter_sets))
        except TypeError:  # they differ first in a value that one of them lacks
            return cls(sql, sorted(parameter_sets, key=_sort_key))


class LaterWrites:
    """Writes of any number of lanes that are not done yet."""

    def __init__(self) -> None:
        self._parts: dict[str, list[list[list[Any]]]] = {}
        self._tables: set[tuple[object, str]] = set()

    def keep(self, lane: object, sql: str, parameter_sets: list[list[Any]]) -> bool:
        """Keep a write for later; False when it must be done in its turn: it may depend on another of its lane."""
        table = written_table(sql)
        if table is None or "DO UPDATE" in sql or (lane, table) in self._tables:
            return False
        self._tables.add((lane, table))
        self._parts.setdefault(sql, []).append(parameter_sets)
        return True

    def take(self) -> list[Write]:
        parts, self._parts = self._parts, {}
        self._tables.clear()
        return [Write.join(sql, each) for sql, each in parts.items()]


async def execute_writes(connection: Connection, writes: Iterable[Write]) -> None:
    """Execute them all in as few statements as possible. They must not depend on each other."""
    for group in _once_per_table(writes):
        combined: list[Execution] = []
        for write in group:
            execution = await _as_one_execution(connection, write, alone=len(group) == 1)
            if execution is None:
                await connection.executemany(write.sql, write.parameter_sets)
            else:
                combined.append(execution)
        if combined:
            arguments = [argument for _, of_write in combined for argument in of_write]
            await connection.execute(_combine(tuple(sql for sql, _ in combined)), *arguments)


@cache
def written_table(sql: str) -> str | None:
    """The table of an insert of values or of an update by key; None for a statement that may read other rows."""
    if _READS.search(sql) and _JSON_ROWS not in sql:
        return None
    if match := _INSERT.match(sql):
        return match[1]
    match = _UPDATE.match(sql)
    return match[1] if match and key_parameters(sql) else None


def _once_per_table(writes: Iterable[Write]) -> Iterator[list[Write]]:
    """Groups in which each table is written once, in the same order in every process; what reads a table is alone."""
    groups: list[dict[str, Write]] = []
    alone: list[Write] = []
    for write in writes:
        table = written_table(write.sql)
        if table is None:
            alone.append(write)
            continue
        group = next((group for group in groups if table not in group), None)
        if group is None:
            groups.append(group := {})
        group[table] = write
    for group in groups:
        yield [group[table] for table in sorted(group)]
    yield from ([write] for write in alone)


async def _as_one_execution(connection: Connection, write: Write, *, alone: bool) -> Execution | None:
    """A statement for all parameter sets, with its arguments; None where sets could meet, or there is no such form."""
    sql, sets = write.sql, write.parameter_sets
    if len(sets) == 1 and (alone or _JSON_ROWS in sql):
        return sql, sets[0]
    if sql.startswith("UPDATE"):
        return await _ARRAYS.update(connection, sql, sets) if distinct_keys(sql, sets) else None
    if "DO UPDATE" in sql and not write.distinct:
        return None
    return await _ARRAYS.insert(connection, sql, sets)


@cache
def _combine(forms: tuple[str, ...]) -> str:
    *others, last = renumbered(forms)
    if not others:
        return last
    named = ", ".join(f"write_{number} AS ({sql})" for number, sql in enumerate(others))
    return f"WITH {named} {last}"


def _sort_key(arguments: list[Any]) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in arguments]
