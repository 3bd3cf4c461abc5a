"""GitHub's view of runs and jobs, recorded beside what was reported: from look-ups and from webhooks.

A run that is known by its name only (it has not reported) is marked as such: it has no results, it only shows that a
backend has not finished.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, select, text

from crcr.decide.checks.commit import Verification
from crcr.decide.checks.verification import (
    ReportedJob,
    compare_silent_with_github,
    compare_with_github,
    match_github_jobs,
)
from crcr.decide.github.requests_and_answers import ActionsJob, ActionsRun
from crcr.decide.jobs.lifecycle import LIFECYCLE, Apply, JobEvent
from crcr.decide.model import Conclusion, JobState
from crcr.record.clickhouse.feed_queue import note_job
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.schema.main_tables import jobs
from crcr.record.statistics.recount_changed_jobs import recount
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us

GRACE = timedelta(minutes=10)
"""Reports may still be on their way when GitHub's run has ended; after this time none is expected."""

_ADD_RUN = Statement(
    text(
        "INSERT INTO runs (run_id, upstream, downstream, delivery, workflow, workflow_name, issuer, first_seen_at,"
        " reported, attempt, attempt_at) VALUES (:run_id, :upstream, :downstream, :delivery, :workflow,"
        " :workflow_name, 'github', :at, 0, :attempt, :at) ON CONFLICT DO NOTHING"
    )
)
_UPDATE_RUN = Statement(
    text(
        "UPDATE runs SET attempt_at = CASE WHEN attempt < :attempt THEN :at ELSE attempt_at END,"
        " attempt = CASE WHEN attempt < :attempt THEN :attempt ELSE attempt END, over_attempt = CASE WHEN :over = 1 AND coalesce(over_attempt, 0) < :attempt"
        " THEN :attempt ELSE over_attempt END,"
        # How the attempt of `over_attempt` ended.
        " conclusion = CASE WHEN :over = 1 AND coalesce(over_attempt, 0) <= :attempt THEN :conclusion ELSE conclusion END"
        " WHERE run_id = :run_id AND upstream = :upstream AND downstream = :downstream"
    )
)
_SHORTEN_SILENCE = Statement(
    text(
        "UPDATE jobs SET silent_at = :at WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " AND workflow = :workflow AND run_id = :run_id AND state = 'in_progress' AND silent_at > :at AND attempt <= :attempt"
    )
)
_COLUMNS = (
    *("delivery", "upstream", "downstream", "workflow", "run_id", "attempt", "job_name", "reported_name"),
    *(
        "state",
        "conclusion",
        "first_conclusion",
        "opened_by",
        "closed_by",
        "in_progress_at",
        "silent_at",
        "asked_at",
        "verification",
    ),
)
_RUN_JOBS = Statement(
    select(*(jobs.c[name] for name in _COLUMNS)).where(
        jobs.c.delivery == bindparam("delivery"),
        jobs.c.upstream == bindparam("upstream"),
        jobs.c.downstream == bindparam("downstream"),
        jobs.c.workflow == bindparam("workflow"),
        jobs.c.run_id == bindparam("run_id"),
    )
)
_KEY = ("upstream", "delivery", "downstream", "workflow", "run_id", "attempt", "job_name")


async def record_run(tx: Tx, dispatch: Mapping[str, Any], run: ActionsRun, now: datetime) -> None:
    """Record the state of a run, and the `dispatch` that it answers."""
    key = {name: dispatch[name] for name in ("upstream", "downstream")}
    at = to_us(now)
    await tx.run(
        _ADD_RUN,
        run_id=str(run.run_id),
        delivery=dispatch["delivery"],
        workflow=run.workflow_path,
        workflow_name=run.workflow_name,
        attempt=run.attempt,
        at=at,
        **key,
    )
    await tx.run(
        _UPDATE_RUN,
        run_id=str(run.run_id),
        attempt=run.attempt,
        over=int(run.is_over),
        conclusion=(run.conclusion or Conclusion.NONE).value,
        at=at,
        **key,
    )


