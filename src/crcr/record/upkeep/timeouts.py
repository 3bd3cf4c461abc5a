"""Time-outs of open records: silent jobs are looked up at GitHub and then time out, in small steps."""

from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.checks.commit import Verification
from crcr.decide.jobs.lifecycle import LIFECYCLE, Apply, JobEvent
from crcr.decide.model import JobState, RepoName
from crcr.record.change_and_audit_log import note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.jobs.tested_commits import verify_unanswered_commits
from crcr.record.outbox.effects import add_once
from crcr.record.statistics.recount_changed_jobs import recount
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.workflow_runs.lookup_effects import look_up_effect

_STEP = 500
_PATIENCE = timedelta(hours=1)
"""How long the look-up of a silent job may take; then the job has timed out."""

_KEY = ("upstream", "delivery", "downstream", "workflow", "run_id", "attempt", "job_name")

_SILENT = Statement(
    text(
        "SELECT upstream, delivery, downstream, workflow, run_id, attempt, job_name, number, level, event, head_sha,"
        " asked_at, verification FROM jobs"
        " WHERE state = 'in_progress' AND silent_at <= :now ORDER BY silent_at LIMIT :most"
    )
)
_MARK_LOOKED_UP = Statement(
    text(
        "UPDATE jobs SET asked_at = :now, silent_at = :patience WHERE upstream = :upstream AND delivery = :delivery"
        " AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id AND attempt = :attempt"
        " AND job_name = :job_name AND state = 'in_progress'"
    )
)


class Sweeps:
    def __init__(self, database: Database, refresher: CheckRefresher, outcomes: JobOutcomes) -> None:
        self._database = database
        self._refresher = refresher
        self._outcomes = outcomes

    async def time_out_silent(self, now: datetime) -> int:
        """Look up silent jobs, and time out those that cannot be looked up; return how many timed out.

        A late result is still accepted.
        """

        async def unit(tx: Tx) -> tuple[int, int]:
            silent = await tx.all(_SILENT, now=to_us(now), most=_STEP)
            timed_out = 0
            for row in silent:
                if row["asked_at"] is None and row["verification"] != Verification.SELF_REPORTED:
                    await self._look_up(tx, row, now)
                else:
                    await self._time_out(tx, row, now)
                    timed_out += 1
            return len(silent), timed_out

        handled, total = _STEP, 0
        while handled == _STEP:  # so that no transaction grows long
            handled, timed_out = await self._database.write(unit)
            total += timed_out
        return total

    async def _look_up(self, tx: Tx, row: Row, now: datetime) -> None:
        key = {name: row[name] for name in _KEY}
        await tx.run(_MARK_LOOKED_UP, now=to_us(now), patience=to_us(now + _PATIENCE), **key)
        await add_once(tx, look_up_effect(row["upstream"], row["delivery"], row["downstream"], now))

    async def _time_out(self, tx: Tx, row: Row, now: datetime) -> None:
        verdict = LIFECYCLE[JobState.IN_PROGRESS, JobEvent.WENT_SILENT]
        state = verdict.state if isinstance(verdict, Apply) else JobState.IN_PROGRESS
        key = {name: row[name] for name in _KEY}
        await self._outcomes.time_out(tx, key, state, now)
        await recount(tx, key, now)
        await self._outcomes.follow(tx, key, now)
        where = {"downstream": row["downstream"], "delivery": row["delivery"], "number": row["number"]}
        await note_change(tx, RepoName(row["upstream"]), "job", now=now, **where)
        await self._refresher.request_refresh_for(tx, row, now)

    async def ask_about_commits(self, now: datetime) -> None:
        """Request the verification of commits that GitHub was not asked about, or has not answered for."""

        async def unit(tx: Tx) -> None:
            for upstream in self._refresher.upstreams:
                await verify_unanswered_commits(tx, upstream, now)

        await self._database.write(unit)
