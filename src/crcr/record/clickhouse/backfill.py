"""Backfill: copies all facts of the main store to ClickHouse, scanning each table by its key in steps of 2,000 rows.

It may run beside a working relay, and resumes after an interruption. A row is at least as new as the version that it
gets, and a fact that changes meanwhile is fed with a later version.
"""
# ruff: noqa: S608 - every name in these statements is our own

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Column, Integer, Table, text

from crcr.decide.statistics.window import ResultKind
from crcr.record.clickhouse.connection import SCAN_TIMEOUT_S, ClickHouseLink
from crcr.record.clickhouse.feeder import ClickHouseFeeder, FeedQueue
from crcr.record.clickhouse.tables import (
    DISPATCH_FACTS,
    DISPATCHES,
    INGESTED,
    INGESTED_FACTS,
    JOB_FACTS,
    JOBS,
    TABLES,
    HistoryTable,
)
from crcr.record.schema.main_tables import dispatches, jobs
from crcr.record.schema.statistics import FeedMark, ingested
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

STEP = 2_000
COUNT_STEP = 50_000
"""Counting a large table in one statement would exceed the main store's time-out."""
_EVENTS = ", ".join(f"'{event}'" for kind in ResultKind for event in kind.events)
Progress = Callable[[str, int, int], None]
"""Receives the table, how many of its rows are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """How many rows count in the main store (`here`) and in ClickHouse (`there`); printed as JSON by the CLI."""

    table: str
    here: int
    there: int


class _TableScan:
    """The statements that read one table of the main store by its key."""

    def __init__(self, table: Table, facts: Sequence[Column[Any]], counts: str) -> None:
        self.key = tuple(column.name for column in table.primary_key)
        self.start = [0 if isinstance(column.type, Integer) else "" for column in table.primary_key]
        columns, order = ", ".join(column.name for column in facts), ", ".join(self.key)
        after, until = (
            f"({order}) {operator} ({_key_parameters(table, prefix)})"
            for operator, prefix in ((">", ""), ("<=", "to_"))
        )
        count = f"SELECT count(*) AS number FROM {table.name} WHERE ({counts}) AND {after}"
        self.rows = Statement(
            text(
                f"SELECT {columns} FROM {table.name} WHERE ({counts}) AND {after} ORDER BY {order} LIMIT {STEP}"
            )
        )
        self.step_end = Statement(
            text(f"SELECT {order} FROM {table.name} WHERE {after} ORDER BY {order} LIMIT 1 OFFSET :step")
        )
        self.count = Statement(text(f"{count} AND {until}"))
        self.count_rest = Statement(text(count))

    def parameters(self, key: Sequence[Any], prefix: str = "") -> dict[str, Any]:
        return {f"{prefix}{name}": value for name, value in zip(self.key, key, strict=True)}


def _key_parameters(table: Table, prefix: str) -> str:
    names = [(f":{prefix}{column.name}", column.type) for column in table.primary_key]
    return ", ".join(
        f"CAST({name} AS integer)" if isinstance(type_, Integer) else name for name, type_ in names
    )


_SCANS = {
    JOBS: _TableScan(jobs, JOB_FACTS, f"ended_as IS NOT NULL AND event IN ({_EVENTS})"),
    DISPATCHES: _TableScan(
        dispatches, DISPATCH_FACTS, f"sent_at IS NOT NULL AND test = 0 AND event IN ({_EVENTS})"
    ),
    INGESTED: _TableScan(ingested, INGESTED_FACTS, "ended_as IS NOT NULL"),
}
_COUNTS = {JOBS: "ended_as <> ''", DISPATCHES: "sent = 1", INGESTED: "ended_as <> ''"}
# The identity of facts that may move in time.
_IDENTITY = {
    DISPATCHES: ("upstream", "downstream", "delivery"),
    INGESTED: ("upstream", "downstream", "delivery", "workflow", "job_name", "check_run"),
}


class Backfill:
    def __init__(
        self, database: Database, queue: FeedQueue, feeder: ClickHouseFeeder, link: ClickHouseLink
    ) -> None:
        self._database = database
        self._queue = queue
        self._feeder = feeder
        self._link = link

    async def run(self, progress: Progress, now: datetime, *, anew: bool = False) -> tuple[RowCounts, ...]:
        """Copy everything, from where an interrupted run stopped; `anew` empties the tables first."""
        await self._feeder.make_ready()
        if anew:
            await self._queue.forget_mark(FeedMark.BACKFILL)
            for table in TABLES:
                await self._link.command(f"TRUNCATE TABLE {table.name}")
        state = json.loads(await self._queue.mark(FeedMark.BACKFILL) or "{}")
        if "version" not in state:
            state = {"version": await self._queue.reserve()}
        for table in TABLES:
            await self._copy_table(table, state, progress)
            if table in _IDENTITY:
                await self._link.command(_remove_moved(table, state["version"]), SCAN_TIMEOUT_S)
        await self._queue.set_mark(FeedMark.WHOLE, str(to_us(now)))
        await self._queue.forget_mark(FeedMark.BACKFILL)
        return tuple([await self._count_both(table) for table in TABLES])

    async def _copy_table(self, table: HistoryTable, state: dict[str, Any], progress: Progress) -> None:
        scan, total = _SCANS[table], await self._count_main_store(table)
        key, done = state.get(table.name, (None, 0))
        progress(table.name, done, total)
        while True:
            version = await self._queue.reserve()
            rows = await self._read_step(scan, key)
            if not rows:
                return
            history_rows = [row for fact in rows for row in table.rows(fact, version)]
            if history_rows:
                await self._link.insert(table.name, table.columns, history_rows)
            key, done = [rows[-1][name] for name in scan.key], done + len(rows)
            state[table.name] = (key, done)
            await self._queue.set_mark(FeedMark.BACKFILL, json.dumps(state))
            progress(table.name, done, max(done, total))

    async def _read_step(self, scan: _TableScan, key: list[Any] | None) -> list[Row]:
        where = scan.parameters(key or scan.start)
        return await self._database.read(lambda tx: tx.all(scan.rows, **where))

    async def _count_both(self, table: HistoryTable) -> RowCounts:
        sql = f"SELECT count() AS number FROM {table.name} FINAL WHERE {_COUNTS[table]}"
        clickhouse = (await self._link.query_slowly(sql, SCAN_TIMEOUT_S))[0]["number"]
        return RowCounts(table.name, await self._count_main_store(table), clickhouse)

    async def _count_main_store(self, table: HistoryTable) -> int:
        scan, number = _SCANS[table], 0
        key: list[Any] | None = scan.start
        while key is not None:
            key, counted = await self._database.read(partial(_count_step, scan, key))
            number += counted
        return number


async def _count_step(scan: _TableScan, key: list[Any], tx: Tx) -> tuple[list[Any] | None, int]:
    """Count one step after this key; return its last key, or None at the end, and the number of rows."""
    where = scan.parameters(key)
    end = await tx.one(scan.step_end, step=COUNT_STEP, **where)
    if end is None:
        row = await tx.one(scan.count_rest, **where)
        return None, row["number"] if row else 0
    last_key = [end[name] for name in scan.key]
    row = await tx.one(scan.count, **where, **scan.parameters(last_key, "to_"))
    return last_key, row["number"] if row else 0


def _remove_moved(table: HistoryTable, version: int) -> str:
    """Invalidate the earlier rows of facts that moved in time while nothing was fed; they have a later row elsewhere."""
    gone = {name: repr(value) for name, value in table.gone.items()}
    columns = ", ".join(gone.get(name, str(version) if name == "version" else name) for name in table.columns)
    fact, counts = ", ".join(_IDENTITY[table]), _COUNTS[table]
    return (
        f"INSERT INTO {table.name} SELECT {columns} FROM {table.name} FINAL WHERE {counts} AND version < {version}"
        f" AND ({fact}) IN (SELECT {fact} FROM {table.name} FINAL WHERE {counts} AND version >= {version})"
    )
