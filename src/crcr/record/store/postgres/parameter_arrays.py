"""One execution for many parameter sets: a statement over arrays of parameters, in place of one Bind and Execute for each.

Only forms whose result cannot depend on the order of execution are rewritten: queries that lock nothing, inserts of
rows that do not meet each other, and updates by key. Others are executed set by set.

An array of texts is sent as one text, which PostgreSQL splits: the driver takes a third of the time for it. Texts that
hold a separator are sent as an array.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias, cast

from crcr.record.store.postgres.connection import Connection

NUMBER_COLUMN = "query_number"
_PARAMETER = re.compile(r"\$([0-9]+)")
# A lock must be taken in the order of the sets, and LIMIT accepts no column.
_UNSUITABLE = re.compile(r"\bFOR (UPDATE|SHARE|NO KEY|KEY SHARE)\b|\bLIMIT \$|\bOFFSET \$|\bRETURNING\b")
_INSERT_VALUES = re.compile(
    r"(INSERT INTO \w+ \([^()]*\)) VALUES \((?P<values>.*?)\)(?P<conflict> ON CONFLICT [^$]*)?", re.DOTALL
)
_UPDATE = re.compile(r"(UPDATE \w+ SET .*?)\s+WHERE (?P<conditions>[^()]*)", re.DOTALL)
_EQUALS_PARAMETER = re.compile(r"(?:\w+\.)?\w+ = \$([0-9]+)(?:::\w+)?")
_OTHER_ROWS = re.compile(r"\b(SELECT|OR|FROM)\b")
_INSERT_SELECT = re.compile(r"(INSERT INTO \w+ \([^()]*\)) (?P<query>SELECT .*)", re.DOTALL)


_TEXT_TYPES = {"text", "varchar"}
_SEPARATOR, _NULL = "\x1f", "\x1e"
_SPLIT = r"string_to_array(${number}::text, E'\x1f', E'\x1e')"

Execution: TypeAlias = tuple[str, list[Any]]
"""A statement for all parameter sets, and its arguments."""
Rewrite: TypeAlias = Callable[[str, Sequence["Parameter"]], str | None]


@dataclass(frozen=True, slots=True)
class Parameter:
    """How the values of one parameter are sent: as an array, or as a text that PostgreSQL splits."""

    type: str
    joined: bool = False

    def as_sql(self, number: int) -> str:
        return f"{_SPLIT.format(number=number) if self.joined else f'${number}'}::{self.type}[]"


@dataclass(frozen=True, slots=True)
class Forms:
    """A rewritten statement, with its texts joined and with arrays alone."""

    joined: str
    arrays: str
    texts: frozenset[int]
    """The positions of the texts."""

    def execution(self, parameter_sets: Sequence[Sequence[Any]]) -> Execution:
        columns = list(zip(*parameter_sets, strict=True))
        texts = {position: join_texts(columns[position]) for position in self.texts}
        if None in texts.values():
            return self.arrays, [list(column) for column in columns]
        return self.joined, [
            texts[position] if position in texts else list(column) for position, column in enumerate(columns)
        ]


class ParameterArrays:
    """The rewritten statements; the types of their parameters are PostgreSQL's own, read once for each statement."""

    def __init__(self) -> None:
        self._forms: dict[tuple[Rewrite, str], Forms | None] = {}

    async def select(
        self, connection: Connection, sql: str, parameter_sets: Sequence[Sequence[Any]]
    ) -> Execution | None:
        """The query over arrays, its rows numbered by parameter set from 1; None where there is no such form."""
        return await self._execution(connection, select_over_arrays, sql, parameter_sets)

    async def insert(
        self, connection: Connection, sql: str, parameter_sets: Sequence[Sequence[Any]]
    ) -> Execution | None:
        """The insert of all rows at once; None where there is no such form."""
        return await self._execution(connection, insert_over_arrays, sql, parameter_sets)

    async def update(
        self, connection: Connection, sql: str, parameter_sets: Sequence[Sequence[Any]]
    ) -> Execution | None:
        """The update of all rows at once, for parameter sets with `distinct_keys`; None where there is no such form."""
        return await self._execution(connection, update_over_arrays, sql, parameter_sets)

    async def _execution(
        self, connection: Connection, rewrite: Rewrite, sql: str, parameter_sets: Sequence[Sequence[Any]]
    ) -> Execution | None:
        forms = await self.forms(connection, rewrite, sql)
        return None if forms is None else forms.execution(parameter_sets)

    async def forms(self, connection: Connection, rewrite: Rewrite, sql: str) -> Forms | None:
        if (rewrite, sql) not in self._forms:
            self._forms[rewrite, sql] = _rewritten(rewrite, sql, await _array_types(connection, sql))
        return self._forms[rewrite, sql]


