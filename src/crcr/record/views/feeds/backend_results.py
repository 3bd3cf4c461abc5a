"""A backend's newest results by event, for its feed: one walk along the index of its jobs, with a limit.

A backend whose results are not shown has no feed, as an unlisted one.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.feeds.backend_results import BackendFeed, EventResult, find_news
from crcr.decide.model import RepoName
from crcr.decide.statistics.figures import ANSWER_WITHIN, SILENT_WITHIN, UNANSWERED_IS_SILENT
from crcr.errors import NotFound
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.backends.backend_reader import AWAITED, IS_UPSTREAM_EVENT, read_reporting
from crcr.record.views.failures.failing_jobs import read_base_branch
from crcr.record.views.visibility import VisibleBackends

MOST_RESULTS = 50
_MOST_JOBS = 4_000
_BACK = timedelta(days=30)
_RUN = "CASE WHEN event IN ('nightly', 'periodic') THEN run_id ELSE '' END"
_FAILED = "ended_as IN ('failure', 'timed_out', 'silent')"
_RESULTS = Statement(
    text(
        f"SELECT delivery, event, {_RUN} AS run, max(number) AS number, max(head_sha) AS head_sha,"  # noqa: S608  our own text
        " sum(CASE WHEN ended_as = 'success' THEN 1 ELSE 0 END) AS passed,"
        f" sum(CASE WHEN {_FAILED} THEN 1 ELSE 0 END) AS failed,"
        " sum(CASE WHEN ended_as = 'other' THEN 1 ELSE 0 END) AS other,"
        " sum(CASE WHEN state = 'in_progress' THEN 1 ELSE 0 END) AS running,"
        f" min(CASE WHEN {_FAILED} THEN job_name END) AS first_failed, max(coalesce(completed_at, swept_at)) AS at,"
        " count(*) AS jobs, min(in_progress_at) AS began_at FROM (SELECT delivery, event, run_id, number, head_sha,"
        " job_name, state, ended_as, in_progress_at, completed_at, swept_at FROM jobs WHERE upstream = :upstream"
        f" AND downstream = :downstream AND in_progress_at >= :since AND {IS_UPSTREAM_EVENT}"
        f" ORDER BY in_progress_at DESC LIMIT :most) newest GROUP BY delivery, event, {_RUN}"
    )
)
_TITLES = Statement(
    text(
        "SELECT number, title FROM pulls WHERE upstream = :upstream AND number IN (SELECT value FROM json_each(:numbers))"
    ),
    on_postgresql=text(
        "SELECT number, title FROM pulls WHERE upstream = :upstream AND number IN"
        " (SELECT CAST(json_array_elements_text(CAST(:numbers AS json)) AS integer))"
    ),
)
_REFS = Statement(
    text(
        "SELECT guid, ref FROM deliveries WHERE guid IN (SELECT value FROM json_each(:guids)) AND upstream = :upstream"
    ),
    on_postgresql=text(
        "SELECT guid, ref FROM deliveries WHERE guid IN (SELECT json_array_elements_text(CAST(:guids AS json)))"
        " AND upstream = :upstream"
    ),
)
_UNANSWERED = Statement(
    text(
        "SELECT d.sent_at FROM dispatches d WHERE d.upstream = :upstream AND d.downstream = :downstream"  # noqa: S608  our own text
        f" AND d.created_at > :since AND {AWAITED} ORDER BY d.sent_at LIMIT :most"
    )
)


async def backend_feed(
    tx: Tx, upstream: RepoName, downstream: RepoName, visible: VisibleBackends, now: datetime
) -> BackendFeed:
    entry = visible.reporting.get(downstream.key)
    if entry is None:
        raise NotFound(f"{downstream} is not a backend of this upstream", hint="see /api/v1/allowlist")
    backend = {"upstream": upstream.key, "downstream": downstream.key}
    rows = await tx.all(_RESULTS, since=to_us(now - _BACK), most=_MOST_JOBS, **backend)
    ended = [row for row in _without_cut(rows) if row["at"] is not None]
    newest = sorted(ended, key=lambda row: (row["at"], row["delivery"], row["run"]), reverse=True)
    results = await _add_titles_and_refs(
        tx, upstream, [_event_result(row) for row in newest[: MOST_RESULTS + 1]]
    )
    # The oldest is read only to know what the one after it changed.
    news = find_news(results)[:MOST_RESULTS]
    since = await _read_silence(tx, upstream, entry, now)
    return BackendFeed(upstream=upstream, backend=entry.name, results=news, silent_since=since)


def _without_cut(rows: Sequence[Row]) -> list[Row]:
    """Leave out the oldest event where the limit of jobs may have cut off some of its jobs."""
    is_cut = sum(row["jobs"] for row in rows) >= _MOST_JOBS
    oldest = min((row["began_at"] for row in rows), default=0)
    return [row for row in rows if not is_cut or row["began_at"] > oldest]


def _event_result(row: Row) -> EventResult:
    return EventResult(
        key=f"{row['delivery']}/{row['run']}" if row["run"] else row["delivery"],
        event=row["event"],
        number=row["number"],
        head_sha=row["head_sha"],
        delivery=row["delivery"],
        at=from_us(row["at"]),
        passed=row["passed"],
        failed=row["failed"],
        other=row["other"],
        running=row["running"],
        first_failed=row["first_failed"],
    )


async def _add_titles_and_refs(
    tx: Tx, upstream: RepoName, results: Sequence[EventResult]
) -> list[EventResult]:
    numbers = json.dumps(sorted({result.number for result in results if result.number is not None}))
    guids = json.dumps([result.delivery for result in results if result.event == "push"])
    titles = {
        row["number"]: row["title"] for row in await tx.all(_TITLES, upstream=upstream.key, numbers=numbers)
    }
    refs = {row["guid"]: row["ref"] for row in await tx.all(_REFS, upstream=upstream.key, guids=guids)}
    branch = await read_base_branch(tx, upstream)
    return [
        replace(
            result,
            title=titles.get(result.number or 0),
            ref=refs.get(result.delivery),
            on_base=result.event == "push" and _is_base(refs.get(result.delivery), branch),
        )
        for result in results
    ]


def _is_base(ref: str | None, branch: str | None) -> bool:
    """Of pushes those to the base branch, and all where its name is not known, as for the badge."""
    return branch is None or ref == f"refs/heads/{branch}"


async def _read_silence(tx: Tx, upstream: RepoName, entry: AllowlistEntry, now: datetime) -> datetime | None:
    """When the dispatch that made it silent was overdue; that time stays while more go unanswered."""
    reporting = await read_reporting(tx, upstream, entry, now)
    if not reporting.silent:
        return None
    reported = to_us(reporting.last_at) if reporting.last_at else 0
    times = {"since": max(reported, to_us(now - SILENT_WITHIN)), "before": to_us(now - ANSWER_WITHIN)}
    most = UNANSWERED_IS_SILENT if reported else 1
    key = {"upstream": upstream.key, "downstream": entry.name.key}
    rows = await tx.all(_UNANSWERED, most=most, **times, **key)
    return from_us(rows[-1]["sent_at"]) + ANSWER_WITHIN if rows else None
