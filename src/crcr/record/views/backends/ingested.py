"""Other relays' results for the pages: a backend's deliveries with their jobs, and one job's details.

A row is one delivery with all its jobs. As in the other matrices, a cell has the highest attempt of the newest run; legs
that share a name are numbered.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from sqlalchemy import bindparam, select, tuple_

from crcr.decide.jobs.ingested import RunAttempt, has_later_attempt, is_superseded
from crcr.decide.model import Conclusion, JobMark, JobState, RepoName
from crcr.decide.statistics.figures import EndedAs
from crcr.decide.views.backend import BackendQuery, JobDetail, JobKey
from crcr.decide.views.failures import FailedTestView
from crcr.decide.views.overview import JobView
from crcr.errors import BadRequest
from crcr.record.failures.recorder import read_log_excerpt
from crcr.record.schema.statistics import ingested
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none
from crcr.record.views.visibility import VisibleBackends

MOST_LISTED_TESTS = 5
"""Failed tests of a job in a list; its details have more."""

_DELIVERY_FACTS = ("event", "action", "number", "head_sha", "ref", "title", "author")
_AS_STORED = (
    *("delivery", "workflow_name", "run_id", "attempt", "event", "number", "head_sha", "url", "artifact_url"),
    *("queue_s", "execution_s", "tests_passed", "tests_failed", "tests_skipped", "tests_total"),
)
_SHOWN = tuple(
    ingested.c[name]
    for name in (
        *_AS_STORED,
        *("action", "ref", "title", "author", "downstream", "job_name", "check_run", "state", "conclusion"),
        *("disputed_conclusion", "expected", "started_at", "completed_at", "seen_at", "ended_as"),
    )
)
"""The columns of a view; bodies and lists of failed tests, which may be megabytes, are not read."""
_OF_BACKEND = (ingested.c.upstream == bindparam("upstream"), ingested.c.downstream == bindparam("downstream"))
_CURSOR_COLUMNS = (ingested.c.delivery_at, ingested.c.delivery)
_MOST_FAILED_TESTS = 50
_MOST_SEARCHED = 500


def _deliveries(*, paged: bool) -> Statement:
    """The index `ix_ingested_backend` has all columns, so a page costs what it shows."""
    clause = (
        select(*_CURSOR_COLUMNS).distinct().where(*_OF_BACKEND, ingested.c.delivery_at >= bindparam("since"))
    )
    if paged:
        before = tuple_(bindparam("after_at"), bindparam("after_delivery"))
        clause = clause.where(
            tuple_(*_CURSOR_COLUMNS) < before, ingested.c.delivery_at <= bindparam("after_at")
        )
    return Statement(
        clause.order_by(*(column.desc() for column in _CURSOR_COLUMNS)).limit(bindparam("limit"))
    )


_FIRST_PAGE, _NEXT_PAGE = _deliveries(paged=False), _deliveries(paged=True)
_JOBS = Statement(
    select(*_SHOWN)
    .where(*_OF_BACKEND, ingested.c.delivery == bindparam("delivery"))
    .order_by(ingested.c.workflow_name, ingested.c.job_name, ingested.c.check_run)
)
_DETAILS = Statement(
    select(
        ingested.c.failed_tests, ingested.c.failed_tests_cut, ingested.c.log_excerpt, ingested.c.environment
    ).where(
        *(
            ingested.c[name] == bindparam(name)
            for name in ("delivery", "downstream", "workflow_name", "job_name", "check_run")
        )
    )
)


@dataclass(slots=True)
class IngestedRows:
    """Deliveries with their jobs; `next` is the cursor where the search continues, if it is not complete."""

    rows: list[tuple[dict[str, Any], list[JobView]]] = field(default_factory=list)
    searched: int = 0
    next: tuple[str | int, ...] | None = None


async def read_ingested_rows(
    tx: Tx, query: BackendQuery, visible: VisibleBackends, since_us: int
) -> IngestedRows:
    """The deliveries after `query.after` that match it, newest first, one more than its limit.

    A backend without visible results has none. With filters at most `_MOST_SEARCHED` deliveries are examined.
    """
    page = IngestedRows()
    if query.downstream.key not in visible.reporting:
        return page
    backend = {"upstream": query.upstream.key, "downstream": query.downstream.key}
    most = _search_limit(query)
    deliveries = await _read_deliveries(tx, query, {**backend, "since": since_us, "limit": most})
    if len(deliveries) == most:
        page.next = (deliveries[-1]["delivery_at"], deliveries[-1]["delivery"])
    for delivery in deliveries:
        page.searched += 1
        jobs = await tx.all(_JOBS, delivery=delivery["delivery"], **backend)
        cells = [
            _job_view(row, name, visible)
            for row, name in _with_column_names(jobs)
            if not _is_outdated(row, jobs)
        ]
        facts = {
            "delivery": delivery["delivery"],
            "at": from_us(delivery["delivery_at"]),
            **_delivery_facts(jobs),
        }
        if _matches(query, facts, cells):
            page.rows.append((facts, cells))
        if len(page.rows) > query.limit:
            break
    return page


def _search_limit(query: BackendQuery) -> int:
    filtered = any((query.author, query.text, query.result, query.verdict))
    return max(_MOST_SEARCHED if filtered else 0, query.limit + 1)


async def _read_deliveries(tx: Tx, query: BackendQuery, where: dict[str, Any]) -> list[Row]:
    if query.after is None:
        return await tx.all(_FIRST_PAGE, **where)
    at, delivery = _cursor_start(query.after)
    return await tx.all(_NEXT_PAGE, after_at=at, after_delivery=delivery, **where)


def _matches(query: BackendQuery, facts: dict[str, Any], cells: list[JobView]) -> bool:
    if query.author and query.author.lower() != (facts["author"] or "").lower():
        return False
    if query.verdict:
        return False  # nobody judges another relay's results
    if query.result and all(cell.counted is not query.result for cell in cells):
        return False
    values = (facts[name] for name in ("number", "head_sha", "ref", "title", "author"))
    return not query.text or any(query.text.lower() in str(value or "").lower() for value in values)


async def read_ingested_job(
    tx: Tx, upstream: RepoName, downstream: RepoName, key: JobKey, visible: VisibleBackends
) -> JobDetail | None:
    """One job of another relay with all its details; None when there is no such job."""
    if downstream.key not in visible.reporting:
        return None
    key_columns = {"upstream": upstream.key, "downstream": downstream.key, "delivery": key.delivery}
    rows = [row for row in await tx.all(_JOBS, **key_columns) if row["workflow_name"] == key.workflow]
    named = [(row, name) for row, name in _with_column_names(rows) if name == key.job_name]
    row_found = next(
        (row for row, _ in named if (row["run_id"], row["attempt"]) == (key.run_id, key.attempt)), None
    )
    if row_found is None:
        return None
    row_key = {
        name: row_found[name] for name in ("delivery", "downstream", "workflow_name", "job_name", "check_run")
    }
    details = await tx.one(_DETAILS, **row_key)
    named.sort(key=lambda pair: (len(pair[0]["run_id"]), pair[0]["run_id"], pair[0]["attempt"]), reverse=True)
    return JobDetail(
        upstream=upstream,
        backend=RepoName(visible.full_name(downstream.key)),
        job=_job_view(row_found, key.job_name, visible, details),
        attempts=tuple(_job_view(row, name, visible) for row, name in named),
        environment=details["environment"] if details else None,
        log_excerpt=read_log_excerpt(details["log_excerpt"]) if details else None,
        title=row_found["title"],
        author=row_found["author"],
        ref=row_found["ref"],
        sent_at=None,
        superseded=False,
        test=False,
        ingested=True,
    )


async def add_ingested_failed_tests(
    tx: Tx, upstream: RepoName, visible: VisibleBackends, job: JobView
) -> JobView:
    """The job with its first failed tests."""
    key = JobKey(
        delivery=job.delivery,
        workflow=job.workflow,
        run_id=job.run_id,
        attempt=job.attempt,
        job_name=job.job_name,
    )
    detail = await read_ingested_job(tx, upstream, RepoName(job.downstream), key, visible)
    if detail is None:
        return job
    tests = detail.job.failed_tests
    more = detail.job.failed_tests_more + max(0, len(tests) - MOST_LISTED_TESTS)
    return replace(detail.job, failed_tests=tests[:MOST_LISTED_TESTS], failed_tests_more=more)


def _cursor_start(key: tuple[str | int, ...]) -> tuple[int, str]:
    match key:
        case (int(at), str(delivery)):
            return at, delivery
        case _:
            raise BadRequest(
                "the cursor is not one of ours", hint="pass on `next` of the page before, unchanged"
            )


def _delivery_facts(jobs: Iterable[Row]) -> dict[str, Any]:
    """The delivery's facts as its jobs have them; where they differ, those of the first job."""
    ordered = sorted(jobs, key=_row_order)
    return {
        name: next((row[name] for row in ordered if row[name] not in (None, "")), None)
        for name in _DELIVERY_FACTS
    } | {"event": next((row["event"] for row in ordered if row["event"]), "")}


