"""What ClickHouse is still to be told, with the facts as they are now; and whether it is told anything at all.

Rows of `unfed` go only by their own numbers, once they are fed: on PostgreSQL a smaller number may be committed after
a larger one. A version is a number of `unfed` plus `base`, which is raised when ClickHouse is found ahead of us, as
after a backup was put back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ClauseElement, and_, bindparam, select, text

from crcr.record.clickhouse.fed_columns import DISPATCH_FACTS, INGESTED_FACTS, JOB_FACTS
from crcr.record.clickhouse.feed_queue import DISPATCH, JOB, note_effect
from crcr.record.clickhouse.feed_queue import INGESTED as OF_OTHERS
from crcr.record.clickhouse.rows import DISPATCHES, INGESTED, JOBS, HistoryTable
from crcr.record.schema.clickhouse_feed import Mark, unfed
from crcr.record.schema.core import dispatches, jobs
from crcr.record.schema.statistics import ingested
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

_SEQS = Statement(text("SELECT seq FROM unfed WHERE upstream = :upstream ORDER BY seq LIMIT :most"))
_FED = Statement(text("DELETE FROM unfed WHERE seq = :seq"))
_MARK = Statement(text("SELECT value FROM feeding WHERE name = :name"))
_SET = Statement(
    text(
        "INSERT INTO feeding (name, value) VALUES (:name, :value)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    )
)
_FORGET = Statement(text("DELETE FROM feeding WHERE name = :name"))
_NOTHING_UNFED = Statement(text("DELETE FROM unfed"))
_ANYTHING = Statement(
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
    """The facts behind the rows of one kind with these numbers; without one where the fact is gone."""
    own = ("upstream", "downstream", "delivery")
    same = [table.c[name] == unfed.c[name] for name in own]
    same += [table.c[mine] == unfed.c[theirs] for mine, theirs in names.items()]
    found: ClauseElement = (
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
    return Statement(found)


_RUN = {name: name for name in ("workflow", "run_id", "attempt", "job_name")}
_KINDS: tuple[tuple[HistoryTable, Statement], ...] = (
    (JOBS, _facts(JOB, jobs, JOB_FACTS, **_RUN)),
    (DISPATCHES, _facts(DISPATCH, dispatches, DISPATCH_FACTS)),
    (
        INGESTED,
        _facts(
            OF_OTHERS,
            ingested,
            INGESTED_FACTS,
            workflow_name="workflow",
            job_name="job_name",
            check_run="check_run",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to insert by table, and the numbers of what they are about."""

    seqs: tuple[int, ...] = ()
    rows: tuple[tuple[HistoryTable, list[list[Any]]], ...] = ()


class Feeding:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def turn_on(self, upstreams: Sequence[str], now: datetime) -> None:
        """From now on facts are noted; whoever is new to it has all there is, and others want a backfill."""

        async def unit(tx: Tx) -> None:
            if await tx.one(_MARK, name=Mark.SINCE) is None:
                await tx.run(_SET, name=Mark.SINCE, value=str(to_us(now)))
                if await tx.one(_ANYTHING) is None:
                    await tx.run(_SET, name=Mark.WHOLE, value=str(to_us(now)))
            for upstream in upstreams:
                note_effect(tx, upstream, to_us(now), to_us(now))

        await self._database.write(unit)

    async def turn_off(self) -> bool:
        """Nothing is fed any more, so nothing need be noted, and what ClickHouse has is no longer all.

        Return whether something was fed until now.
        """

        async def unit(tx: Tx) -> bool:
            was_fed = bool(await tx.run(_FORGET, name=Mark.SINCE))
            if was_fed:
                await tx.run(_FORGET, name=Mark.WHOLE)
                await tx.run(_NOTHING_UNFED)
            return was_fed

        return await self._database.write(unit)

    async def batch(self, upstream: str, most: int) -> Batch:
        """What is unfed the longest, with the facts as they are now."""

        async def unit(tx: Tx) -> Batch:
            seqs = tuple(row["seq"] for row in await tx.all(_SEQS, upstream=upstream, most=most))
            if not seqs:
                return Batch()
            base = int(await mark(tx, Mark.BASE) or 0)
            where = {"of_upstream": upstream, "first": seqs[0], "last": seqs[-1]}
            made = [(table, _rows(table, await tx.all(facts, **where), base)) for table, facts in _KINDS]
            return Batch(seqs, tuple((table, rows) for table, rows in made if rows))

        return await self._database.read(unit)

    async def fed(self, upstream: str, batch: Batch) -> None:
        async def unit(tx: Tx) -> None:
            await tx.many(_FED, ({"seq": seq} for seq in batch.seqs))

        await self._database.write(unit, lane=f"{upstream}/history")

    async def again(self, upstream: str, now: datetime, due_at: datetime) -> None:
        async def unit(tx: Tx) -> None:
            note_effect(tx, upstream, to_us(now), to_us(due_at))

        await self._database.write(unit)

    async def reserve(self) -> int:
        """A version above all that was noted before, and below all that will be."""

        async def unit(tx: Tx) -> int:
            return int(await mark(tx, Mark.BASE) or 0) + await _number(tx)

        return await self._database.write(unit)

    async def outnumber(self, highest: int) -> None:
        """Have all versions from now on lie above this one, the highest that ClickHouse had before it was asked."""

        async def unit(tx: Tx) -> None:
            base, number = int(await mark(tx, Mark.BASE) or 0), await _number(tx)
            if base + number <= highest:
                await tx.run(_SET, name=Mark.BASE, value=str(highest - number + 1))

        await self._database.write(unit)

    async def set_mark(self, name: Mark, value: str) -> None:
        await self._database.write(lambda tx: tx.run(_SET, name=name, value=value))

    async def forget_mark(self, name: Mark) -> None:
        await self._database.write(lambda tx: tx.run(_FORGET, name=name))

    async def mark(self, name: Mark) -> str | None:
        return await self._database.read(lambda tx: mark(tx, name))


async def mark(tx: Tx, name: Mark) -> str | None:
    row = await tx.one(_MARK, name=name)
    return row["value"] if row else None


async def _number(tx: Tx) -> int:
    row = await tx.one(_RESERVE)
    seq: int = row["seq"] if row else 0
    await tx.run(_FED, seq=seq)
    return seq


def _rows(table: HistoryTable, facts: list[Row], base: int) -> list[list[Any]]:
    return [row for fact in facts for row in table.rows(fact, base + fact["seq"], fact["was_at"])]
