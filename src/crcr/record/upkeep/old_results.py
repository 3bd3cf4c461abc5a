"""Deletes old results that belong to no delivery (self-reports of backends, results of other relays), failures and bisections.

Each backend's newest result stays, so that its page still shows the last report. Sums are not changed.

A failure is deleted after its result, and a group with its last failure: until then it keeps the time of its first one and its
count. The newest commit of the default branch, and of each branch that a recorded pull request goes into, stays: later pushes are
ordered after it. A running bisection stays, however old it is.
"""
# ruff: noqa: S608 - every name in these statements is our own

from typing import Any

from sqlalchemy import text

from crcr.record.in_tree.upkeep import DROP_COMMITS
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


# History of another relay: its dispatches belong to no delivery.

_IMPORTED = Statement(
    text(
        f"SELECT delivery, upstream, downstream FROM dispatches WHERE imported = 1 AND {_BACKEND}"
        " AND created_at < :before LIMIT :most"
    )
)
_NEXT_IMPORTED = Statement(
    text(
        "SELECT min(downstream) AS downstream FROM dispatches WHERE imported = 1 AND upstream = :upstream"
        " AND downstream > :after"
    )
)
_DROP_IMPORTED_JOBS = Statement(
    text(
        "DELETE FROM jobs WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " AND imported = 1"
    )
)
_DROP_IMPORTED = Statement(
    text(
        "DELETE FROM dispatches WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " AND imported = 1"
    )
)


async def next_imported_backend(tx: Tx, upstream: str, after: str) -> str | None:
    row = await tx.one(_NEXT_IMPORTED, upstream=upstream, after=after)
    return row["downstream"] if row else None