def _rewritten(rewrite: Rewrite, sql: str, types: list[str] | None) -> Forms | None:
    arrays = None if types is None else rewrite(sql, [Parameter(name) for name in types])
    if types is None or arrays is None:
        return None
    texts = frozenset(position for position, name in enumerate(types) if name in _TEXT_TYPES)
    parameters = [Parameter(name, joined=position in texts) for position, name in enumerate(types)]
    return Forms(cast("str", rewrite(sql, parameters)), arrays, texts)


def join_texts(texts: Sequence[str | None]) -> str | None:
    """The texts as one; None where splitting it would not return them."""
    nulls = texts.count(None)
    try:
        joined = _SEPARATOR.join([_NULL if text is None else text for text in texts])
    except TypeError:  # not a text: the driver says so
        return None
    if joined.count(_SEPARATOR) != len(texts) - 1 or joined.count(_NULL) != nulls or not joined:
        return None
    return joined


def select_over_arrays(sql: str, parameters: Sequence[Parameter]) -> str | None:
    if not sql.startswith("SELECT") or _UNSUITABLE.search(sql):
        return None
    # OFFSET 0: planned as the query alone is, by its indexes, and never as a join with the whole table.
    return (
        f"SELECT query.*, parameters.{NUMBER_COLUMN} FROM {_parameters(parameters, numbered=True)}"  # noqa: S608  our own
        f" CROSS JOIN LATERAL ({_with_columns(sql)} OFFSET 0) AS query"
    )


def insert_over_arrays(sql: str, parameters: Sequence[Parameter]) -> str | None:
    if _UNSUITABLE.search(sql):
        return None
    rows = _parameters(parameters, numbered=False)
    if match := _INSERT_VALUES.fullmatch(sql):
        values, conflict = _with_columns(match["values"]), match["conflict"] or ""
        return f"{match[1]} SELECT {values} FROM {rows}{' WHERE true' if conflict else ''}{conflict}"  # noqa: S608
    if (match := _INSERT_SELECT.fullmatch(sql)) and " ON CONFLICT " not in sql:
        query = _with_columns(match["query"])
        return f"{match[1]} SELECT query.* FROM {rows} CROSS JOIN LATERAL ({query} OFFSET 0) AS query"  # noqa: S608
    return None


def update_over_arrays(sql: str, parameters: Sequence[Parameter]) -> str | None:
    if not key_parameters(sql):
        return None
    match = cast("re.Match[str]", _UPDATE.fullmatch(sql))
    changes, conditions = _with_columns(match[1]), _with_columns(match["conditions"])
    return f"{changes} FROM {_parameters(parameters, numbered=False)} WHERE {conditions}"


@cache
def key_parameters(sql: str) -> tuple[int, ...]:
    """The positions of the parameters that columns of an update's row must equal; empty where it has another form."""
    match = _UPDATE.fullmatch(sql)
    if match is None or _UNSUITABLE.search(sql) or _OTHER_ROWS.search(sql):
        return ()
    found = (_EQUALS_PARAMETER.fullmatch(each.strip()) for each in match["conditions"].split(" AND "))
    return tuple(int(equality[1]) - 1 for equality in found if equality)


def distinct_keys(sql: str, parameter_sets: Sequence[Sequence[Any]]) -> bool:
    """Whether no row can match two of the sets, because they differ in what a column must equal."""
    positions = key_parameters(sql)
    keys = {tuple(parameters[position] for position in positions) for parameters in parameter_sets}
    return len(keys) == len(parameter_sets)


def renumbered(statements: Iterable[str]) -> list[str]:
    """The statements with their parameters numbered on from one to the next, as parts of one statement."""
    parts: list[str] = []
    before = 0
    for sql in statements:
        numbers = [int(number) for number in _PARAMETER.findall(sql)]
        parts.append(_PARAMETER.sub(partial(_add_to_number, before), sql))
        before += max(numbers, default=0)
    return parts


def _add_to_number(before: int, match: re.Match[str]) -> str:
    return f"${before + int(match[1])}"


async def _array_types(connection: Connection, sql: str) -> list[str] | None:
    """The types of the parameters; None when there are none, or when one is an array itself."""
    parameters = (await connection.prepare(sql, name="")).get_parameters()
    if not parameters or any(parameter.kind == "array" for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


def _parameters(parameters: Sequence[Parameter], *, numbered: bool) -> str:
    arrays = ", ".join(parameter.as_sql(number) for number, parameter in enumerate(parameters, 1))
    columns = [
        *(f"p{number}" for number in range(1, len(parameters) + 1)),
        *([NUMBER_COLUMN] if numbered else []),
    ]
    ordinality = " WITH ORDINALITY" if numbered else ""
    return f"unnest({arrays}){ordinality} AS parameters ({', '.join(columns)})"


def _with_columns(sql: str) -> str:
    return _PARAMETER.sub(r"parameters.p\1", sql)
