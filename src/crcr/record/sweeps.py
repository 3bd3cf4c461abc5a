"""What time does to records: silent jobs time out, old bodies and finished effects go, in small steps."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import text

from crcr.decide.commit import Verification
from crcr.decide.lifecycle import LIFECYCLE, Apply, JobEvent
from crcr.decide.model import JobState, RepoName
from crcr.record.commits import ask_again
from crcr.record.counting import recount
from crcr.record.database import Database, Row, Tx
from crcr.record.effect_rows import add_once
from crcr.record.log_rows import note_change
from crcr.record.lookups import look_up
from crcr.record.publishing import Publishing
from crcr.record.refusals import FORGET_REFUSALS
from crcr.record.sandbox import FORGET_SANDBOX, KEPT_FOR
from crcr.record.statement import Statement
from crcr.record.times import to_us
from crcr.record.views_refusals import SHOWN_FOR

_STEP = 500
_KEEP_CHANGES = timedelta(days=1)
_KEEP_FINISHED = timedelta(days=7)
_PATIENCE = timedelta(hours=1)
"""How long GitHub may take to say what became of a silent job; then it has timed out."""

_KEY = ("upstream", "delivery", "downstream", "workflow", "run_id", "attempt", "job_name")

_SILENT = Statement(
    text(
        "SELECT upstream, delivery, downstream, workflow, run_id, attempt, job_name, number, level, event, head_sha,"
        " asked_at, verification FROM jobs"
        " WHERE state = 'in_progress' AND silent_at <= :now ORDER BY silent_at LIMIT :most"
    )
)
_ASKED = Statement(
    text(
        "UPDATE jobs SET asked_at = :now, silent_at = :patience WHERE upstream = :upstream AND delivery = :delivery"
        " AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id AND attempt = :attempt"
        " AND job_name = :job_name AND state = 'in_progress'"
    )
)
_TIME_OUT = Statement(
    text(
        "UPDATE jobs SET state = :state, swept_at = :now WHERE upstream = :upstream AND delivery = :delivery"
        " AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id AND attempt = :attempt"
        " AND job_name = :job_name AND state = 'in_progress'"
    )
)
_FORGET_BODIES = Statement(
    text(
        "UPDATE deliveries SET body = NULL WHERE (guid, upstream) IN (SELECT guid, upstream FROM deliveries"
        " WHERE body IS NOT NULL AND received_at < :before"
        # What is still to be sent, or can still be retried, needs its body however old it is.
        " AND NOT EXISTS (SELECT 1 FROM dispatches d WHERE d.delivery = deliveries.guid"
        " AND d.upstream = deliveries.upstream AND d.state IN ('held', 'waiting', 'parked'))"
        # GitHub re-runs nothing that is older than a month: then an open head's backends are dispatched anew.
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


class Sweeps:
    def __init__(self, database: Database, publishing: Publishing, keep_bodies: timedelta) -> None:
        self._database = database
        self._publishing = publishing
        self._keep_bodies = keep_bodies

    async def time_out_silent(self, now: datetime) -> int:
        """Have silent jobs looked up, and time out those that nobody can look up; return how many of these.

        A late result is still taken.
        """
        timed_out = 0

        async def unit(tx: Tx) -> int:
            nonlocal timed_out
            silent = await tx.all(_SILENT, now=to_us(now), most=_STEP)
            for row in silent:
                if row["asked_at"] is None and row["verification"] != Verification.SELF_REPORTED:
                    await self._ask(tx, row, now)
                else:
                    await self._time_out(tx, row, now)
                    timed_out += 1
            return len(silent)

        await _step_by_step(lambda: self._database.write(unit))
        return timed_out

    async def _ask(self, tx: Tx, row: Row, now: datetime) -> None:
        key = {name: row[name] for name in _KEY}
        await tx.run(_ASKED, now=to_us(now), patience=to_us(now + _PATIENCE), **key)
        await add_once(tx, look_up(row["upstream"], row["delivery"], row["downstream"], now))

    async def _time_out(self, tx: Tx, row: Row, now: datetime) -> None:
        verdict = LIFECYCLE[JobState.IN_PROGRESS, JobEvent.WENT_SILENT]
        state = verdict.state if isinstance(verdict, Apply) else JobState.IN_PROGRESS
        key = {name: row[name] for name in _KEY}
        await tx.run(_TIME_OUT, now=to_us(now), state=state.value, **key)
        await recount(tx, key)
        where = {"downstream": row["downstream"], "delivery": row["delivery"], "number": row["number"]}
        await note_change(tx, RepoName(row["upstream"]), "job", now=now, **where)
        await self._publishing.again_for(tx, row, now)

    async def ask_about_commits(self, now: datetime) -> None:
        """Have GitHub asked about commits that it was not asked about, or has not answered for."""

        async def unit(tx: Tx) -> None:
            for upstream in self._publishing.upstreams:
                await ask_again(tx, upstream, now)

        await self._database.write(unit)

    async def forget(self, now: datetime) -> None:
        """Let go of what is kept for a while only: raw bodies, finished effects, live changes, refusals, the sandbox."""
        for statement, before in (
            (_FORGET_BODIES, now - self._keep_bodies),
            (_FORGET_EFFECTS, now - _KEEP_FINISHED),
            (_FORGET_CHANGES, now - _KEEP_CHANGES),
            (FORGET_REFUSALS, now - SHOWN_FOR),
            (FORGET_SANDBOX, now - KEPT_FOR),
        ):
            await _step_by_step(partial(self._remove, statement, before))

    async def _remove(self, statement: Statement, before: datetime) -> int:
        return await self._database.write(lambda tx: tx.run(statement, before=to_us(before), most=_STEP))


async def _step_by_step(step: Callable[[], Awaitable[int]]) -> int:
    """Repeat until a step was not full, so that no transaction grows long."""
    total = 0
    while True:
        done = await step()
        total += done
        if done < _STEP:
            return total
