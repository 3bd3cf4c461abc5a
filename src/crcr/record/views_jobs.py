"""Jobs for pages: the rows that count, a backend's figures, and lists in pages.

`COUNTED` is the SQL half of the one definition in `decide.numbers`: the highest attempt of each job, without
superseded runs, superseded commits and test dispatches. Lists are read backend by backend along
`ix_jobs_backend` and merged, so that they cost what they show and never touch a backend that is not to be seen.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, bindparam, column, func, select, text, tuple_

from crcr.decide.commit import Verification
from crcr.decide.model import Conclusion, JobState, Mark, RepoName
from crcr.decide.numbers import Durations, Tally, count_as
from crcr.decide.report import FailedTest
from crcr.decide.views import STRIP, Figures, JobPage, JobQuery, JobView, LastResult
from crcr.errors import BadRequest
from crcr.record.database import Row, Tx
from crcr.record.schema import jobs
from crcr.record.statement import Statement
from crcr.record.times import from_us, from_us_or_none, to_us
from crcr.record.views_listed import Seen

LATEST_ATTEMPT = text(
    "NOT EXISTS (SELECT 1 FROM jobs later WHERE later.upstream = jobs.upstream"
    " AND later.delivery = jobs.delivery AND later.downstream = jobs.downstream"
    " AND later.workflow = jobs.workflow AND later.run_id = jobs.run_id"
    " AND later.attempt > jobs.attempt AND later.job_name = jobs.job_name)"
)
_OF_A_COUNTED_COMMIT = text(
    "NOT EXISTS (SELECT 1 FROM dispatches d WHERE d.upstream = jobs.upstream AND d.delivery = jobs.delivery"
    " AND d.downstream = jobs.downstream AND (d.test = 1 OR d.superseded_at IS NOT NULL))"
)
CURRENT_RUN = text("jobs.superseded = 0")
_COUNTED = (CURRENT_RUN, _OF_A_COUNTED_COMMIT, LATEST_ATTEMPT)
OF_BACKEND = (jobs.c.upstream == bindparam("upstream"), jobs.c.downstream == bindparam("downstream"))

VIEW_COLUMNS = tuple(
    jobs.c[name]
    for name in (
        *("delivery", "downstream", "workflow", "workflow_name", "run_id", "attempt", "job_name", "state"),
        *("conclusion", "disputed_conclusion", "late", "disputed", "superseded", "unsigned", "event"),
        *("number", "head_sha", "url", "artifact_url", "in_progress_at", "completed_at", "queue_s"),
        *("execution_s", "tests_passed", "tests_failed", "tests_skipped", "tests_total"),
        *("verification", "github_conclusion"),
    )
)
"""All a view needs; the bodies and the lists of failed tests, which may be megabytes, are left where they are."""

_FIGURES = Statement(
    select(
        ((jobs.c.in_progress_at - bindparam("since")) // bindparam("width")).label("part"),
        jobs.c.state,
        jobs.c.conclusion,
        func.count().label("number"),
        func.sum(jobs.c.queue_s).label("queue_sum"),
        func.count(jobs.c.queue_s).label("queue_known"),
        func.sum(jobs.c.execution_s).label("execution_sum"),
        func.count(jobs.c.execution_s).label("execution_known"),
    )
    .where(*OF_BACKEND, jobs.c.in_progress_at >= bindparam("since"), *_COUNTED)
    .group_by(column("part"), jobs.c.state, jobs.c.conclusion)
)
_LAST_RESULT = Statement(
    select(jobs.c.state, jobs.c.conclusion, jobs.c.job_name, jobs.c.completed_at, jobs.c.swept_at)
    .where(*OF_BACKEND, text("jobs.state <> 'in_progress'"), *_COUNTED)
    .order_by(jobs.c.in_progress_at.desc())
    .limit(1)
)
_KEY = ("upstream", "delivery", "downstream", "workflow", "run_id", "attempt", "job_name")
_FAILED_TESTS = Statement(
    select(*VIEW_COLUMNS, jobs.c.failed_tests, jobs.c.failed_tests_cut).where(
        *(jobs.c[name] == bindparam(name) for name in _KEY)
    )
)
_MOST_FAILED_TESTS = 5
_PAGE_KEY = ("in_progress_at", "downstream", "delivery", "workflow", "run_id", "attempt", "job_name")
_IN_PULL = text(
    "jobs.delivery IN (SELECT p.delivery FROM dispatches p WHERE p.upstream = :upstream AND p.number = :number)"
)
_FILTERS: Mapping[str, ColumnElement[bool]] = {
    "delivery": jobs.c.delivery == bindparam("delivery"),
    "number": _IN_PULL,  # type: ignore[dict-item]  # a text clause is a condition too
    "state": jobs.c.state == bindparam("state"),
}


async def figures(tx: Tx, upstream: str, downstream: str, since: datetime, now: datetime) -> Figures:
    where = {"upstream": upstream, "downstream": downstream}
    width = max(1, (to_us(now) - to_us(since)) // STRIP)
    strip = [Tally()] * STRIP
    queue, execution = Durations(), Durations()
    for row in await tx.all(_FIGURES, since=to_us(since), width=width, **where):
        part = min(row["part"], STRIP - 1)
        strip[part] += Tally.of(
            count_as(JobState(row["state"]), _conclusion(row["conclusion"])), row["number"]
        )
        queue += Durations(row["queue_sum"] or 0.0, row["queue_known"])
        execution += Durations(row["execution_sum"] or 0.0, row["execution_known"])
    last = await tx.one(_LAST_RESULT, **where)
    return Figures(
        tally=sum(strip, Tally()),
        queue=queue,
        execution=execution,
        strip=tuple(strip),
        last_result=_last_result(last) if last else None,
    )


async def job_page(tx: Tx, query: JobQuery, seen: Seen) -> JobPage:
    names = [query.downstream.key] if query.downstream else list(seen.reporting)
    filters = {"delivery": query.delivery, "number": query.number, "state": query.state}
    given = {key: value for key, value in filters.items() if value is not None}
    statement = _page_statement(frozenset(given), paged=query.after is not None)
    params = {"upstream": query.upstream.key, "limit": query.limit + 1, **given, **_after(query.after)}
    rows: list[Row] = []
    for name in names:
        if name in seen.reporting:
            rows += await tx.all(statement, downstream=name, **params)
    rows.sort(key=_page_key, reverse=True)
    page = rows[: query.limit]
    more = len(rows) > len(page)
    return JobPage(tuple(job_view(row, seen) for row in page), _page_key(page[-1]) if more else None)


@cache
def _page_statement(filters: frozenset[str], *, paged: bool) -> Statement:
    clause = select(*VIEW_COLUMNS).where(*OF_BACKEND, *(_FILTERS[name] for name in sorted(filters)))
    if paged:
        seen_before = tuple_(*(bindparam(f"after_{name}") for name in _PAGE_KEY))
        clause = clause.where(tuple_(*(jobs.c[name] for name in _PAGE_KEY)) < seen_before)
        if (
            "delivery" not in filters
        ):  # implied by the line above, and what makes SQLite enter its index there
            clause = clause.where(jobs.c.in_progress_at <= bindparam("after_in_progress_at"))
    clause = clause.order_by(*(jobs.c[name].desc() for name in _PAGE_KEY))
    return Statement(clause.limit(bindparam("limit")))


def _after(key: tuple[str | int, ...] | None) -> dict[str, str | int]:
    if key is None:
        return {}
    if [type(part) for part in key] != [int, str, str, str, str, int, str]:
        raise BadRequest("the cursor is not one of ours", hint="pass on `next` of the page before, unchanged")
    return {f"after_{name}": value for name, value in zip(_PAGE_KEY, key, strict=True)}


def _page_key(row: Row) -> tuple[str | int, ...]:
    return tuple(row[name] for name in _PAGE_KEY)


def job_view(row: Row, seen: Seen, failed: str | None = None, *, most: int = 0, cut: int = 0) -> JobView:
    """A job's row as a view, with at most `most` of its failed tests."""
    tests = json.loads(failed) if failed else []
    return JobView(
        downstream=seen.written(row["downstream"]),
        state=JobState(row["state"]),
        conclusion=_conclusion(row["conclusion"]),
        disputed_conclusion=_conclusion(row["disputed_conclusion"]),
        marks=tuple(mark.value for mark in Mark if row[mark.value]),
        started_at=from_us(row["in_progress_at"]),
        completed_at=from_us_or_none(row["completed_at"]),
        verification=Verification(row["verification"]),
        failed_tests=tuple(FailedTest(**each) for each in tests[:most]),
        failed_tests_more=max(0, len(tests) - most) + cut,
        **{name: row[name] for name in _AS_STORED},
    )


