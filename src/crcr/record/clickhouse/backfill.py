"""All that the main store holds told to ClickHouse, by walking each table along its key in steps of a few thousand.

It may run beside a relay at work, be broken off and be taken up again. What is read here is at least as new as the
version that it is given, and whatever changes meanwhile is fed with a later one.
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
from crcr.record.clickhouse.connection import WHOLE_WITHIN_S, ClickHouseLink
from crcr.record.clickhouse.fed_columns import DISPATCH_FACTS, INGESTED_FACTS, JOB_FACTS
from crcr.record.clickhouse.feed_state import Feeding
from crcr.record.clickhouse.feeder import ClickHouseFeeder
from crcr.record.clickhouse.rows import DISPATCHES, INGESTED, JOBS, TABLES, HistoryTable
from crcr.record.schema.clickhouse_feed import Mark
from crcr.record.schema.core import dispatches, jobs
from crcr.record.schema.statistics import ingested
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

STEP = 2_000
COUNTED_AT_ONCE = 50_000
"""To count a large table at once takes longer than the main store lets a statement run."""
_EVENTS = ", ".join(f"'{event}'" for kind in ResultKind for event in kind.events)
Progress = Callable[[str, int, int], None]
"""Told the table, how many rows of it are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows that count, in the main store and in ClickHouse."""

    table: str
    here: int
    there: int


class _Walk:
    """One table of the main store, read along its key."""

    def __init__(self, table: Table, facts: Sequence[Column[Any]], counts: str) -> None:
        self.key = tuple(column.name for column in table.primary_key)
        self.start = [0 if isinstance(column.type, Integer) else "" for column in table.primary_key]
        columns, order = ", ".join(column.name for column in facts), ", ".join(self.key)
        behind, until = (f"({order}) {than} ({_place(table, of)})" for than, of in ((">", ""), ("<=", "to_")))
        count = f"SELECT count(*) AS number FROM {table.name} WHERE ({counts}) AND {behind}"
        self.rows = Statement(
            text(
                f"SELECT {columns} FROM {table.name} WHERE ({counts}) AND {behind} ORDER BY {order} LIMIT {STEP}"
            )
        )
        self.edge = Statement(
            text(f"SELECT {order} FROM {table.name} WHERE {behind} ORDER BY {order} LIMIT 1 OFFSET :at_once")
        )
        self.count = Statement(text(f"{count} AND {until}"))
        self.count_rest = Statement(text(count))

    def at(self, place: Sequence[Any], prefix: str = "") -> dict[str, Any]:
        return {f"{prefix}{name}": value for name, value in zip(self.key, place, strict=True)}


def _place(table: Table, prefix: str) -> str:
    names = [(f":{prefix}{column.name}", column.type) for column in table.primary_key]
    return ", ".join(f"CAST({name} AS integer)" if isinstance(of, Integer) else name for name, of in names)


_WALKS = {
    JOBS: _Walk(jobs, JOB_FACTS, f"ended_as IS NOT NULL AND event IN ({_EVENTS})"),
    DISPATCHES: _Walk(
        dispatches, DISPATCH_FACTS, f"sent_at IS NOT NULL AND test = 0 AND event IN ({_EVENTS})"
    ),
    INGESTED: _Walk(ingested, INGESTED_FACTS, "ended_as IS NOT NULL"),
}
_COUNTS = {JOBS: "ended_as <> ''", DISPATCHES: "sent = 1", INGESTED: "ended_as <> ''"}
# What tells a fact apart that may move in time.
_MOVES = {
    DISPATCHES: ("upstream", "downstream", "delivery"),
    INGESTED: ("upstream", "downstream", "delivery", "workflow", "job_name", "check_run"),
}


class Backfill:
    def __init__(
        self, database: Database, feeding: Feeding, feeder: ClickHouseFeeder, link: ClickHouseLink
    ) -> None:
        self._database = database
        self._feeding = feeding
        self._feeder = feeder
        self._link = link

    async def run(self, progress: Progress, now: datetime, *, anew: bool = False) -> tuple[Counted, ...]:
        """Tell everything, from where an earlier run was broken off; `anew` empties the tables first."""
        await self._feeder.make_ready()
        if anew:
            await self._feeding.forget_mark(Mark.BACKFILL)
            for table in TABLES:
                await self._link.command(f"TRUNCATE TABLE {table.name}")
        began = json.loads(await self._feeding.mark(Mark.BACKFILL) or "{}")
        if "version" not in began:
            began = {"version": await self._feeding.reserve()}
        for table in TABLES:
            await self._walk(table, began, progress)
            if table in _MOVES:
                await self._link.command(_mended(table, began["version"]), WHOLE_WITHIN_S)
        await self._feeding.set_mark(Mark.WHOLE, str(to_us(now)))
        await self._feeding.forget_mark(Mark.BACKFILL)
        return tuple([await self._counted(table) for table in TABLES])

    async def _walk(self, table: HistoryTable, began: dict[str, Any], progress: Progress) -> None:
        walk, total = _WALKS[table], await self._number(table)
        place, done = began.get(table.name, (None, 0))
        progress(table.name, done, total)
        while True:
            version = await self._feeding.reserve()
            rows = await self._step(walk, place)
            if not rows:
                return
            fed = [row for fact in rows for row in table.rows(fact, version)]
            if fed:
                await self._link.insert(table.name, table.columns, fed)
            place, done = [rows[-1][name] for name in walk.key], done + len(rows)
            began[table.name] = (place, done)
            await self._feeding.set_mark(Mark.BACKFILL, json.dumps(began))
            progress(table.name, done, max(done, total))

    async def _step(self, walk: _Walk, place: list[Any] | None) -> list[Row]:
        where = walk.at(place or walk.start)
        return await self._database.read(lambda tx: tx.all(walk.rows, **where))

    async def _counted(self, table: HistoryTable) -> Counted:
        asked = f"SELECT count() AS number FROM {table.name} FINAL WHERE {_COUNTS[table]}"
        there = (await self._link.ask_patiently(asked, WHOLE_WITHIN_S))[0]["number"]
        return Counted(table.name, await self._number(table), there)

    async def _number(self, table: HistoryTable) -> int:
        walk, number = _WALKS[table], 0
        place: list[Any] | None = walk.start
        while place is not None:
            place, counted = await self._database.read(partial(_count_on, walk, place))
            number += counted
        return number


async def _count_on(walk: _Walk, place: list[Any], tx: Tx) -> tuple[list[Any] | None, int]:
    """Count from behind this place on; return up to where, or None for the end, and how many."""
    where = walk.at(place)
    edge = await tx.one(walk.edge, at_once=COUNTED_AT_ONCE, **where)
    if edge is None:
        row = await tx.one(walk.count_rest, **where)
        return None, row["number"] if row else 0
    there = [edge[name] for name in walk.key]
    row = await tx.one(walk.count, **where, **walk.at(there, "to_"))
    return there, row["number"] if row else 0


def _mended(table: HistoryTable, version: int) -> str:
    """Take away where a fact stood that moved in time while nobody fed: it now stands elsewhere, with a later version."""
    gone = {name: repr(value) for name, value in table.gone.items()}
    columns = ", ".join(gone.get(name, str(version) if name == "version" else name) for name in table.columns)
    fact, counts = ", ".join(_MOVES[table]), _COUNTS[table]
    return (
        f"INSERT INTO {table.name} SELECT {columns} FROM {table.name} FINAL WHERE {counts} AND version < {version}"
        f" AND ({fact}) IN (SELECT {fact} FROM {table.name} FINAL WHERE {counts} AND version >= {version})"
    )
