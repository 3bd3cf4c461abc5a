"""One execution for many parameter sets: a statement over arrays of parameters, in place of one Bind and Execute for each.

Only forms whose result cannot depend on the order of execution are rewritten: queries that lock nothing, and inserts of
rows that do not meet each other. Others are executed set by set.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from crcr.record.store.postgres.connection import Connection

NUMBER_COLUMN = "query_number"
_PARAMETER = re.compile(r"\$([0-9]+)")
# A lock must be taken in the order of the sets, and LIMIT accepts no column.
_UNSUITABLE = re.compile(r"\bFOR (UPDATE|SHARE|NO KEY|KEY SHARE)\b|\bLIMIT \$|\bOFFSET \$|\bRETURNING\b")
_INSERT_VALUES = re.compile(
    r"(INSERT INTO \w+ \([^()]*\)) VALUES \((?P<values>.*?)\)(?P<conflict> ON CONFLICT [^$]*)?", re.DOTALL
)
_INSERT_SELECT = re.compile(r"(INSERT INTO \w+ \([^()]*\)) (?P<query>SELECT .*)", re.DOTALL)


class ParameterArrays:
    """The rewritten statements; the types of their parameters are PostgreSQL's own, read once for each statement."""

    def __init__(self) -> None:
        self._selects: dict[str, str | None] = {}
        self._inserts: dict[str, str | None] = {}

    async def select_for(self, connection: Connection, sql: str) -> str | None:
        """The query over arrays, its rows numbered by parameter set from 1; None where there is no such form."""
        if sql not in self._selects:
            self._selects[sql] = select_over_arrays(sql, await _array_types(connection, sql))
        return self._selects[sql]

    async def insert_for(self, connection: Connection, sql: str) -> str | None:
        """The insert of all rows at once; None where there is no such form."""
        if sql not in self._inserts:
            self._inserts[sql] = insert_over_arrays(sql, await _array_types(connection, sql))
        return self._inserts[sql]


def as_arrays(parameter_sets: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*parameter_sets, strict=True)]


def select_over_arrays(sql: str, types: list[str] | None) -> str | None:
    if types is None or not sql.startswith("SELECT") or _UNSUITABLE.search(sql):
        return None
    # OFFSET 0: planned as the query alone is, by its indexes, and never as a join with the whole table.
    return (
        f"SELECT query.*, parameters.{NUMBER_COLUMN} FROM {_parameters(types, numbered=True)}"  # noqa: S608  our own
        f" CROSS JOIN LATERAL ({_with_columns(sql)} OFFSET 0) AS query"
    )


def insert_over_arrays(sql: str, types: list[str] | None) -> str | None:
    if types is None or _UNSUITABLE.search(sql):
        return None
    rows = _parameters(types, numbered=False)
    if match := _INSERT_VALUES.fullmatch(sql):
        values, conflict = _with_columns(match["values"]), match["conflict"] or ""
        return f"{match[1]} SELECT {values} FROM {rows}{' WHERE true' if conflict else ''}{conflict}"  # noqa: S608
    if (match := _INSERT_SELECT.fullmatch(sql)) and " ON CONFLICT " not in sql:
        query = _with_columns(match["query"])
        return f"{match[1]} SELECT query.* FROM {rows} CROSS JOIN LATERAL ({query} OFFSET 0) AS query"  # noqa: S608
    return None


async def _array_types(connection: Connection, sql: str) -> list[str] | None:
    """The types of the parameters; None when there are none, or when one is an array itself."""
    parameters = (await connection.prepare(sql)).get_parameters()
    if not parameters or any(parameter.kind == "array" for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


def _parameters(types: list[str], *, numbered: bool) -> str:
    arrays = ", ".join(f"${number}::{name}[]" for number, name in enumerate(types, 1))
    columns = [*(f"p{number}" for number in range(1, len(types) + 1)), *([NUMBER_COLUMN] if numbered else [])]
    ordinality = " WITH ORDINALITY" if numbered else ""
    return f"unnest({arrays}){ordinality} AS parameters ({', '.join(columns)})"


def _with_columns(sql: str) -> str:
    return _PARAMETER.sub(r"parameters.p\1", sql)
