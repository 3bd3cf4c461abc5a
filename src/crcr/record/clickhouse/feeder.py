"""Feeding ClickHouse from the queue `unfed`: reads the current facts, inserts them, and deletes what was inserted.

Rows of `unfed` are deleted one by one by their number: on PostgreSQL a smaller number may be committed after a larger
one. A row's version in ClickHouse is its number plus `base`, which is raised when ClickHouse is ahead of us, as after a
restored backup. Killed between insert and delete, a process inserts the same rows again with the same versions; nothing
is counted twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ClauseElement, and_, bindparam, select, text

from crcr.record.clickhouse.connection import ClickHouseLink
from crcr.record.clickhouse.feed_queue import DISPATCH, JOB, note_effect
from crcr.record.clickhouse.feed_queue import INGESTED as INGESTED_KIND
from crcr.record.clickhouse.tables import (
    DISPATCH_FACTS,
    DISPATCHES,
    INGESTED,
    INGESTED_FACTS,
    JOB_FACTS,
    JOBS,
    TABLES,
    HistoryTable,
    ensure_schema,
)
from crcr.record.schema.main_tables import dispatches, jobs
from crcr.record.schema.statistics import FeedMark, ingested, unfed
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

_SEQS = Statement(text("SELECT seq FROM unfed WHERE upstream = :upstream ORDER BY seq LIMIT :most"))
_DELETE = Statement(text("DELETE FROM unfed WHERE seq = :seq"))
_MARK = Statement(text("SELECT value FROM feeding WHERE name = :name"))
_SET = Statement(
    text(
        "INSERT INTO feeding (name, value) VALUES (:name, :value)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    )
)
_FORGET = Statement(text("DELETE FROM feeding WHERE name = :name"))
_DELETE_ALL = Statement(text("DELETE FROM unfed"))
_HAS_FACTS = Statement(
    text(
        "SELECT 1 AS one WHERE EXISTS (SELECT 1 FROM dispatches WHERE delivery >= '')"
        " OR EXISTS (SELECT 1 FROM jobs WHERE delivery >= '') OR EXISTS (SELECT 1 FROM ingested WHERE delivery >= '')"
    )
)
_RESERVE = Statement(
    text(
        "INSERT INTO unfed (kind, upstream, downstream, delivery, due_at) VALUES ('none', '', '', '', 0) RETURNING seq"
    )
)


def _facts(kind: str, table: Any, columns: Sequence[Any], **names: str) -> Statement:
    """The facts behind the queued rows of one kind with these numbers; a deleted fact has no row."""
    key = ("upstream", "downstream", "delivery")
    same = [table.c[name] == unfed.c[name] for name in key]
    same += [table.c[column] == unfed.c[unfed_column] for column, unfed_column in names.items()]
    query: ClauseElement = (
        select(unfed.c.seq, unfed.c.was_at, *columns)
        .select_from(unfed.join(table, and_(*same)))
        .where(
            unfed.c.upstream == bindparam("of_upstream"),
            unfed.c.kind == kind,
            unfed.c.seq >= bindparam("first"),
            unfed.c.seq <= bindparam("last"),
        )
        .order_by(unfed.c.seq)
    )
    return Statement(query)


_RUN = {name: name for name in ("workflow", "run_id", "attempt", "job_name")}
_KINDS: tuple[tuple[HistoryTable, Statement], ...] = (
    (JOBS, _facts(JOB, jobs, JOB_FACTS, **_RUN)),
    (DISPATCHES, _facts(DISPATCH, dispatches, DISPATCH_FACTS)),
    (
        INGESTED,
        _facts(
            INGESTED_KIND,
            ingested,
            INGESTED_FACTS,
            workflow_name="workflow",
            job_name="job_name",
            check_run="check_run",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class FeedBatch:
    """Rows to insert by table, and the numbers of their queued facts."""

    seqs: tuple[int, ...] = ()
    rows: tuple[tuple[HistoryTable, list[list[Any]]], ...] = ()


class FeedQueue:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def turn_on(self, upstreams: Sequence[str], now: datetime) -> None:
        """Queue facts from now on. An empty database is complete in ClickHouse at once; another one needs a backfill."""

        async def unit(tx: Tx) -> None:
            if await tx.one(_MARK, name=FeedMark.SINCE) is None:
                await tx.run(_SET, name=FeedMark.SINCE, value=str(to_us(now)))
                if await tx.one(_HAS_FACTS) is None:
                    await tx.run(_SET, name=FeedMark.WHOLE, value=str(to_us(now)))
            for upstream in upstreams:
                note_effect(tx, upstream, to_us(now), to_us(now))

        await self._database.write(unit)

    async def turn_off(self) -> bool:
        """Queue facts no longer, so that ClickHouse is no longer complete. Return whether facts were queued until now."""

        async def unit(tx: Tx) -> bool:
            was_fed = bool(await tx.run(_FORGET, name=FeedMark.SINCE))
            if was_fed:
                await tx.run(_FORGET, name=FeedMark.WHOLE)
                await tx.run(_DELETE_ALL)
            return was_fed

        return await self._database.write(unit)

    async def batch(self, upstream: str, most: int) -> FeedBatch:
        """The oldest queued rows, with the current facts."""

        async def unit(tx: Tx) -> FeedBatch:
            seqs = tuple(row["seq"] for row in await tx.all(_SEQS, upstream=upstream, most=most))
            if not seqs:
                return FeedBatch()
            base = int(await mark(tx, FeedMark.BASE) or 0)
            where = {"of_upstream": upstream, "first": seqs[0], "last": seqs[-1]}
            by_table = [(table, _rows(table, await tx.all(facts, **where), base)) for table, facts in _KINDS]
            return FeedBatch(seqs, tuple((table, rows) for table, rows in by_table if rows))

        return await self._database.read(unit)

    async def remove(self, upstream: str, batch: FeedBatch) -> None:
        """Remove a batch that ClickHouse has inserted."""

        async def unit(tx: Tx) -> None:
            await tx.many(_DELETE, ({"seq": seq} for seq in batch.seqs))

        await self._database.write(unit, lane=f"{upstream}/history")

    async def feed_later(self, upstream: str, now: datetime, due_at: datetime) -> None:
        async def unit(tx: Tx) -> None:
            note_effect(tx, upstream, to_us(now), to_us(due_at))

        await self._database.write(unit)

    async def reserve(self) -> int:
        """A version above all facts queued before, and below all facts queued later."""

        async def unit(tx: Tx) -> int:
            return int(await mark(tx, FeedMark.BASE) or 0) + await _next_number(tx)

        return await self._database.write(unit)

    async def raise_versions_above(self, highest: int) -> None:
        """Make all later versions larger than this one, the highest in ClickHouse."""

        async def unit(tx: Tx) -> None:
            base, number = int(await mark(tx, FeedMark.BASE) or 0), await _next_number(tx)
            if base + number <= highest:
                await tx.run(_SET, name=FeedMark.BASE, value=str(highest - number + 1))

        await self._database.write(unit)

    async def set_mark(self, name: FeedMark, value: str) -> None:
        await self._database.write(lambda tx: tx.run(_SET, name=name, value=value))

    async def forget_mark(self, name: FeedMark) -> None:
        await self._database.write(lambda tx: tx.run(_FORGET, name=name))

    async def mark(self, name: FeedMark) -> str | None:
        return await self._database.read(lambda tx: mark(tx, name))


async def mark(tx: Tx, name: FeedMark) -> str | None:
    row = await tx.one(_MARK, name=name)
    return row["value"] if row else None


async def _next_number(tx: Tx) -> int:
    row = await tx.one(_RESERVE)
    seq: int = row["seq"] if row else 0
    await tx.run(_DELETE, seq=seq)
    return seq


def _rows(table: HistoryTable, facts: list[Row], base: int) -> list[list[Any]]:
    return [row for fact in facts for row in table.rows(fact, base + fact["seq"], fact["was_at"])]


_HIGHEST = " UNION ALL ".join(f"SELECT max(version) AS version FROM {table.name}" for table in TABLES)  # noqa: S608  ours


class ClickHouseFeeder:
    def __init__(self, queue: FeedQueue, link: ClickHouseLink, keep_days: int | None) -> None:
        self._queue = queue
        self._link = link
        self._keep_days = keep_days
        self._ready = False

    async def make_ready(self) -> None:
        """Create the tables, set their retention, and raise our versions above theirs; once per process."""
        if self._ready:
            return
        await ensure_schema(self._link, self._keep_days)
        highest = await self._link.query_slowly(_HIGHEST)
        await self._queue.raise_versions_above(max(row["version"] for row in highest))
        self._ready = True

    async def feed(self, upstream: str, most: int) -> int:
        batch = await self._queue.batch(upstream, most)
        for table, rows in batch.rows:
            await self._link.insert(table.name, table.columns, rows)
        if batch.seqs:
            await self._queue.remove(upstream, batch)
        return len(batch.seqs)

    async def again(self, upstream: str, now: datetime, due_at: datetime) -> None:
        await self._queue.feed_later(upstream, now, due_at)
