"""Deletes old failures with their fingerprints and groups, and what else verdicts rest on.

A failure is deleted after its result, so that a group's page links to nothing that is gone for longer than a run of retention. A
group goes with its last failure: until then it keeps the time of its first one and its count. The newest commit of the default
branch, and of each branch that a recorded pull request goes into, stays: later pushes are ordered after it.
"""
# ruff: noqa: S608 - every name in these statements is our own

from typing import Any

from sqlalchemy import text

from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement

_NEXT_BACKEND = Statement(
    text(
        "SELECT min(downstream) AS downstream FROM failures WHERE upstream = :upstream AND downstream > :after"
    )
)
_OF_JOB = " AND ".join(
    f"j.{name} = f.{name}"
    for name in ("delivery", "upstream", "downstream", "workflow", "run_id", "attempt", "job_name")
)
_OLD = Statement(
    text(
        "SELECT f.failure_id, f.upstream, f.fingerprints FROM failures f WHERE f.upstream = :upstream"
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
_DROP_COMMITS = Statement(
    text(
        "DELETE FROM base_commits WHERE (sha, upstream, ref) IN (SELECT b.sha, b.upstream, b.ref FROM base_commits b"
        f" WHERE b.upstream = :upstream AND b.pushed_at < :before AND NOT coalesce({_STAYS}, FALSE)"
        " ORDER BY b.pushed_at LIMIT :most)"
    )
)
_DROP_OPINIONS = Statement(
    text(
        "DELETE FROM person_verdicts WHERE person_verdict_id IN (SELECT person_verdict_id FROM person_verdicts"
        " WHERE upstream = :upstream AND at < :before ORDER BY at LIMIT :most)"
    )
)
OTHER_ROWS = (_DROP_GROUPS, _DROP_KNOWN, _DROP_COMMITS, _DROP_OPINIONS)
"""What is deleted after the failures: each deletes at most `most` rows of an `upstream` from `before` a time."""


async def next_failing_backend(tx: Tx, upstream: str, after: str) -> str | None:
    """The next backend, by name, that has any failure."""
    row = await tx.one(_NEXT_BACKEND, upstream=upstream, after=after)
    return row["downstream"] if row else None


async def forget_failures(tx: Tx, upstream: str, downstream: str, *, before: int, most: int) -> int:
    """Delete about `most` rows of failures from before then whose results are deleted; return how many were deleted."""
    of: dict[str, Any] = {"upstream": upstream, "downstream": downstream, "before": before}
    gone = 0
    for row in await tx.all(_OLD, most=most // 2, **of):
        members = [
            {"fingerprint": fingerprint, "upstream": row["upstream"], "failure_id": row["failure_id"]}
            for fingerprint in (row["fingerprints"] or "").split()
        ]
        if gone and gone + len(members) >= most:
            break
        await tx.many(_DROP_MEMBER, members)
        await tx.run(_DROP_FAILURE, failure_id=row["failure_id"])
        gone += 1 + len(members)
    return gone
