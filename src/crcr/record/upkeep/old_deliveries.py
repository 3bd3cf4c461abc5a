"""Deletes old deliveries with their dispatches, runs and jobs, and the records of their commit.

Backend by backend, each with its jobs first, so that a row that a page still finds has everything that it links to; the
delivery itself goes last, and a pull request with its last delivery. Open deliveries stay, however old: something to be
sent or running, the head of an open pull request, a merge group in the queue; and so does the last dispatch and the last
result of each backend. Sums are never changed.
"""
# ruff: noqa: S608 - every name in these statements is our own

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from crcr.record.schema.statistics import COUNTED
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement

_MOST_CHECKED = 100
_BACKENDS_AT_ONCE = 20
_LAST_ROWS = 8
"""Reserved for the delivery's own row, its commit's gate and approvals, and its pull request."""
_AFTER_ALL_NAMES = "\U0010ffff"
"""Sorts after every name."""

_OF = "delivery = :delivery AND upstream = :upstream"
_UNSENT = (
    "EXISTS (SELECT 1 FROM dispatches d WHERE d.delivery = v.guid AND d.upstream = v.upstream"
    " AND d.state IN ('held', 'waiting', 'parked'))"
)
_ACTIVE = (
    "EXISTS (SELECT 1 FROM jobs j WHERE j.delivery = v.guid AND j.upstream = v.upstream"
    " AND (j.state = 'in_progress' OR j.in_progress_at >= :before OR j.completed_at >= :before))"
)
_OPEN_HEAD = (
    "EXISTS (SELECT 1 FROM pulls p WHERE p.upstream = v.upstream AND p.number = v.number AND p.is_open = 1"
    " AND p.head_sha = v.head_sha)"
)
_QUEUED = (
    "EXISTS (SELECT 1 FROM merge_groups m WHERE m.head_sha = v.head_sha AND m.upstream = v.upstream"
    " AND m.destroyed_at IS NULL)"
)
_NEWEST_RESULT = (
    # Without `|| ''` SQLite would scan all jobs of the upstream by their index.
    "EXISTS (SELECT 1 FROM (SELECT j.downstream, j.event, max(j.completed_at) AS completed_at FROM jobs j"
    f" WHERE j.delivery = v.guid AND j.upstream || '' = v.upstream AND j.ended_as IN {COUNTED}"
    " GROUP BY j.downstream, j.event) AS o WHERE NOT EXISTS (SELECT 1 FROM jobs n"
    " WHERE n.upstream = v.upstream AND n.downstream = o.downstream AND n.event = o.event AND n.ended_as IS NOT NULL"
    f" AND n.ended_as IN {COUNTED} AND n.completed_at > o.completed_at))"
)
_NEWEST_SENT = (
    "EXISTS (SELECT 1 FROM dispatches s WHERE s.delivery = v.guid AND s.upstream = v.upstream AND s.sent_at IS NOT NULL"
    " AND s.test = 0 AND NOT EXISTS (SELECT 1 FROM dispatches n WHERE n.upstream = s.upstream"
    " AND n.downstream = s.downstream AND n.event = s.event AND n.created_at > s.created_at"
    " AND n.sent_at IS NOT NULL AND n.test = 0))"
)
_NEXT = Statement(
    text(
        "SELECT v.guid, v.upstream, v.number, v.head_sha, v.received_at,"
        f" CASE WHEN v.state = 'in_doubt' OR {_UNSENT} OR {_OPEN_HEAD} OR {_QUEUED} OR {_ACTIVE} OR {_NEWEST_RESULT}"
        f" OR {_NEWEST_SENT} THEN 1 ELSE 0 END AS is_open FROM deliveries v"
        " WHERE v.upstream = :upstream AND v.received_at >= :at AND v.received_at < :before"
        " AND (v.received_at > :at OR v.guid > :guid) ORDER BY v.received_at, v.guid LIMIT 1"
    )
)
_PARKED = Statement(
    text(
        "SELECT DISTINCT delivery FROM effects WHERE upstream = :upstream AND state = 'parked'"
        " AND delivery IS NOT NULL"
    )
)
_BACKENDS = Statement(text(f"SELECT downstream FROM dispatches WHERE {_OF} ORDER BY downstream LIMIT :most"))
_JOBS = Statement(
    text(
        "SELECT delivery, upstream, downstream, workflow, run_id, attempt, job_name FROM jobs"
        f" WHERE {_OF} AND downstream <= :last ORDER BY downstream, workflow, run_id, attempt, job_name LIMIT :most"
    )
)
DROP_JOB = Statement(
    text(
        "DELETE FROM jobs WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " AND workflow = :workflow AND run_id = :run_id AND attempt = :attempt AND job_name = :job_name"
    )
)
_RUNS = Statement(
    text(
        f"SELECT run_id, upstream, downstream, issuer FROM runs WHERE {_OF} AND downstream <= :last"
        " ORDER BY downstream, run_id LIMIT :most"
    )
)
_DROP_RUN = Statement(
    text("DELETE FROM runs WHERE run_id = :run_id AND upstream = :upstream AND downstream = :downstream")
)
_DROP_BUILD = Statement(
    text(
        "DELETE FROM builds WHERE run_id = :run_id AND downstream = :downstream AND issuer = :issuer"
        " AND NOT EXISTS (SELECT 1 FROM runs n WHERE n.run_id = builds.run_id AND n.downstream = builds.downstream)"
    )
)
_DROP_DISPATCH = Statement(text(f"DELETE FROM dispatches WHERE {_OF} AND downstream = :downstream"))
_DROP_DELIVERY = Statement(text("DELETE FROM deliveries WHERE guid = :delivery AND upstream = :upstream"))
_STILL_USED = Statement(
    text(
        "SELECT 1 FROM deliveries v WHERE v.head_sha = :head_sha AND v.upstream = :upstream AND v.guid <> :delivery"
        " UNION ALL SELECT 1 FROM pulls p WHERE p.head_sha = :head_sha AND p.upstream || '' = :upstream AND p.is_open = 1"
        " LIMIT 1"
    )
)
_CHECKS = Statement(
    text("SELECT check_id FROM checks WHERE head_sha = :head_sha AND upstream = :upstream LIMIT :most")
)
_DROP_CHECK = Statement(text("DELETE FROM checks WHERE check_id = :check_id"))
_DROP_COMMIT = tuple(
    Statement(text(f"DELETE FROM {table} WHERE head_sha = :head_sha AND upstream = :upstream"))
    for table in ("gates", "approvals", "merge_groups")
)
_DROP_PULL = Statement(
    text(
        "DELETE FROM pulls WHERE upstream = :upstream AND number = :number AND is_open = 0 AND updated_at < :before"
        " AND NOT EXISTS (SELECT 1 FROM deliveries v WHERE v.upstream = pulls.upstream AND v.number = pulls.number)"
    )
)
_DROP_ANSWERS = Statement(
    text("DELETE FROM announcement_answers WHERE upstream = :upstream AND number = :number")
)