def _is_outdated(row: Row, jobs: Iterable[Row]) -> bool:
    turns = [_run_attempt(job) for job in jobs if _job_key(job) == _job_key(row)]
    return is_superseded(_run_attempt(row), turns) or has_later_attempt(_run_attempt(row), turns)


def _with_column_names(jobs: Iterable[Row]) -> list[tuple[Row, str]]:
    """Return each row with the name of its column: legs that share a name in one attempt are numbered."""
    named = []
    for _, legs in groupby(
        sorted(jobs, key=_row_order), key=lambda row: (*_job_key(row), row["run_id"], row["attempt"])
    ):
        for leg, row in enumerate(legs, start=1):
            named.append((row, row["job_name"] if leg == 1 else f"{row['job_name']} ({leg})"))
    return named


def _row_order(row: Row) -> tuple[Any, ...]:
    """Check runs are sorted by length first, so that numbers are in numeric order."""
    return (*_job_key(row), row["run_id"], row["attempt"], len(row["check_run"]), row["check_run"])


def _job_key(row: Row) -> tuple[str, str]:
    return row["workflow_name"], row["job_name"]


def _run_attempt(row: Row) -> RunAttempt:
    return RunAttempt(row["run_id"], row["attempt"])


def _conclusion(value: str | None) -> Conclusion | None:
    return Conclusion(value) if value else None


