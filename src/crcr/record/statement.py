"""SQLAlchemy as the one definition of statements, the driver as their executor.

Building and executing through SQLAlchemy costs ten times what the driver does, so each statement is compiled
once per dialect and run by `sqlite3` (later `asyncpg`) with plain parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from sqlalchemy import ClauseElement, Table, bindparam, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import Insert, insert  # its ON CONFLICT compiles for SQLite as well
from sqlalchemy.sql.compiler import SQLCompiler

_DIALECTS = {"sqlite": sqlite.dialect(paramstyle="named")}


@dataclass(frozen=True, slots=True)
class Compiled:
    sql: str
    constants: Mapping[str, Any]
    """Values that are part of the statement itself, such as a state in its WHERE clause."""


@dataclass(slots=True, eq=False)
class Statement:
    """One SQL statement; `bindparam` names in it are the arguments of each run."""

    clause: ClauseElement
    _compiled: dict[str, Compiled] = field(default_factory=dict)

    def for_dialect(self, name: str) -> Compiled:
        compiled = self._compiled.get(name)
        if compiled is None:
            compiled = self._compiled[name] = _compile(self.clause, name)
        return compiled


def _compile(clause: ClauseElement, name: str) -> Compiled:
    done = cast("SQLCompiler", clause.compile(dialect=_DIALECTS[name]))
    constants = {key: bind.value for key, bind in done.binds.items() if not bind.required}
    return Compiled(str(done), {key: value for key, value in constants.items() if not key.startswith("%(")})


@dataclass(frozen=True, slots=True, eq=False)
class Adding:
    """An upsert that adds to a row of sums; such statements commute, so those of one commit can be joined."""

    statement: Statement
    keys: tuple[str, ...]
    nothing: Mapping[str, float]

    @classmethod
    def to(cls, table: Table, sums: tuple[str, ...]) -> "Adding":
        """Add to the columns `sums` of a table; of others that are no key the first value stays."""
        columns = [column.name for column in table.columns]
        # As text: SQLAlchemy takes a tenth of a second to build this for fifty columns.
        upsert = (
            f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join(f':{name}' for name in columns)})"  # noqa: S608  our own names
            f" ON CONFLICT ({', '.join(column.name for column in table.primary_key)}) DO UPDATE SET "
            + ", ".join(f"{name} = {table.name}.{name} + excluded.{name}" for name in sums)
        )
        keys = tuple(name for name in columns if name not in sums)
        return cls(Statement(text(upsert)), keys, dict.fromkeys(sums, 0))

    def row(self, key: tuple[Any, ...], amounts: Mapping[str, float]) -> dict[str, Any]:
        return {**self.nothing, **dict(zip(self.keys, key, strict=True)), **amounts}


def inserting(table: Table, *columns: str) -> Insert:
    """An INSERT of just these columns; the others take their defaults."""
    return insert(table).values({name: bindparam(name) for name in columns})