_DROP_PAIRS = Statement(
    text(
        "DELETE FROM pairs WHERE upstream = :upstream AND number = :number AND NOT EXISTS (SELECT 1 FROM pulls p"
        " WHERE p.upstream = pairs.upstream AND p.number = pairs.number)"
    )
)

DeletionCursor = tuple[int, str]
START: DeletionCursor = (0, "")


@dataclass(frozen=True, slots=True)
class DeletionStep:
    """The result of one unit; `cursor` is after the last delivery that was handled, None when none is left."""

    rows: int
    cursor: DeletionCursor | None


async def open_effects(tx: Tx, upstream: str) -> frozenset[str]:
    """Deliveries that a parked effect can still be retried for."""
    return frozenset(row["delivery"] for row in await tx.all(_PARKED, upstream=upstream))


async def forget_deliveries(
    tx: Tx, upstream: str, *, before: int, cursor: DeletionCursor, most: int, kept: frozenset[str]
) -> DeletionStep:
    """Delete deliveries from before then, in their order after `cursor`, and about `most` rows."""
    budget = most
    for _ in range(_MOST_CHECKED):
        row = await tx.one(_NEXT, upstream=upstream, before=before, at=cursor[0], guid=cursor[1])
        if row is None:
            return DeletionStep(most - budget, None)
        if not row["is_open"] and row["guid"] not in kept:
            budget, finished = await _delete_whole(tx, row, before, budget)
            if not finished:
                return DeletionStep(most - budget, cursor)
        cursor = (row["received_at"], row["guid"])
        if budget <= 0:
            break
    return DeletionStep(most - budget, cursor)


