"""Retention: deletes old rows in small steps.

Each step is a unit of its own with few rows, and other writers run between two steps, so none waits long however much
there is to delete. Any step may be the last: the next run finds the rest by its age. Open records stay, and so do the
sums: figures over any window are the same before and after.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import text

from crcr.decide.dispatch.webhook_body import REMEMBERED_FOR
from crcr.decide.model import RepoName
from crcr.record.change_and_audit_log import note_act
from crcr.record.deliveries.webhooks import FORGET_DIGESTS
from crcr.record.jobs.refusals import FORGET_REFUSALS
from crcr.record.jobs.sandbox import FORGET_SANDBOX, KEPT_FOR
from crcr.record.notices.threads import forget_threads
from crcr.record.store.database import Database, Tx, Unit
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.upkeep.old_deliveries import START, DeletionCursor, forget_deliveries, open_effects
from crcr.record.upkeep.old_results import (
    OTHER_ROWS,
    forget_failures,
    forget_imported,
    forget_ingested,
    forget_own_reports,
    next_backend,
    next_failing_backend,
    next_imported_backend,
)
from crcr.record.views.joining.setup import SHOWN_FOR

MOST_ROWS = 200
"""That one unit deletes."""
_MOST_THREADS = 20
"""That one unit deletes, each with its events and messages."""
_KEEP_CHANGES = timedelta(days=1)

_FORGET_BODIES = Statement(
    text(
        "UPDATE deliveries SET body = NULL WHERE (guid, upstream) IN (SELECT guid, upstream FROM deliveries"
        " WHERE body IS NOT NULL AND received_at < :before"
        # A dispatch that is still to be sent, or can be retried, needs its body however old it is.
        " AND NOT EXISTS (SELECT 1 FROM dispatches d WHERE d.delivery = deliveries.guid"
        " AND d.upstream = deliveries.upstream AND d.state IN ('held', 'waiting', 'parked'))"
        # GitHub re-runs nothing that is older than a month: then the backends of an open head are dispatched again.
        " AND NOT EXISTS (SELECT 1 FROM dispatches d JOIN pulls p ON p.upstream = d.upstream AND p.number = d.number"
        " AND p.head_sha = d.head_sha AND p.is_open = 1 WHERE d.delivery = deliveries.guid"
        " AND d.upstream = deliveries.upstream AND d.level >= 3)"
        " ORDER BY received_at LIMIT :most)"
    )
)
_FORGET_EFFECTS = Statement(
    text(
        "DELETE FROM effects WHERE effect_id IN (SELECT effect_id FROM effects"
        " WHERE state IN ('done', 'cancelled') AND finished_at < :before ORDER BY finished_at LIMIT :most)"
    )
)
_FORGET_CHANGES = Statement(
    text(
        "DELETE FROM changes WHERE change_id IN (SELECT change_id FROM changes WHERE at < :before"
        " AND change_id < (SELECT max(change_id) FROM changes) ORDER BY change_id LIMIT :most)"
    )
)
_UPSTREAMS = Statement(text("SELECT upstream FROM upstreams ORDER BY upstream"))
_OLD_ACTS = Statement(
    text("SELECT count(*) AS number FROM audit WHERE upstream = :upstream AND at < :before")
)
_FORGET_ACTS = Statement(
    text(
        "DELETE FROM audit WHERE audit_id IN (SELECT audit_id FROM audit WHERE upstream = :upstream AND at < :before"
        " ORDER BY at LIMIT :most)"
    )
)


async def _at_once() -> None:
    await asyncio.sleep(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPeriods:
    """How long rows are kept; None is for ever."""

    bodies: timedelta
    effects: timedelta
    jobs: timedelta | None
    """Deliveries with their dispatches, runs and jobs, other results, the failures and base commits behind verdicts, and bisections."""
    audit: timedelta | None
    """Audit log, and threads of notices that are closed."""


class Retention:
    def __init__(
        self,
        database: Database,
        keeps: RetentionPeriods,
        *,
        goes_on: Callable[[], bool] = lambda: True,
        breathe: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        """`goes_on` is called before each step; `breathe` is awaited between two."""
        self._database = database
        self._keeps = keeps
        self._goes_on = goes_on
        self._breathe = breathe

    async def forget(self, now: datetime) -> None:
        """Delete everything that is older than its retention period."""
        for statement, kept in (
            (_FORGET_BODIES, self._keeps.bodies),
            (_FORGET_EFFECTS, self._keeps.effects),
            (_FORGET_CHANGES, _KEEP_CHANGES),
            (FORGET_REFUSALS, SHOWN_FOR),
            (FORGET_SANDBOX, KEPT_FOR),
            (FORGET_DIGESTS, REMEMBERED_FOR),
        ):
            await self._remove(statement, before=to_us(now - kept))
        for row in await self._database.read(lambda tx: tx.all(_UPSTREAMS)):
            if not self._goes_on():
                return
            if self._keeps.jobs is not None:
                await self._forget_results(row["upstream"], to_us(now - self._keeps.jobs))
            if self._keeps.audit is not None:
                await self._forget_acts(row["upstream"], now, now - self._keeps.audit)
                before = to_us(now - self._keeps.audit)
                await self._until_none(
                    partial(forget_threads, upstream=row["upstream"], before=before, most=_MOST_THREADS)
                )

    async def _forget_results(self, upstream: str, before: int) -> None:
        await self._forget_deliveries(upstream, before)
        for ingested, forget in ((False, forget_own_reports), (True, forget_ingested)):
            after = ""
            while self._goes_on() and (
                downstream := await self._database.quick_read(
                    partial(next_backend, upstream=upstream, after=after, ingested=ingested)
                )
            ):
                await self._until_none(
                    partial(forget, upstream=upstream, downstream=downstream, before=before, most=MOST_ROWS)
                )
                after = downstream
        await self._forget_imported(upstream, before)
        await self._forget_failures(upstream, before)

    async def _forget_imported(self, upstream: str, before: int) -> None:
        after = ""
        while self._goes_on() and (
            downstream := await self._database.quick_read(
                partial(next_imported_backend, upstream=upstream, after=after)
            )
        ):
            await self._until_none(
                partial(
                    forget_imported, upstream=upstream, downstream=downstream, before=before, most=MOST_ROWS
                )
            )
            after = downstream

    async def _forget_failures(self, upstream: str, before: int) -> None:
        after = ""
        while self._goes_on() and (
            downstream := await self._database.quick_read(
                partial(next_failing_backend, upstream=upstream, after=after)
            )
        ):
            await self._until_none(
                partial(
                    forget_failures, upstream=upstream, downstream=downstream, before=before, most=MOST_ROWS
                )
            )
            after = downstream
        for statement in OTHER_ROWS:
            await self._remove(statement, upstream=upstream, before=before)

    async def _forget_deliveries(self, upstream: str, before: int) -> None:
        kept = await self._database.read(lambda tx: open_effects(tx, upstream))
        cursor: DeletionCursor | None = START
        while cursor is not None and self._goes_on():
            unit = partial(
                forget_deliveries, upstream=upstream, before=before, cursor=cursor, most=MOST_ROWS, kept=kept
            )
            step = await self._database.write(unit)
            cursor = step.cursor
            if cursor is not None:
                await self._breathe()

    async def _forget_acts(self, upstream: str, now: datetime, before: datetime) -> None:
        """By whole days, so that this adds one line a day to the audit log."""
        before = before.replace(hour=0, minute=0, second=0, microsecond=0)
        of: dict[str, Any] = {"upstream": upstream, "before": to_us(before)}

        async def announce(tx: Tx) -> bool:
            row = await tx.one(_OLD_ACTS, **of)
            number = row["number"] if row else 0
            if number:
                await note_act(
                    tx,
                    RepoName(upstream),
                    who="crcr",
                    act="audit_pruned",
                    subject=upstream,
                    now=now,
                    lines=number,
                    before=before.date().isoformat(),
                )
            return bool(number)

        if self._goes_on() and await self._database.write(announce):
            await self._remove(_FORGET_ACTS, **of)

    async def _remove(self, statement: Statement, **which: Any) -> None:
        await self._until_none(lambda tx: tx.run(statement, most=MOST_ROWS, **which))

    async def _until_none(self, unit: Unit[int]) -> None:
        """Repeat until nothing is left to delete, or the process stops."""
        while self._goes_on():
            removed = await self._database.write(unit)
            if not removed:
                return
            await self._breathe()
