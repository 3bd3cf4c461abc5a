"""Units of work side by side on one connection: queries that are ready at the same time share a round trip.

A round trip costs more than the query. Each unit is written as if it were alone. `run_batched` advances all of them
to their next query, sends every distinct statement once with all parameter sets, and resumes each unit with its own
result. Why: docs/adr/0020-postgresql.md.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from time import perf_counter
from typing import Any, TypeAlias, cast

import msgspec

from crcr.record.store.database import Row
from crcr.record.store.group_commit import PendingSums, QueuedUnit
from crcr.record.store.postgres.combined_writes import LaterWrites, Write, execute_writes
from crcr.record.store.postgres.connection import FAULTS, Connection
from crcr.record.store.postgres.parameter_arrays import NUMBER_COLUMN, ParameterArrays
from crcr.record.store.statement import Statement, SumUpsert, all_storable

_ARRAYS = ParameterArrays()
_ENCODE = msgspec.json.Encoder().encode
_RETURNS = re.compile(r"\bRETURNING\b")
_CHANGES_ROWS = re.compile(r"\s*(INSERT|UPDATE|DELETE)\b")


class ResultShape(Enum):
    ONE = "the first row"
    ALL = "all rows"
    COUNT = "how many rows were touched"
    NOTHING = "nothing, for any number of parameter sets"


@dataclass(slots=True)
class Query:
    """One query of a unit; awaiting it suspends the unit until `run_batched` has the result."""

    sql: str
    shape: ResultShape
    arguments: list[list[Any]]
    """One parameter set, or any number of them for `NOTHING`."""

    def __await__(self) -> Generator["Query", Any, Any]:
        return (yield self)


@dataclass(slots=True)
class SlowestStatement:
    """The slowest statement of a transaction, also when it failed."""

    sql: str = ""
    took_s: float = 0.0

    @contextmanager
    def timing(self, sql: str) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            took_s = perf_counter() - began
            if took_s > self.took_s:
                self.sql, self.took_s = sql, took_s


Steps: TypeAlias = Generator[Query, Any, None]
"""Units that run one after the other, as a generator of their queries."""


class PostgresTx:
    """Implements `Tx` by yielding queries to `run_batched`. Any number of units may share one."""

    def __init__(self, settled: int | None = None) -> None:
        self._settled = settled
        self.signals: set[str] = set()
        self._sums = PendingSums()

    async def one(self, statement: Statement, **params: Any) -> Row | None:
        return cast("Row | None", await _query(statement, ResultShape.ONE, params))

    async def all(self, statement: Statement, **params: Any) -> list[Row]:
        return cast("list[Row]", await _query(statement, ResultShape.ALL, params))

    async def run(self, statement: Statement, **params: Any) -> int:
        return cast("int", await _query(statement, ResultShape.COUNT, params))

    async def many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
        compiled = statement.for_dialect("postgresql")
        if arguments := [compiled.arguments(row) for row in rows]:
            await Query(compiled.sql, ResultShape.NOTHING, arguments)

    def add_up(self, upsert: SumUpsert, key: tuple[Any, ...], amounts: Mapping[str, float]) -> None:
        self._sums.add(upsert, key, amounts)

    async def settled_change(self) -> int | None:
        return self._settled

    def signal(self, name: str) -> None:
        self.signals.add(name)

    def run_units(self, units: Iterable[QueuedUnit[Any]]) -> Steps:
        """Run the units of one lane in order."""
        for queued in units:
            steps = cast("Generator[Query, Any, Any]", queued.unit(self).__await__())
            queued.result = yield from steps

    def sum_writes(self) -> list[Write]:
        """What was added up, to be written at the end of the units."""
        writes = []
        for upsert, sums in self._sums.drain():
            compiled = upsert.statement.for_dialect("postgresql")
            if upsert.as_json:
                rows = [dict(all_storable(upsert.changed(key, amounts))) for key, amounts in sums]
                writes.append(Write(compiled.sql, [[_ENCODE(rows).decode()]], distinct=True))
            else:
                sets = [compiled.arguments(upsert.row(key, amounts)) for key, amounts in sums]
                writes.append(Write(compiled.sql, sets, distinct=True))
        return writes


def _query(statement: Statement, shape: ResultShape, params: Mapping[str, Any]) -> Query:
    compiled = statement.for_dialect("postgresql")
    return Query(compiled.sql, shape, [compiled.arguments(params)])


async def run_batched(
    connection: Connection,
    all_steps: Iterable[Steps],
    slowest: SlowestStatement | None = None,
    *,
    last_writes: Callable[[], list[Write]] = list,
) -> None:
    """Run them all to their ends, then `last_writes`. If one fails, all have failed: the caller must roll back."""
    running, slowest, later = list(all_steps), slowest or SlowestStatement(), LaterWrites()
    try:
        pending = [pair for steps in running for pair in _advance(steps, steps.send, None, later)]
        while pending:
            await _execute_writes(connection, later.take(), slowest)
            try:
                results = await _execute(connection, [query for _, query in pending], slowest)
            except FAULTS as fault:
                if len(pending) > 1:
                    raise
                [(steps, _)] = pending
                # A single unit gets the error at its own `await`.
                pending = _advance(steps, steps.throw, fault, later)
            else:
                resumed = zip(pending, results, strict=True)
                pending = [
                    pair
                    for (steps, _), result in resumed
                    for pair in _advance(steps, steps.send, result, later)
                ]
        await _execute_writes(connection, [*later.take(), *last_writes()], slowest)
    finally:
        for steps in running:
            steps.close()


def _advance(
    steps: Steps, resume: Callable[[Any], Query], value: Any, later: LaterWrites
) -> list[tuple[Steps, Query]]:
    """Resume until the next query that cannot be done later; empty at the end."""
    try:
        query = resume(value)
        while getattr(query, "shape", None) is ResultShape.NOTHING and later.keep(
            steps, query.sql, query.arguments
        ):
            query = steps.send(None)
    except StopIteration:
        return []
    return [(steps, query)]


async def _execute_writes(connection: Connection, writes: list[Write], slowest: SlowestStatement) -> None:
    if writes:
        with slowest.timing(writes[0].sql):
            await execute_writes(connection, writes)


async def _execute(connection: Connection, queries: list[Query], slowest: SlowestStatement) -> list[Any]:
    positions: dict[tuple[str, ResultShape], list[int]] = {}
    for position, query in enumerate(queries):
        if not isinstance(query, Query):
            raise RuntimeError("a unit of work may await nothing but its transaction")  # noqa: TRY004
        positions.setdefault((query.sql, query.shape), []).append(position)
    results: list[Any] = [None] * len(queries)
    for (sql, shape), same in positions.items():
        with slowest.timing(sql):
            rows = await _execute_same(connection, sql, shape, [queries[position] for position in same])
        for position, result in zip(same, rows, strict=True):
            results[position] = result
    return results


async def _execute_same(
    connection: Connection, sql: str, shape: ResultShape, queries: list[Query]
) -> list[Any]:
    """Execute one statement for all queries that have it, in one round trip where possible."""
    if shape is ResultShape.NOTHING:
        await execute_writes(connection, [Write.join(sql, [query.arguments for query in queries])])
        return [None] * len(queries)
    parameter_sets = [query.arguments[0] for query in queries]
    if len(parameter_sets) == 1:
        return [await _execute_one(connection, sql, shape, parameter_sets[0])]
    rows_by_query: list[list[Row]] = [[] for _ in parameter_sets]
    if (execution := await _ARRAYS.select(connection, sql, parameter_sets)) is not None:
        over_arrays, arguments = execution
        for row in await connection.fetch(over_arrays, *arguments):
            rows_by_query[row[NUMBER_COLUMN] - 1].append(cast("Row", row))
    elif (numbered := _numbered(sql, len(parameter_sets[0]) + 1)) is not None:
        with_numbers = ([*arguments, number] for number, arguments in enumerate(parameter_sets))
        for row in await connection.fetchmany(numbered, with_numbers):
            rows_by_query[row[NUMBER_COLUMN]].append(cast("Row", row))
    else:
        return [await _execute_one(connection, sql, shape, arguments) for arguments in parameter_sets]
    if shape is ResultShape.ALL:
        return rows_by_query
    if shape is ResultShape.ONE:
        return [rows[0] if rows else None for rows in rows_by_query]
    return [len(rows) for rows in rows_by_query]


async def _execute_one(connection: Connection, sql: str, shape: ResultShape, arguments: list[Any]) -> Any:
    if shape is ResultShape.ALL:
        return await connection.fetch(sql, *arguments)
    if shape is ResultShape.ONE:
        return await connection.fetchrow(sql, *arguments)
    status = await connection.execute(sql, *arguments)
    return int(status.rpartition(" ")[2])


@cache
def _numbered(sql: str, parameter: int) -> str | None:
    """The statement with its query's number in each returned row, or None where it cannot be added."""
    number = f"${parameter}::int AS {NUMBER_COLUMN}"
    if sql.startswith("SELECT"):
        return f"SELECT query.*, {number} FROM ({sql}) AS query"  # noqa: S608  our own statement
    if _CHANGES_ROWS.match(sql):
        return f"{sql}, {number}" if _RETURNS.search(sql) else f"{sql} RETURNING {number}"
    return None
