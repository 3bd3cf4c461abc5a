"""The newest results of one job, read when its details are opened: on events of its kind, and on the base branch.

Results on pull requests are found through the newest dispatches, so that a job which reports rarely costs no more than one
that always does; all others have an index of their own. And the job that a short address means.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from sqlalchemy import text

from crcr.decide.jobs.short_address import ShortAddress, parse_short_token
from crcr.decide.model import RepoName
from crcr.decide.statistics.window import ResultKind, result_kind
from crcr.decide.views.backend import JobDetail, JobKey
from crcr.decide.views.overview import JobCell
from crcr.errors import NotFound
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.views.backends.jobs import (
    CELL_COLUMNS,
    COMMIT_COLUMNS,
    WHY_NOT,
    job_cells,
    job_detail,
)
from crcr.record.views.visibility import VisibleBackends

MOST_RESULTS = 10
_MOST_EVENTS = 40
_MOST_SEARCHED = 200
"""Of so many of the newest dispatches those that may have results are searched, up to `_MOST_EVENTS`."""
_MOST_ELSEWHERE = 100
"""Newest results beside pull requests in which those of the base branch are looked for."""
_MOST_NAMED = 5_000
_KEY = ("delivery", "workflow", "run_id", "attempt", "job_name")
_RESULT = ", ".join(f"j.{one.name}" for one in (*CELL_COLUMNS, *COMMIT_COLUMNS))
_ANSWERED_PULLS = (
    "SELECT * FROM (SELECT delivery, upstream, downstream, created_at, action, state, test FROM dispatches"
    " WHERE upstream = :upstream AND downstream = :downstream AND event = 'pull_request'"
    " ORDER BY created_at DESC, delivery DESC LIMIT :searched) AS newest"
    " WHERE state = 'sent' AND test = 0 AND coalesce(action, '') <> 'closed'"
    " ORDER BY created_at DESC, delivery DESC LIMIT :events"
)
_ON_PULLS = Statement(
    text(
        f"SELECT {_RESULT} FROM ({_ANSWERED_PULLS}) AS d CROSS JOIN jobs j"  # noqa: S608  ours
        " WHERE j.delivery = d.delivery AND j.upstream = d.upstream AND j.downstream = d.downstream"
        " AND j.workflow = :workflow AND j.job_name = :job_name AND j.superseded = 0"
        " ORDER BY d.created_at DESC, d.delivery DESC, j.run_id, j.attempt"
    )
)
# Chosen among the newest ones here and not in the query: no other workflow with such a job makes it read more.
_ELSEWHERE = Statement(
    text(
        f"SELECT {_RESULT}, j.superseded, c.position FROM jobs j LEFT JOIN base_commits c ON c.sha = j.head_sha"  # noqa: S608  ours
        " AND c.upstream = j.upstream AND c.ref = :ref WHERE j.upstream = :upstream AND j.downstream = :downstream"
        " AND j.job_name = :job_name AND j.event <> 'pull_request' AND j.ended_as IS NOT NULL"
        " ORDER BY j.in_progress_at DESC, j.delivery DESC, j.attempt DESC LIMIT :most"
    )
)
_BRANCHES = Statement(
    text(
        "SELECT u.default_branch, p.base_ref FROM upstreams u LEFT JOIN pulls p ON p.upstream = u.upstream"
        " AND p.number = CAST(:number AS INTEGER) WHERE u.upstream = :upstream"
    )
)
# Joined with an empty text, the names are in no index: the rows are found by their deliveries, not among all of a backend.
_OF_DELIVERIES = Statement(
    text(
        f"SELECT {', '.join(_KEY)} FROM jobs WHERE delivery >= :start AND delivery < :end"  # noqa: S608  ours
        " AND upstream || '' = :upstream AND downstream || '' = :downstream ORDER BY delivery LIMIT :most"
    )
)


async def read_job_results(tx: Tx, detail: JobDetail, visible: VisibleBackends) -> JobDetail:
    """The details of a job with its newest results, and its on-calls."""
    job, backend = detail.job, detail.backend
    kind = result_kind(job.event)
    detail = replace(detail, oncalls=visible.reporting[backend.key].oncalls)
    if kind is None or detail.ingested:
        return detail
    branches = await tx.one(_BRANCHES, upstream=detail.upstream.key, number=job.number)
    default_branch = branches["default_branch"] if branches else None
    base_ref = (branches["base_ref"] if branches else None) or default_branch
    names = {"upstream": detail.upstream.key, "downstream": backend.key, "job_name": job.job_name}
    elsewhere = [
        row
        for row in await tx.all(_ELSEWHERE, ref=base_ref or "", most=_MOST_ELSEWHERE, **names)
        if not row["superseded"] and (row["workflow"] == job.workflow or _is_night(row))
    ]
    on_base = [row for row in elsewhere if _is_on_base(row, base_ref, default_branch)]
    if kind is ResultKind.PULLS:
        limits = {"searched": _MOST_SEARCHED, "events": _MOST_EVENTS}
        same_kind = await tx.all(_ON_PULLS, workflow=job.workflow, **limits, **names)
    else:
        same_kind = [row for row in elsewhere if row["event"] in kind.events]
    return replace(
        detail,
        recent=_newest_results(same_kind, backend),
        on_base=_newest_results(on_base, backend),
        base_ref=base_ref,
    )


def _is_night(row: Row) -> bool:
    """Nights may have a workflow of their own, with the same jobs."""
    return result_kind(row["event"]) is ResultKind.NIGHTLY


def _is_on_base(row: Row, base_ref: str | None, default_branch: str | None) -> bool:
    """Whether it tested a commit of the base branch, as verdicts see it; nights test the default branch."""
    return row["position"] is not None or (_is_night(row) and base_ref == default_branch)


def _newest_results(rows: Sequence[Row], backend: RepoName) -> tuple[JobCell, ...]:
    """The latest attempt of each run, in the order of the rows."""
    latest: dict[tuple[str, str, str], JobCell] = {}
    for cell in job_cells(map(_cut_result, rows), backend, None):
        run = (cell.delivery, cell.workflow, cell.run_id)
        if run not in latest or latest[run].attempt < cell.attempt:
            latest[run] = cell
    return tuple(latest.values())[:MOST_RESULTS]


def _cut_result(row: Row) -> Row:
    values: tuple[Any, ...] = tuple(cast("Iterable[Any]", row))
    return cast("Row", values[: len(CELL_COLUMNS) + len(COMMIT_COLUMNS)])


async def find_job(tx: Tx, upstream: RepoName, token: str, visible: VisibleBackends) -> JobDetail:
    """The job that a short address means. Raise `NotFound` for an unknown one as for one that is not visible."""
    address = parse_short_token(token)
    entries = visible.reporting.values() if address else ()
    for entry in entries:
        if address and address.may_be_of(upstream.key, entry.name.key):
            key = await _find_key(tx, upstream, entry.name, address)
            if key is not None:
                return await job_detail(tx, upstream, entry.name, key, visible)
    raise NotFound("no such job is known", hint=WHY_NOT)


async def _find_key(tx: Tx, upstream: RepoName, backend: RepoName, address: ShortAddress) -> JobKey | None:
    names = {"upstream": upstream.key, "downstream": backend.key}
    for row in await tx.all(_OF_DELIVERIES, start=address.start, end=address.end, most=_MOST_NAMED, **names):
        key = {name: row[name] for name in _KEY}
        if address.names(upstream.key, backend.key, tuple(key.values())):
            return JobKey(**key)
    return None
