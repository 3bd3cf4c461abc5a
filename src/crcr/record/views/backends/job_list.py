"""Jobs for pages, one by one and in lists.

Lists are read backend by backend along `ix_jobs_backend` and merged, so that they cost what they show and never touch a backend that is not to be seen.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, bindparam, select, text, tuple_

from crcr.decide.checks.commit import Verification
from crcr.decide.model import Conclusion, JobMark, JobState, RepoName
from crcr.decide.report.report import FailedTest
from crcr.decide.statistics.figures import EndedAs
from crcr.decide.views.overview import JobPage, JobQuery, JobView
from crcr.record.schema.core import jobs
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none
from crcr.record.views.paging import bad_cursor
from crcr.record.views.visibility import Seen

LATEST_ATTEMPT = text(
    "NOT EXISTS (SELECT 1 FROM jobs later WHERE later.upstream = jobs.upstream"
    " AND later.delivery = jobs.delivery AND later.downstream = jobs.downstream"
    " AND later.workflow = jobs.workflow AND later.run_id = jobs.run_id"
    " AND later.attempt > jobs.attempt AND later.job_name = jobs.job_name)"
)
CURRENT_RUN = text("jobs.superseded = 0")
OF_BACKEND = (jobs.c.upstream == bindparam("upstream"), jobs.c.downstream == bindparam("downstream"))
IN_ORDER = tuple(jobs.c[name] for name in ("workflow", "run_id", "attempt", "job_name"))
"""Of one delivery and one backend."""

VIEW_COLUMNS = tuple(
    jobs.c[name]
    for name in (
        *("delivery", "downstream", "workflow", "workflow_name", "run_id", "attempt", "job_name", "state"),
        *("conclusion", "disputed_conclusion", "late", "disputed", "superseded", "unsigned", "event"),
        *("number", "head_sha", "url", "artifact_url", "in_progress_at", "completed_at", "queue_s"),
        *("execution_s", "tests_passed", "tests_failed", "tests_skipped", "tests_total"),
        *("verification", "github_conclusion", "expected", "ended_as", "swept_at"),
    )
)
"""All a view needs; the bodies and the lists of failed tests, which may be megabytes, are left where they are."""

_KEY = ("upstream", "delivery", "downstream", "workflow", "run_id", "attempt", "job_name")
_FAILED_TESTS = Statement(
    select(*VIEW_COLUMNS, jobs.c.failed_tests, jobs.c.failed_tests_cut).where(
        *(jobs.c[name] == bindparam(name) for name in _KEY)
    )
)
MOST_LISTED_TESTS = 5
"""Failed tests of a job in a list; its details have more."""
_FEWEST = 8
_MOST_ATTEMPTS = 2**31
"""More than a column holds."""
_PAGE_KEY = ("in_progress_at", "downstream", "delivery", "workflow", "run_id", "attempt", "job_name")
_IN_PULL = text(
    "jobs.delivery IN (SELECT p.delivery FROM dispatches p WHERE p.upstream = :upstream AND p.number = :number)"
)
_FILTERS: Mapping[str, ColumnElement[bool]] = {
    "delivery": jobs.c.delivery == bindparam("delivery"),
    "number": _IN_PULL,  # type: ignore[dict-item]  # a text clause is a condition too
    "state": jobs.c.state == bindparam("state"),
}


async def job_page(tx: Tx, query: JobQuery, seen: Seen) -> JobPage:
    names = [query.downstream.key] if query.downstream else list(seen.reporting)
    rows = await _newest(tx, query, [name for name in names if name in seen.reporting])
    page = rows[: query.limit]
    more = len(rows) > len(page)
    return JobPage(tuple(job_view(row, seen) for row in page), _page_key(page[-1]) if more else None)


async def _newest(tx: Tx, query: JobQuery, names: list[str]) -> list[Row]:
    """One job more than asked for, over all backends: a few of each, and more of those that may hide newer ones."""
    filters = {"delivery": query.delivery, "number": query.number, "state": query.state}
    given = {key: value for key, value in filters.items() if value is not None}
    wanted = query.limit + 1
    few = max(_FEWEST, 2 * wanted // len(names)) if names else 0
    rows: list[Row] = []
    after = dict.fromkeys(names, query.after)
    while after:
        for name, key in list(after.items()):
            statement = _page_statement(frozenset(given), paged=key is not None)
            limits = {"limit": min(few, wanted), **given, **_after(key)}
            found = await tx.all(statement, upstream=query.upstream.key, downstream=name, **limits)
            rows += found
            if len(found) < min(few, wanted):
                del after[name]
            else:
                after[name] = _page_key(found[-1])
        rows.sort(key=_page_key, reverse=True)
        del rows[wanted:]
        if len(rows) == wanted:
            last = _page_key(rows[-1])
            after = {name: key for name, key in after.items() if key and key > last}
    return rows


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
    match key:
        case (int(), str(), str(), str(), str(), int(attempt), str()) if 0 <= attempt < _MOST_ATTEMPTS:
            pass
        case _:
            raise bad_cursor()
    return {f"after_{name}": value for name, value in zip(_PAGE_KEY, key, strict=True)}


def _page_key(row: Row) -> tuple[str | int, ...]:
    return tuple(row[name] for name in _PAGE_KEY)


def job_view(row: Row, seen: Seen, failed: str | None = None, *, most: int = 0, cut: int = 0) -> JobView:
    """A job's row as a view, with at most `most` of its failed tests."""
    tests = json.loads(failed) if failed else []
    # By place: a row's own look-up of a name goes through its columns one by one. Every row begins with these.
    known: dict[str, Any] = dict(zip(_VIEW_NAMES, row, strict=False))
    return JobView(
        downstream=seen.written(known["downstream"]),
        state=_STATES[known["state"]],
        conclusion=_CONCLUSIONS[known["conclusion"]],
        disputed_conclusion=_CONCLUSIONS[known["disputed_conclusion"]],
        marks=tuple([mark for mark in _MARKS if known[mark]]),
        started_at=from_us(known["in_progress_at"]),
        completed_at=from_us_or_none(known["completed_at"]),
        verification=_VERIFICATIONS[known["verification"]],
        expected=_CONCLUSIONS[known["expected"]],
        ended=_ENDED[known["ended_as"]],
        swept_at=from_us_or_none(known["swept_at"]),
        failed_tests=tuple(FailedTest(**each) for each in tests[:most]) if tests else (),
        failed_tests_more=max(0, len(tests) - most) + cut,
        **{name: known[name] for name in _AS_STORED},
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
    return job_view(row, seen, row["failed_tests"], most=MOST_LISTED_TESTS, cut=row["failed_tests_cut"])


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
# A matrix has thousands of jobs: looking a word up takes a fraction of the time of calling its enum.
_STATES = {each.value: each for each in JobState}
_CONCLUSIONS: dict[str | None, Conclusion | None] = {None: None, **{each.value: each for each in Conclusion}}
_VERIFICATIONS = {each.value: each for each in Verification}
_ENDED: dict[str | None, EndedAs | None] = {None: None, **{each.value: each for each in EndedAs}}
_MARKS = tuple(each.value for each in JobMark)
_VIEW_NAMES = tuple(column.name for column in VIEW_COLUMNS)