async def shorten_silence(tx: Tx, run: Row, attempt: int, now: datetime) -> None:
    """A run that is over sends no more reports: its open jobs are not waited for as long as running ones."""
    key = {name: run[name] for name in ("delivery", "upstream", "downstream", "workflow", "run_id")}
    await tx.run(_SHORTEN_SILENCE, at=to_us(now + GRACE), attempt=attempt, **key)


async def verify_jobs(
    tx: Tx,
    run: Row,
    github_jobs: Iterable[ActionsJob],
    outcomes: JobOutcomes,
    now: datetime,
    *,
    whole_run: ActionsRun | None = None,
) -> bool:
    """Compare GitHub's jobs with the reported ones of a run; True when something changed.

    `whole_run` is the run when `github_jobs` has all jobs of its attempts: a row without a match then has none.
    """
    key = {name: run[name] for name in ("delivery", "upstream", "downstream", "workflow", "run_id")}
    by_attempt: dict[int, list[ActionsJob]] = {}
    for job in github_jobs:
        by_attempt.setdefault(job.attempt, []).append(job)
    rows = await tx.all(_RUN_JOBS, **key)
    changed: list[Row] = []
    for row in rows:
        candidates = by_attempt.get(row["attempt"])
        if candidates is None or row["verification"] != Verification.UNCHECKED:
            continue
        reported = [_reported_job(other) for other in rows if other["attempt"] == row["attempt"]]
        matched = match_github_jobs(_reported_job(row), reported, candidates)
        if await _verify_job(tx, row, matched, outcomes, now, whole_run=whole_run):
            note_job(tx, {name: row[name] for name in _KEY}, now)
            changed.append(row)
    if changed:
        await recount(tx, key, now)
    for row in changed:
        await outcomes.follow(tx, _job_key(row), now)
    return bool(changed)


async def _verify_job(
    tx: Tx,
    row: Row,
    github_jobs: tuple[ActionsJob, ...],
    outcomes: JobOutcomes,
    now: datetime,
    *,
    whole_run: ActionsRun | None,
) -> bool:
    job = _reported_job(row)
    if job.state is JobState.COMPLETED:
        run_over = whole_run is not None and (whole_run.is_over or whole_run.attempt > row["attempt"])
        finding = compare_with_github(job, github_jobs, whole=whole_run is not None, run_over=run_over)
        if finding is None:
            return False
        counted_conclusion = finding.conclusion or job.conclusion or Conclusion.NONE
        await outcomes.verify(tx, _job_key(row), finding, counted_conclusion, now)
        return True
    if row["asked_at"] is None and row["silent_at"] > to_us(now):
        return False
    return await _end_silent(tx, row, github_jobs, outcomes, now, whole=whole_run is not None)


async def _end_silent(
    tx: Tx,
    row: Row,
    github_jobs: tuple[ActionsJob, ...],
    outcomes: JobOutcomes,
    now: datetime,
    *,
    whole: bool,
) -> bool:
    """End a silent job: with GitHub's conclusion where that is a failure, else as timed out."""
    end = compare_silent_with_github(github_jobs, whole=whole)
    if end is None:
        return False
    event = JobEvent.WENT_SILENT if end.conclusion is None else JobEvent.ENDED_ON_GITHUB
    verdict = LIFECYCLE[JobState(row["state"]), event]
    if not isinstance(verdict, Apply):
        return False
    ended_at = max((job.completed_at for job in github_jobs if job.completed_at), default=now)
    began_at = from_us(row["in_progress_at"])
    await outcomes.end(tx, _job_key(row), end, verdict.state, ended_at=max(ended_at, began_at), now=now)
    return True


def _reported_job(row: Row) -> ReportedJob:
    conclusion = row["conclusion"]
    return ReportedJob(
        job_name=row["job_name"],
        reported_name=row["reported_name"],
        state=JobState(row["state"]),
        conclusion=Conclusion(conclusion) if conclusion else None,
        opened_by=row["opened_by"],
        closed_by=row["closed_by"],
    )


def _job_key(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in _KEY}
