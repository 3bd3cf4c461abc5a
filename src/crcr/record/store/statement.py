"""SQLAlchemy as the one definition of statements, the driver as their executor.

Building and executing through SQLAlchemy costs ten times what the driver does, so each statement is compiled
once per dialect and run by `sqlite3` or `asyncpg` with plain parameters.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from string import ascii_lowercase, ascii_uppercase
from typing import Any, cast

from sqlalchemy import BindParameter, ClauseElement, Table, bindparam, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import Insert, insert  # its ON CONFLICT compiles for SQLite as well
from sqlalchemy.sql.compiler import SQLCompiler

_NOT_STORABLE = re.compile("[\0\ud800-\udfff]")
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


class _ConstantsInText:
    """A compiler that writes unnamed constants (`state <> 'completed'`) into the text instead of binding them.

    SQLite prepares a statement again for each run where a bound value might make a partial index usable: for the update
    that ends a job this took four times as long as the update. PostgreSQL uses a partial index only for values in the text.
    """

    def visit_bindparam(self, bindparam: BindParameter[Any], **options: Any) -> str:
        if bindparam.unique and not bindparam.expanding and type(bindparam.value) in (str, int):
            options["literal_binds"] = True
        return super().visit_bindparam(bindparam, **options)  # type: ignore[misc, no-any-return]


class _SqliteCompiler(_ConstantsInText, sqlite.dialect.statement_compiler):  # type: ignore[misc, name-defined]
    pass


class _PostgresqlCompiler(_ConstantsInText, postgresql.dialect.statement_compiler):  # type: ignore[misc, name-defined]
    pass


_DIALECTS = {
    "sqlite": sqlite.dialect(paramstyle="named"),
    "postgresql": postgresql.dialect(paramstyle="numeric_dollar"),  # type: ignore[no-untyped-call]
}
_DIALECTS["sqlite"].statement_compiler = _SqliteCompiler
_DIALECTS["postgresql"].statement_compiler = _PostgresqlCompiler


def storable(value: Any) -> Any:
    """The value as both databases can store it: a NUL or half of a surrogate pair in a text is replaced.

    Names with one are refused at the edge; this is for free texts, and for search terms.
    """
    if value.__class__ is not str or (value.isascii() and "\0" not in value):
        return value
    return _NOT_STORABLE.sub("\ufffd", value)


def all_storable(params: Mapping[str, Any]) -> Mapping[str, Any]:
    for value in params.values():
        # As in `storable`, without a call for each value: every statement pays for this loop.
        if value.__class__ is str and not (value.isascii() and "\0" not in value):
            return {name: storable(param) for name, param in params.items()}
    return params


@dataclass(frozen=True, slots=True)
class Compiled:
    sql: str
    constants: Mapping[str, Any]
    """Values that are part of the statement itself, such as a state in its WHERE clause."""
    order: tuple[str, ...] = ()
    """For a dialect that numbers its parameters: their names."""

    def parameters(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """For a dialect that names its parameters."""
        params = all_storable(params)
        return {**self.constants, **params} if self.constants else params

    def arguments(self, params: Mapping[str, Any]) -> list[Any]:
        """For a dialect that numbers them."""
        params, constants = all_storable(params), self.constants
        if not constants:
            return [params[name] for name in self.order]
        return [params[name] if name in params else constants[name] for name in self.order]


@dataclass(slots=True, eq=False)
class Statement:
    """One SQL statement; `bindparam` names in it are the arguments of each run."""

    clause: ClauseElement
    on_postgresql: ClauseElement | None = None
    """The PostgreSQL variant where it differs, such as which rows to lock."""
    _compiled: dict[str, Compiled] = field(default_factory=dict)

    def for_dialect(self, name: str) -> Compiled:
        compiled = self._compiled.get(name)
        if compiled is None:
            special = self.on_postgresql if name == "postgresql" else None
            compiled = self._compiled[name] = _compile(self.clause if special is None else special, name)
        return compiled


def _compile(clause: ClauseElement, name: str) -> Compiled:
    done = cast("SQLCompiler", clause.compile(dialect=_DIALECTS[name]))
    constants = {key: bind.value for key, bind in done.binds.items() if not bind.required}
    constants = {key: value for key, value in constants.items() if not key.startswith("%(")}
    return Compiled(str(done), constants, tuple(done.positiontup or ()))


@dataclass(frozen=True, slots=True, eq=False)
class SumUpsert:
    """An upsert that adds to a row of sums. Such statements commute, so those of one commit are combined."""

    name: str
    statement: Statement
    keys: tuple[str, ...]
    defaults: Mapping[str, float | None]
    extremes: Mapping[str, Callable[[float, float], float]] = field(default_factory=dict)
    """How to combine two values of a column that is not summed."""
    unique: int | None = None
    """How many of the first `keys` are the primary key; None for all."""
    as_json: bool = False
    """On PostgreSQL all rows are one parameter, `rows`: a JSON list of objects without what has its default."""

    @classmethod
    def to(
        cls, table: Table, sums: tuple[str, ...], *, lows: tuple[str, ...] = (), highs: tuple[str, ...] = ()
    ) -> "SumUpsert":
        """Add to the columns `sums` of a table, and keep the least of `lows` and the greatest of `highs`.

        Other columns that are not in the key keep their first value.
        """
        columns = [column.name for column in table.columns]
        # As text: SQLAlchemy takes a tenth of a second to build this for fifty columns.
        insert = f"INSERT INTO {table.name} ({', '.join(columns)})"
        values = f" VALUES ({', '.join(f':{name}' for name in columns)})"
        update = (
            f" ON CONFLICT ({', '.join(column.name for column in table.primary_key)}) DO UPDATE SET "
            + ", ".join(
                [
                    *(f"{name} = {table.name}.{name} + excluded.{name}" for name in sums),
                    *(_more_extreme(table.name, name, "<=") for name in lows),
                    *(_more_extreme(table.name, name, ">=") for name in highs),
                ]
            )
        )
        # Most sums of a row are 0: an array of each column would take several times as long as what is not.
        on_postgresql = f"{insert} {_select_json(table, sums)} WHERE true{update}"
        extremes = {**dict.fromkeys(lows, min), **dict.fromkeys(highs, max)}
        keys = tuple(name for name in columns if name not in sums and name not in extremes)
        defaults = {**dict.fromkeys(sums, 0), **dict.fromkeys(extremes)}
        statement = Statement(text(f"{insert}{values}{update}"), on_postgresql=text(on_postgresql))
        return cls(
            table.name, statement, keys, defaults, extremes, unique=len(table.primary_key), as_json=True
        )

    def row(self, key: tuple[Any, ...], amounts: Mapping[str, float]) -> dict[str, Any]:
        """The row with every column."""
        return {**self.defaults, **self.changed(key, amounts)}

    def changed(self, key: tuple[Any, ...], amounts: Mapping[str, float]) -> dict[str, Any]:
        """The row without what has its default."""
        return {**dict(zip(self.keys, key, strict=True)), **amounts}


def _select_json(table: Table, sums: tuple[str, ...]) -> str:
    dialect = _DIALECTS["postgresql"]
    types = ", ".join(f"{column.name} {column.type.compile(dialect=dialect)}" for column in table.columns)
    columns = (
        f"coalesce(r.{column.name}, 0)" if column.name in sums else f"r.{column.name}"
        for column in table.columns
    )
    return f"SELECT {', '.join(columns)} FROM json_to_recordset(CAST(:rows AS json)) AS r ({types})"  # noqa: S608


def _more_extreme(table: str, name: str, sign: str) -> str:
    """Keep the column unless the new value is more extreme; either may be NULL."""
    kept = f"excluded.{name} IS NULL OR {table}.{name} {sign} excluded.{name}"
    return f"{name} = CASE WHEN {kept} THEN {table}.{name} ELSE excluded.{name} END"


def ascii_lower(text: str) -> str:
    """Like SQL's `lower` on SQLite, and on PostgreSQL for a column with the C collation."""
    return text.translate(_LOWER)


def inserting(table: Table, *columns: str) -> Insert:
    """An INSERT of just these columns; the others take their defaults."""
    return insert(table).inline().values({name: bindparam(name) for name in columns})