async def _delete_whole(tx: Tx, row: Row, before: int, budget: int) -> tuple[int, bool]:
    """Delete the delivery with all that belongs to it; return how many more rows may be deleted, and whether it is gone."""
    delivery_key = {"delivery": row["guid"], "upstream": row["upstream"]}
    while budget > 0:
        backends = await tx.all(_BACKENDS, most=min(budget, _BACKENDS_AT_ONCE), **delivery_key)
        last = backends[-1]["downstream"] if backends else _AFTER_ALL_NAMES
        budget = await _drop_results(tx, delivery_key, last, budget)
        if budget < len(backends):
            return budget, False
        await tx.many(
            _DROP_DISPATCH, [{**delivery_key, "downstream": backend["downstream"]} for backend in backends]
        )
        budget -= len(backends)
        if not backends:
            return await _drop_delivery(tx, row, before, budget)
    return budget, False


async def _drop_results(tx: Tx, delivery_key: Mapping[str, str], last: str, budget: int) -> int:
    jobs = await tx.all(_JOBS, last=last, most=budget, **delivery_key)
    await tx.many(DROP_JOB, [dict(job) for job in jobs])
    budget -= len(jobs)
    most = budget // 2  # a build is deleted with its run
    runs = await tx.all(_RUNS, last=last, most=most, **delivery_key)
    for run in runs:
        await _drop_run(tx, run)
    return budget - 2 * len(runs) if len(runs) < most else 0


async def _drop_run(tx: Tx, run: Row) -> None:
    await tx.run(_DROP_RUN, run_id=run["run_id"], upstream=run["upstream"], downstream=run["downstream"])
    await tx.run(_DROP_BUILD, run_id=run["run_id"], downstream=run["downstream"], issuer=run["issuer"])


async def _drop_delivery(tx: Tx, row: Row, before: int, budget: int) -> tuple[int, bool]:
    """Delete the delivery itself, once nothing else belongs to it."""
    delivery_key: dict[str, Any] = {"delivery": row["guid"], "upstream": row["upstream"]}
    if row["head_sha"] is not None and budget >= _LAST_ROWS:
        budget = await _drop_commit(tx, row["head_sha"], delivery_key, budget)
    if budget < _LAST_ROWS:
        return budget, False
    await tx.run(_DROP_DELIVERY, **delivery_key)
    if row["number"] is not None:
        pull = {"upstream": row["upstream"], "number": row["number"]}
        if await tx.run(_DROP_PULL, **pull, before=before):
            budget -= 1 + await tx.run(_DROP_ANSWERS, **pull) + await tx.run(_DROP_PAIRS, **pull)
    return budget - 1, True


async def _drop_commit(tx: Tx, head_sha: str, delivery_key: Mapping[str, str], budget: int) -> int:
    """Delete the checks and gate of a commit that no other delivery is about."""
    commit = {"head_sha": head_sha, "upstream": delivery_key["upstream"]}
    if await tx.one(_STILL_USED, delivery=delivery_key["delivery"], **commit) is not None:
        return budget
    checks = await tx.all(_CHECKS, most=budget, **commit)
    await tx.many(_DROP_CHECK, [dict(check) for check in checks])
    budget -= len(checks)
    if budget >= _LAST_ROWS:
        for statement in _DROP_COMMIT:
            budget -= await tx.run(statement, **commit)
    return budget
