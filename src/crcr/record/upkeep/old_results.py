"""Deletes old results that belong to no delivery: self-reports of backends, and results of other relays.

Each backend's newest result stays, so that its page still shows the last report. Sums are not changed.
"""
# ruff: noqa: S608 - every name in these statements is our own

from typing import Any

from sqlalchemy import text

from crcr.record.schema.statistics import COUNTED
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.upkeep.old_deliveries import DROP_JOB

_NEXT_BACKEND = Statement(
    text("SELECT min(downstream) AS downstream FROM jobs WHERE upstream = :upstream AND downstream > :after")
)
_NEXT_INGESTED = Statement(
    text(
        "SELECT min(downstream) AS downstream FROM ingested WHERE upstream = :upstream AND downstream > :after"
    )
)
_KEY = "delivery, upstream, downstream, workflow, run_id, attempt, job_name"
_BACKEND = "upstream = :upstream AND downstream = :downstream"
_NEWER = (
    "EXISTS (SELECT 1 FROM jobs n WHERE n.upstream = jobs.upstream AND n.downstream = jobs.downstream"
    f" AND n.event = jobs.event AND n.ended_as IS NOT NULL AND n.ended_as IN {COUNTED}"
    " AND n.completed_at > jobs.completed_at)"
)
_ENDED = Statement(
    text(
        f"SELECT {_KEY} FROM jobs WHERE {_BACKEND} AND event = :event AND ended_as IS NOT NULL"
        f" AND completed_at < :before AND in_progress_at < :before AND {_NEWER} ORDER BY completed_at LIMIT :most"
    )
)
_SILENT = Statement(
    text(
        f"SELECT {_KEY} FROM jobs WHERE {_BACKEND} AND event = :event AND ended_as IS NOT NULL"
        " AND completed_at IS NULL AND in_progress_at < :before LIMIT :most"
    )
)
_DROP_BUILD = Statement(
    text(
        "DELETE FROM builds WHERE run_id = :run_id AND downstream = :downstream AND first_seen_at < :before"
        " AND NOT EXISTS (SELECT 1 FROM runs n WHERE n.run_id = builds.run_id AND n.downstream = builds.downstream)"
    )
)
_DROP_COMMIT = Statement(
    text(
        "DELETE FROM commits WHERE sha = :sha AND upstream = :upstream AND seen_at < :before"
        " AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.delivery = commits.sha AND j.upstream = commits.upstream)"
    )
)
_INGESTED = Statement(
    text(
        f"SELECT delivery, downstream, workflow_name, job_name, check_run FROM ingested WHERE {_BACKEND}"
        " AND delivery_at < :before AND updated_at < :before AND (ended_as IS NULL"
        f" OR ended_as NOT IN {COUNTED} OR EXISTS (SELECT 1 FROM ingested n WHERE n.upstream = ingested.upstream"
        f" AND n.downstream = ingested.downstream AND n.ended_as IN {COUNTED}"
        " AND n.completed_at > ingested.completed_at)) ORDER BY delivery_at LIMIT :most"
    )
)
_DROP_INGESTED = Statement(
    text(
        "DELETE FROM ingested WHERE delivery = :delivery AND downstream = :downstream"
        " AND workflow_name = :workflow_name AND job_name = :job_name AND check_run = :check_run"
    )
)
_EVENTS = ("nightly", "periodic")


async def next_backend(tx: Tx, upstream: str, after: str, *, ingested: bool = False) -> str | None:
    """The next backend, by name, that has any result."""
    row = await tx.one(_NEXT_INGESTED if ingested else _NEXT_BACKEND, upstream=upstream, after=after)
    return row["downstream"] if row else None


async def forget_own_reports(tx: Tx, upstream: str, downstream: str, *, before: int, most: int) -> int:
    """Delete about `most` rows of nightly and periodic results from before then; return how many were deleted."""
    jobs: list[Row] = []
    for event in _EVENTS:
        of = {"upstream": upstream, "downstream": downstream, "event": event, "before": before}
        for statement in (_ENDED, _SILENT):
            if len(jobs) < most // 3:  # a build and a commit may be deleted with their job
                jobs += await tx.all(statement, most=most // 3 - len(jobs), **of)
    await tx.many(DROP_JOB, [dict(job) for job in jobs])
    return len(jobs) + await _drop_orphans(tx, jobs, before)


async def _drop_orphans(tx: Tx, jobs: list[Row], before: int) -> int:
    gone = 0
    for run_id, downstream in {(job["run_id"], job["downstream"]) for job in jobs}:
        gone += await tx.run(_DROP_BUILD, run_id=run_id, downstream=downstream, before=before)
    for sha, upstream in {(job["delivery"], job["upstream"]) for job in jobs}:
        gone += await tx.run(_DROP_COMMIT, sha=sha, upstream=upstream, before=before)
    return gone


async def forget_ingested(tx: Tx, upstream: str, downstream: str, *, before: int, most: int) -> int:
    of: dict[str, Any] = {"upstream": upstream, "downstream": downstream, "before": before}
    rows = await tx.all(_INGESTED, most=most, **of)
    await tx.many(_DROP_INGESTED, [dict(row) for row in rows])
    return len(rows)