async def forget_imported(tx: Tx, upstream: str, downstream: str, *, before: int, most: int) -> int:
    """Delete imported dispatches from before then, each with its jobs; return how many."""
    rows = await tx.all(_IMPORTED, upstream=upstream, downstream=downstream, before=before, most=most // 4)
    keys = [dict(row) for row in rows]
    await tx.many(_DROP_IMPORTED_JOBS, keys)
    await tx.many(_DROP_IMPORTED, keys)
    return len(keys)


# Failures, and what else verdicts rest on

_NEXT_FAILING = Statement(
    text(
        "SELECT min(downstream) AS downstream FROM failures WHERE upstream = :upstream AND downstream > :after"
    )
)
_OF_JOB = " AND ".join(
    f"j.{name} = f.{name}"
    for name in ("delivery", "upstream", "downstream", "workflow", "run_id", "attempt", "job_name")
)
_OLD_FAILURES = Statement(
    text(
        "SELECT f.failure_id, f.upstream, f.fingerprints, f.log_fingerprint FROM failures f WHERE f.upstream = :upstream"
        " AND f.downstream = :downstream AND f.at < :before"
        f" AND NOT EXISTS (SELECT 1 FROM jobs j WHERE {_OF_JOB}) ORDER BY f.at LIMIT :most"
    )
)
_DROP_MEMBER = Statement(
    text(
        "DELETE FROM failure_fingerprints WHERE fingerprint = :fingerprint AND upstream = :upstream"
        " AND failure_id = :failure_id"
    )
)
_DROP_FAILURE = Statement(text("DELETE FROM failures WHERE failure_id = :failure_id"))
_DROP_GROUPS = Statement(
    text(
        "DELETE FROM failure_groups WHERE (fingerprint, upstream, downstream) IN (SELECT g.fingerprint, g.upstream,"
        " g.downstream FROM failure_groups g WHERE g.upstream = :upstream AND g.last_at < :before AND NOT EXISTS"
        " (SELECT 1 FROM failure_fingerprints m WHERE m.fingerprint = g.fingerprint AND m.upstream = g.upstream)"
        " ORDER BY g.last_at LIMIT :most)"
    )
)
_DROP_TESTS = Statement(
    text(
        "DELETE FROM failed_tests WHERE (fingerprint, upstream, downstream, test) IN (SELECT t.fingerprint, t.upstream,"
        " t.downstream, t.test FROM failed_tests t WHERE t.upstream = :upstream AND t.last_at < :before AND NOT EXISTS"
        " (SELECT 1 FROM failure_groups g WHERE g.fingerprint = t.fingerprint AND g.upstream = t.upstream"
        " AND g.downstream = t.downstream) ORDER BY t.last_at LIMIT :most)"
    )
)
_DROP_KNOWN = Statement(
    text(
        "DELETE FROM known_failures WHERE (fingerprint, upstream) IN (SELECT fingerprint, upstream FROM known_failures"
        " WHERE upstream = :upstream AND coalesce(ended_at, until_at) < :before LIMIT :most)"
    )
)
_STAYS = (
    "b.position = (SELECT max(n.position) FROM base_commits n WHERE n.upstream = b.upstream AND n.ref = b.ref)"
    " AND (b.ref = (SELECT u.default_branch FROM upstreams u WHERE u.upstream = b.upstream)"
    " OR EXISTS (SELECT 1 FROM pulls p WHERE p.upstream = b.upstream AND p.base_ref = b.ref))"
)
_DROP_BASE_COMMITS = Statement(
    text(
        "DELETE FROM base_commits WHERE (sha, upstream, ref) IN (SELECT b.sha, b.upstream, b.ref FROM base_commits b"
        f" WHERE b.upstream = :upstream AND b.pushed_at < :before AND NOT coalesce({_STAYS}, FALSE)"
        " ORDER BY b.pushed_at LIMIT :most)"
    )
)
_DROP_TAGS = Statement(
    text(
        "DELETE FROM upstream_tags WHERE (upstream, name) IN (SELECT upstream, name FROM upstream_tags"
        " WHERE upstream = :upstream AND pushed_at < :before ORDER BY pushed_at LIMIT :most)"
    )
)
_DROP_OPINIONS = Statement(
    text(
        "DELETE FROM person_verdicts WHERE person_verdict_id IN (SELECT person_verdict_id FROM person_verdicts"
        " WHERE upstream = :upstream AND at < :before ORDER BY at LIMIT :most)"
    )
)
_OLD_BISECTION = "b.upstream = :upstream AND b.state = 'finished' AND b.finished_at < :before"
_DROP_BISECTION_RUNS = Statement(
    text(
        "DELETE FROM bisection_runs WHERE (bisection_id, number, upstream) IN (SELECT r.bisection_id, r.number, r.upstream"
        " FROM bisections b JOIN bisection_runs r ON r.bisection_id = b.bisection_id AND r.upstream = b.upstream"
        f" WHERE {_OLD_BISECTION} ORDER BY r.bisection_id, r.number LIMIT :most)"
    )
)
_DROP_BISECTIONS = Statement(
    text(
        "DELETE FROM bisections WHERE bisection_id IN (SELECT b.bisection_id FROM bisections b"
        f" WHERE {_OLD_BISECTION} AND NOT EXISTS (SELECT 1 FROM bisection_runs r WHERE r.bisection_id = b.bisection_id"
        " AND r.upstream = b.upstream) ORDER BY b.bisection_id LIMIT :most)"
    )
)
OTHER_ROWS = (
    *(_DROP_GROUPS, _DROP_TESTS, _DROP_KNOWN, _DROP_BASE_COMMITS, _DROP_TAGS, _DROP_OPINIONS, DROP_COMMITS),
    *(_DROP_BISECTION_RUNS, _DROP_BISECTIONS),
)
"""What is deleted after the failures: each deletes at most `most` rows of an `upstream` from `before` a time."""


async def next_failing_backend(tx: Tx, upstream: str, after: str) -> str | None:
    """The next backend, by name, that has any failure."""
    row = await tx.one(_NEXT_FAILING, upstream=upstream, after=after)
    return row["downstream"] if row else None


async def forget_failures(tx: Tx, upstream: str, downstream: str, *, before: int, most: int) -> int:
    """Delete about `most` rows of failures from before then whose results are deleted; return how many were deleted."""
    of: dict[str, Any] = {"upstream": upstream, "downstream": downstream, "before": before}
    gone = 0
    for row in await tx.all(_OLD_FAILURES, most=most // 2, **of):
        members = [
            {"fingerprint": fingerprint, "upstream": row["upstream"], "failure_id": row["failure_id"]}
            for fingerprint in (row["fingerprints"] or row["log_fingerprint"] or "").split()
        ]
        if gone and gone + len(members) >= most:
            break
        await tx.many(_DROP_MEMBER, members)
        await tx.run(_DROP_FAILURE, failure_id=row["failure_id"])
        gone += 1 + len(members)
    return gone