async def with_tests(tx: Tx, upstream: RepoName, seen: Seen, job: JobView) -> JobView:
    """The job with its first failed tests."""
    row = await tx.one(
        _FAILED_TESTS,
        upstream=upstream.key,
        delivery=job.delivery,
        downstream=job.downstream.lower(),
        workflow=job.workflow,
        run_id=job.run_id,
        attempt=job.attempt,
        job_name=job.job_name,
    )
    if row is None:
        return job
    return job_view(row, seen, row["failed_tests"], most=_MOST_FAILED_TESTS, cut=row["failed_tests_cut"])


_AS_STORED: tuple[Any, ...] = (
    *(
        "delivery",
        "workflow",
        "workflow_name",
        "run_id",
        "attempt",
        "job_name",
        "event",
        "number",
        "head_sha",
    ),
    *("url", "artifact_url", "queue_s", "execution_s", "github_conclusion"),
    *("tests_passed", "tests_failed", "tests_skipped", "tests_total"),
)


def _conclusion(value: str | None) -> Conclusion | None:
    return Conclusion(value) if value else None


def _last_result(row: Row) -> LastResult:
    at = row["completed_at"] if row["completed_at"] is not None else row["swept_at"]
    return LastResult(
        JobState(row["state"]), _conclusion(row["conclusion"]), row["job_name"], from_us(at or 0)
    )