def _job_view(row: Row, job_name: str, visible: VisibleBackends, details: Row | None = None) -> JobView:
    tests = json.loads(details["failed_tests"]) if details and details["failed_tests"] else []
    cut = (details["failed_tests_cut"] or 0) if details else 0
    excerpt = read_log_excerpt(details["log_excerpt"]) if details else None
    return JobView(
        downstream=visible.full_name(row["downstream"]),
        workflow=row["workflow_name"],
        job_name=job_name,
        state=JobState(row["state"]),
        conclusion=_conclusion(row["conclusion"]),
        disputed_conclusion=_conclusion(row["disputed_conclusion"]),
        marks=(JobMark.DISPUTED.value,) if row["disputed_conclusion"] else (),
        started_at=from_us(row["seen_at"] if row["started_at"] is None else row["started_at"]),
        completed_at=from_us_or_none(row["completed_at"]),
        expected=_conclusion(row["expected"]),
        ended=EndedAs(row["ended_as"]) if row["ended_as"] else None,
        failed_tests=tuple(FailedTestView(**test) for test in tests[:_MOST_FAILED_TESTS]),
        failed_tests_more=max(0, len(tests) - _MOST_FAILED_TESTS) + cut,
        first_error=excerpt.first_error if excerpt else None,
        **{name: row[name] for name in _AS_STORED},
    )
