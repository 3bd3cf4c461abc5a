"""Moves jobs in the sums when a fact changes where they count.

`recount` reads the jobs that a fact may have moved, decides with `decide.statistics.figures` where each belongs now, and moves
those that are counted elsewhere; calling it too often does no harm. The usual result, of a running first attempt, takes
a shorter way to the same sums (`Reports`).
"""

from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.model import Conclusion, JobState, KnownPull, RepoName
from crcr.decide.statistics.figures import EndedAs, ended_as
from crcr.decide.statistics.window import result_kind
from crcr.record.clickhouse.feed_queue import note_job
from crcr.record.statistics import sums
from crcr.record.statistics.sums import Share
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement

_JOBS = (
    "SELECT j.delivery, j.upstream, j.downstream, j.workflow, j.run_id, j.attempt, j.job_name, j.workflow_name,"
    " j.event, j.state, j.conclusion, j.expected, j.superseded, j.ended_as, j.in_progress_at, j.queue_s,"
    " j.execution_s, d.superseded_at, coalesce(d.test, 0) AS test FROM jobs j LEFT JOIN dispatches d"
    " ON d.delivery = j.delivery AND d.upstream = j.upstream AND d.downstream = j.downstream"
    " WHERE j.delivery = :delivery AND j.upstream = :upstream"
)
_OF_DELIVERY = Statement(text(_JOBS))
_OF_DISPATCH = Statement(text(f"{_JOBS} AND j.downstream = :downstream"))
_OF_RUN = Statement(
    text(f"{_JOBS} AND j.downstream = :downstream AND j.workflow = :workflow AND j.run_id = :run_id")
)
_STAYS = Statement(
    text(
        "UPDATE jobs SET ended_as = :ended_as WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id AND attempt = :attempt"
        " AND job_name = :job_name"
    )
)
# Read before the heads are marked: their index has only dispatches that are not superseded.
_OLDER_HEADS = Statement(
    text(
        "SELECT DISTINCT d.delivery FROM dispatches d WHERE d.upstream = :upstream AND d.number = :number"
        " AND d.superseded_at IS NULL AND (:any_head = 1 OR d.head_sha <> :head_sha OR EXISTS (SELECT 1 FROM deliveries v"
        " WHERE v.guid = d.delivery AND v.upstream = d.upstream AND v.base_ref <> :base_ref))"
        " AND EXISTS (SELECT 1 FROM jobs j"
        " WHERE j.delivery = d.delivery AND j.upstream = d.upstream AND j.downstream = d.downstream)"
    )
)
_RUN_KEY = ("delivery", "upstream", "downstream", "workflow", "run_id")
_KEY = (*_RUN_KEY, "attempt", "job_name")


async def recount(tx: Tx, scope: dict[str, Any], now: datetime) -> None:
    """Recount all jobs of a delivery, of a dispatch (`downstream`), or of a run (`workflow`, `run_id`)."""
    if "run_id" in scope:
        rows = await tx.all(_OF_RUN, **{name: scope[name] for name in _RUN_KEY})
    elif "downstream" in scope:
        rows = await tx.all(_OF_DISPATCH, **{name: scope[name] for name in _RUN_KEY[:3]})
    else:
        rows = await tx.all(_OF_DELIVERY, delivery=scope["delivery"], upstream=scope["upstream"])
    newest: dict[tuple[Any, ...], int] = {}
    for row in rows:
        name = _job_key(row)
        newest[name] = max(newest.get(name, 0), row["attempt"])
    moves: list[tuple[Share, int]] = []
    moved: list[dict[str, Any]] = []
    for row in rows:
        ended = _counted_as(row, earlier=row["attempt"] < newest[_job_key(row)])
        counted_as = EndedAs(row["ended_as"]) if row["ended_as"] else None
        if ended is counted_as:
            continue
        moved.append({"ended_as": ended.value if ended else None, **{name: row[name] for name in _KEY}})
        moves += [(share, -1) for share in _share(row, counted_as)]
        moves += [(share, 1) for share in _share(row, ended)]
    if moved:
        await tx.many(_STAYS, moved)
        sums.move(tx, moves)
        for job in moved:
            note_job(tx, job, now)


async def take_out(tx: Tx, job: dict[str, Any]) -> None:
    """Take one job out of the sums, before its measurements change; `recount` counts it again."""
    for row in await tx.all(_OF_RUN, **{name: job[name] for name in _RUN_KEY}):
        if (row["attempt"], row["job_name"]) != (job["attempt"], job["job_name"]) or not row["ended_as"]:
            continue
        sums.move(tx, [(share, -1) for share in _share(row, EndedAs(row["ended_as"]))])
        await tx.run(_STAYS, ended_as=None, **{name: row[name] for name in _KEY})


async def find_superseded_deliveries(
    tx: Tx, upstream: RepoName, pull: KnownPull, *, any_head: bool
) -> list[str]:
    """The deliveries with jobs that a newer head or base, or the end of the pull request, is about to supersede."""
    where = {"upstream": upstream.key, "number": pull.number, "any_head": int(any_head)}
    rows = await tx.all(_OLDER_HEADS, head_sha=pull.head_sha, base_ref=pull.base_ref, **where)
    return [row["delivery"] for row in rows]


def _counted_as(row: Row, *, earlier: bool) -> EndedAs | None:
    if row["test"]:
        return None
    return ended_as(
        JobState(row["state"]),
        Conclusion(row["conclusion"]) if row["conclusion"] else None,
        Conclusion(row["expected"]) if row["expected"] else None,
        superseded=bool(row["superseded"]) or row["superseded_at"] is not None,
        earlier=earlier,
    )


def _share(row: Row, ended: EndedAs | None) -> list[Share]:
    kind = result_kind(row["event"])
    if ended is None or kind is None:
        return []
    return [
        Share(
            upstream=row["upstream"],
            downstream=row["downstream"],
            kind=kind,
            at_us=row["in_progress_at"],
            workflow=row["workflow"],
            workflow_name=row["workflow_name"],
            job_name=row["job_name"],
            ended=ended,
            queue_s=row["queue_s"],
            execution_s=row["execution_s"],
        )
    ]


def _job_key(row: Row) -> tuple[Any, ...]:
    return row["downstream"], row["workflow"], row["run_id"], row["job_name"]
