"""Jobs for pages: in lists, one with all its details, and a backend's jobs by name.

Lists are read backend by backend along `ix_jobs_backend` and merged, so that the cost follows the rows shown, and no row of
a hidden backend is read.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import compress, repeat
from typing import Any, cast

from sqlalchemy import ColumnElement, and_, bindparam, select, text, tuple_

from crcr.decide.checks.commit import Verification
from crcr.decide.jobs.ingested import OLDEST_CLAIM
from crcr.decide.model import Conclusion, JobMark, JobState, RepoName
from crcr.decide.statistics.figures import EndedAs, Tally, count_as
from crcr.decide.statistics.window import ResultKind, Window, result_kind
from crcr.decide.views.backend import Column, JobDetail, JobFigures, JobKey
from crcr.decide.views.failures import FailedTestView
from crcr.decide.views.overview import JobCell, JobPage, JobQuery, JobView
from crcr.errors import NotFound
from crcr.record.failures.recorder import read_log_excerpt
from crcr.record.jobs.tested_commits import read_commit_place
from crcr.record.schema.failures import failures
from crcr.record.schema.main_tables import jobs
from crcr.record.store.database import Row, Tx, plain_rows
from crcr.record.store.statement import Statement
from crcr.record.store.times import added_up_s, from_us, from_us_or_none, to_us
from crcr.record.views.backends.ingested import MOST_LISTED_TESTS, read_ingested_job
from crcr.record.views.failures.commit_failures import add_verdicts, rules_verdict
from crcr.record.views.paging import bad_cursor
from crcr.record.views.visibility import VisibleBackends

LATEST_ATTEMPT = text(
    "NOT EXISTS (SELECT 1 FROM jobs later WHERE later.upstream = jobs.upstream"
    " AND later.delivery = jobs.delivery AND later.downstream = jobs.downstream"
    " AND later.workflow = jobs.workflow AND later.run_id = jobs.run_id"
    " AND later.attempt > jobs.attempt AND later.job_name = jobs.job_name)"
)
CURRENT_RUN = text("jobs.superseded = 0")
NO_LATER_ATTEMPT = (
    "NOT EXISTS (SELECT 1 FROM jobs later WHERE later.delivery = j.delivery AND later.upstream = j.upstream"
    " AND later.downstream = j.downstream AND later.workflow = j.workflow AND later.run_id = j.run_id"
    " AND later.attempt > j.attempt AND later.job_name = j.job_name)"
)
"""The same of a job `j`, as text for larger statements."""
_CONCLUDED = " ".join(
    f"WHEN j.conclusion = '{conclusion}' THEN '{count_as(JobState.COMPLETED, conclusion)}'"
    for conclusion in Conclusion
)
COUNTED_AS_SQL = (
    "CASE WHEN j.state = 'timed_out' THEN 'failure' WHEN j.state <> 'completed' THEN 'running'"
    " WHEN j.expected IS NOT NULL AND j.conclusion = j.expected THEN 'success' WHEN j.expected IS NOT NULL THEN 'failure'"
    f" {_CONCLUDED} ELSE 'failure' END"
)
"""What a job `j` counts as (`count_as`)."""
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
        *("verification", "github_conclusion", "expected", "ended_as", "swept_at", "imported"),
    )
)
"""All a view needs; the bodies and the lists of failed tests, which may be megabytes, are left where they are."""

CELL_COLUMNS = tuple(
    jobs.c[name]
    for name in (
        *("workflow", "workflow_name", "run_id", "attempt", "job_name", "state", "conclusion"),
        *("disputed_conclusion", "in_progress_at", "execution_s", "expected"),
    )
)
"""What a cell of a matrix needs beside its commit: of thousands of jobs, half of the time is moving their columns."""
COMMIT_COLUMNS = tuple(jobs.c[name] for name in ("delivery", "event", "head_sha"))
"""The same for all cells of a dispatch."""

_KEY = ("upstream", "delivery", "downstream", "workflow", "run_id", "attempt", "job_name")
_FAILED_TESTS = Statement(
    select(*VIEW_COLUMNS, jobs.c.failed_tests, jobs.c.failed_tests_cut, jobs.c.log_excerpt).where(
        *(jobs.c[name] == bindparam(name) for name in _KEY)
    )
)
_FEWEST = 8
_MOST_ATTEMPTS = 2**31
"""More than a column holds."""
_PAGE_KEY = ("in_progress_at", "downstream", "delivery", "workflow", "run_id", "attempt", "job_name")
_IN_PULL = text(
    "jobs.delivery IN (SELECT p.delivery FROM dispatches p WHERE p.upstream = :upstream AND p.number = :number)"
)
_JOB_OF_FAILURE = and_(*(failures.c[name] == jobs.c[name] for name in _KEY))
_VERDICT = ("verdict", "confidence", "sentence", "evidence", "verdict_before")
_FILTERS: Mapping[str, ColumnElement[bool]] = {
    "delivery": jobs.c.delivery == bindparam("delivery"),
    "number": _IN_PULL,  # type: ignore[dict-item]  # a text clause is a condition too
    "state": jobs.c.state == bindparam("state"),
    "verdict": failures.c.verdict == bindparam("verdict"),
}


async def job_page(tx: Tx, query: JobQuery, visible: VisibleBackends) -> JobPage:
    names = [query.downstream.key] if query.downstream else list(visible.reporting)
    rows = await _read_newest(tx, query, [name for name in names if name in visible.reporting])
    page = rows[: query.limit]
    more = len(rows) > len(page)
    views = tuple(_with_verdict(query.upstream, row, job_view(row, visible)) for row in page)
    return JobPage(views, _page_key(page[-1]) if more else None)


def _with_verdict(upstream: RepoName, row: Row, job: JobView) -> JobView:
    """The verdict in a list is that of the rules: reading what people say would cost a query for each commit."""
    return replace(job, verdict=rules_verdict(upstream, row)) if row["verdict"] is not None else job


async def _read_newest(tx: Tx, query: JobQuery, names: list[str]) -> list[Row]:
    """One job more than the limit, over all backends: a few of each, then more of those that may have newer ones."""
    filters = {
        "delivery": query.delivery,
        "number": query.number,
        "state": query.state,
        "verdict": query.verdict,
    }
    bound_filters = {key: value for key, value in filters.items() if value is not None}
    needed = query.limit + 1
    few = max(_FEWEST, 2 * needed // len(names)) if names else 0
    rows: list[Row] = []
    after = dict.fromkeys(names, query.after)
    while after:
        for name, key in list(after.items()):
            statement = _page_statement(frozenset(bound_filters), paged=key is not None)
            limits = {"limit": min(few, needed), **bound_filters, **_after(key)}
            backend_rows = await tx.all(statement, upstream=query.upstream.key, downstream=name, **limits)
            rows += backend_rows
            if len(backend_rows) < min(few, needed):
                del after[name]
            else:
                after[name] = _page_key(backend_rows[-1])
        rows.sort(key=_page_key, reverse=True)
        del rows[needed:]
        if len(rows) == needed:
            last = _page_key(rows[-1])
            after = {name: key for name, key in after.items() if key and key > last}
    return rows


@cache
def _page_statement(filters: frozenset[str], *, paged: bool) -> Statement:
    by_verdict = "verdict" in filters
    columns = (*VIEW_COLUMNS, *(failures.c[name] for name in _VERDICT))
    clause = select(*columns).where(*OF_BACKEND, *(_FILTERS[name] for name in sorted(filters)))
    if by_verdict:
        # Read from the failures: jobs with a rare verdict may be far apart.
        of_backend = (failures.c[name] == bindparam(name) for name in ("upstream", "downstream"))
        clause = clause.select_from(failures.join(jobs, _JOB_OF_FAILURE)).where(*of_backend)
    else:
        clause = clause.select_from(jobs.outerjoin(failures, _JOB_OF_FAILURE))
    # A sum is in no index: the jobs with a verdict are sorted, not searched for in the order of the jobs.
    started = jobs.c.in_progress_at + 0 if by_verdict else jobs.c.in_progress_at
    page_key = (started, *(jobs.c[name] for name in _PAGE_KEY[1:]))
    if paged:
        seen_before = tuple_(*(bindparam(f"after_{name}") for name in _PAGE_KEY))
        clause = clause.where(tuple_(*page_key) < seen_before)
        # Implied by the line above, and what makes SQLite enter its index there.
        if "delivery" not in filters and not by_verdict:
            clause = clause.where(jobs.c.in_progress_at <= bindparam("after_in_progress_at"))
    clause = clause.order_by(*(column.desc() for column in page_key))
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


def job_view(
    row: Row, visible: VisibleBackends, failed: str | None = None, *, most: int = 0, cut: int = 0
) -> JobView:
    """A job's row as a view, with at most `most` of its failed tests."""
    tests = json.loads(failed) if failed else []
    # By position, in the order of `VIEW_COLUMNS`: a look-up by name scans the columns, and a matrix has thousands of jobs.
    values: Iterable[Any] = row
    (
        delivery, downstream, workflow, workflow_name, run_id, attempt, job_name, state,
        conclusion, disputed_conclusion, late, disputed, superseded, unsigned, event,
        number, head_sha, url, artifact_url, in_progress_at, completed_at, queue_s,
        execution_s, tests_passed, tests_failed, tests_skipped, tests_total,
        verification, github_conclusion, expected, ended_as, swept_at, imported, *_,
    ) = values  # fmt: skip
    return JobView(
        delivery=delivery,
        downstream=visible.full_name(downstream),
        workflow=workflow,
        workflow_name=workflow_name,
        run_id=run_id,
        attempt=attempt,
        job_name=job_name,
        state=_STATES[state],
        conclusion=_CONCLUSIONS[conclusion],
        disputed_conclusion=_CONCLUSIONS[disputed_conclusion],
        marks=tuple(compress(_MARKS, (late, disputed, superseded, unsigned, imported)))
        if late or disputed or superseded or unsigned or imported
        else (),
        event=event,
        number=number,
        head_sha=head_sha,
        url=url,
        artifact_url=artifact_url,
        started_at=from_us(in_progress_at),
        completed_at=None if completed_at is None else from_us(completed_at),
        queue_s=queue_s,
        execution_s=execution_s,
        tests_passed=tests_passed,
        tests_failed=tests_failed,
        tests_skipped=tests_skipped,
        tests_total=tests_total,
        verification=_VERIFICATIONS[verification],
        expected=_CONCLUSIONS[expected],
        ended=_ENDED[ended_as],
        github_conclusion=github_conclusion,
        swept_at=None if swept_at is None else from_us(swept_at),
        failed_tests=tuple(FailedTestView(**test) for test in tests[:most]) if tests else (),
        failed_tests_more=max(0, len(tests) - most) + cut if tests else cut,
    )


def job_views(rows: Iterable[Row], visible: VisibleBackends) -> list[JobView]:
    return [job_view(row, visible) for row in rows]


Commit = tuple[str, str, str | None]
"""The values of `COMMIT_COLUMNS`."""


def job_cells(rows: Iterable[Row], name: RepoName, commit: Commit | None) -> list[JobCell]:
    """Rows of `CELL_COLUMNS` of one backend as cells of a matrix; without a commit, `COMMIT_COLUMNS` follow in each row.

    There are thousands, so that a call for each would count.
    """
    values: Iterable[tuple[Iterable[Any], Iterable[Any]]] = (
        zip(rows, repeat(commit)) if commit else map(_split_commit, rows)
    )
    full_name, states, conclusions, read_time = name.full_name, _STATES, _CONCLUSIONS, from_us
    return [
        JobCell(
            delivery=delivery,
            downstream=full_name,
            workflow=workflow,
            workflow_name=workflow_name,
            run_id=run_id,
            attempt=attempt,
            job_name=job_name,
            state=states[state],
            conclusion=conclusions[conclusion],
            disputed_conclusion=conclusions[disputed_conclusion],
            event=event,
            head_sha=head_sha,
            started_at=read_time(in_progress_at),
            execution_s=execution_s,
            expected=conclusions[expected],
        )
        for (
            workflow, workflow_name, run_id, attempt, job_name, state,
            conclusion, disputed_conclusion, in_progress_at, execution_s, expected,
        ), (delivery, event, head_sha) in values
    ]  # fmt: skip


def _split_commit(row: Row) -> tuple[Iterable[Any], Iterable[Any]]:
    values: tuple[Any, ...] = tuple(cast("Iterable[Any]", row))
    return values[: len(CELL_COLUMNS)], values[len(CELL_COLUMNS) :]


async def add_failed_tests(tx: Tx, upstream: RepoName, visible: VisibleBackends, job: JobView) -> JobView:
    """The job with its first failed tests."""
    return await read_job_with_tests(tx, upstream, visible, job) or job


async def read_job_with_tests(
    tx: Tx, upstream: RepoName, visible: VisibleBackends, job: JobCell
) -> JobView | None:
    """The whole job with its first failed tests; None when it is no longer kept."""
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
        return None
    return _with_failures(row, visible, MOST_LISTED_TESTS)


def _with_failures(row: Row, visible: VisibleBackends, most: int) -> JobView:
    job = job_view(row, visible, row["failed_tests"], most=most, cut=row["failed_tests_cut"])
    excerpt = read_log_excerpt(row["log_excerpt"])
    return replace(job, first_error=excerpt.first_error) if excerpt else job


# A matrix has thousands of jobs: a dictionary is much faster than calling the enum.
_STATES = {state.value: state for state in JobState}
_CONCLUSIONS: dict[str | None, Conclusion | None] = {
    None: None,
    **{conclusion.value: conclusion for conclusion in Conclusion},
}
_VERIFICATIONS = {verification.value: verification for verification in Verification}
_ENDED: dict[str | None, EndedAs | None] = {None: None, **{ended.value: ended for ended in EndedAs}}
_MARKS = tuple(
    mark.value
    for mark in (JobMark.LATE, JobMark.DISPUTED, JobMark.SUPERSEDED, JobMark.UNSIGNED, JobMark.IMPORTED)
)


_MOST_FAILED_TESTS = 50
_MOST_JOBS = 100
WHY_NOT = "it may be so old that it is no longer kept, or its backend is not shown"

_ATTEMPTS = Statement(
    select(
        *VIEW_COLUMNS,
        jobs.c.failed_tests,
        jobs.c.failed_tests_cut,
        jobs.c.log_excerpt,
        jobs.c.environment,
    )
    .where(
        *OF_BACKEND,
        *(jobs.c[name] == bindparam(name) for name in ("delivery", "workflow", "run_id", "job_name")),
    )
    .order_by(jobs.c.attempt.desc())
)
_DISPATCH_FACTS = Statement(
    text(
        "SELECT d.sent_at, d.superseded_at, d.test, p.title, p.author, v.ref FROM dispatches d"
        " LEFT JOIN pulls p ON p.upstream = d.upstream AND p.number = d.number"
        " LEFT JOIN deliveries v ON v.guid = d.delivery AND v.upstream = d.upstream"
        " WHERE d.delivery = :delivery AND d.upstream = :upstream AND d.downstream = :downstream"
    )
)
_BY_NAME = Statement(
    text(
        "SELECT workflow, max(workflow_name) AS workflow_name, job_name, sum(success) AS success,"
        " sum(failure) AS failure, sum(timed_out) + sum(silent) AS timed_out, sum(other) AS other,"
        " sum(execution_sum_s) AS execution_sum_s, sum(execution_known) AS execution_known FROM job_days"
        " WHERE upstream = :upstream AND downstream = :downstream AND kind = :kind AND day_at >= :since"
        " AND day_at < :until GROUP BY workflow, job_name"
        " HAVING sum(success) + sum(failure) + sum(timed_out) + sum(silent) + sum(other) > 0 ORDER BY workflow, job_name"
    )
)

_COUNTED = (
    " sum(CASE WHEN ended_as = 'success' THEN 1 ELSE 0 END) AS success,"
    " sum(CASE WHEN ended_as = 'failure' THEN 1 ELSE 0 END) AS failure,"
    " sum(CASE WHEN ended_as IN ('timed_out', 'silent') THEN 1 ELSE 0 END) AS timed_out,"
    " sum(CASE WHEN ended_as = 'other' THEN 1 ELSE 0 END) AS other,"
    " coalesce(sum(CASE WHEN ended_as IN ('success', 'failure', 'timed_out') THEN execution_s END), 0)"
    " AS execution_sum_s,"
    " count(CASE WHEN ended_as IN ('success', 'failure', 'timed_out') THEN execution_s END) AS execution_known"
)
# A window of hours cuts through days; the jobs of one backend and day are few enough to read their rows.
_BY_NAME_NOW = Statement(
    text(
        f"SELECT workflow, max(workflow_name) AS workflow_name, job_name,{_COUNTED}"  # noqa: S608  our own text
        " FROM jobs WHERE upstream = :upstream AND downstream = :downstream AND in_progress_at >= :since"
        " AND in_progress_at < :until AND ended_as IN ('success', 'failure', 'timed_out', 'silent', 'other')"
        " AND event IN (:event, :other_event) GROUP BY workflow, job_name ORDER BY workflow, job_name"
    )
)
# Their index is by end time, which may be a claim of the other relay and is accepted for a week back.
_BY_NAME_INGESTED = Statement(
    text(
        f"SELECT workflow_name AS workflow, workflow_name, job_name,{_COUNTED}"  # noqa: S608  our own text
        " FROM ingested WHERE upstream = :upstream AND downstream = :downstream AND completed_at >= :ended_since"
        " AND coalesce(started_at, seen_at) >= :since AND coalesce(started_at, seen_at) < :until"
        " AND ended_as IN ('success', 'failure', 'timed_out', 'other') GROUP BY workflow_name, job_name"
        " ORDER BY workflow_name, job_name"
    )
)


async def job_detail(
    tx: Tx, upstream: RepoName, downstream: RepoName, key: JobKey, visible: VisibleBackends
) -> JobDetail:
    """Raise `NotFound` for an unknown job, and for one whose backend is not visible."""
    key_columns = {"upstream": upstream.key, "downstream": downstream.key, "delivery": key.delivery}
    job = {"workflow": key.workflow, "run_id": key.run_id, "job_name": key.job_name}
    is_visible = downstream.key in visible.reporting
    rows = await tx.all(_ATTEMPTS, **key_columns, **job) if is_visible else []
    row_found = next((row for row in rows if row["attempt"] == key.attempt), None)
    if row_found is None:
        other = await read_ingested_job(tx, upstream, downstream, key, visible) if is_visible else None
        if other is not None:
            return other
        raise NotFound("no such job is known", hint=WHY_NOT)
    dispatch = await tx.one(_DISPATCH_FACTS, **key_columns)
    return JobDetail(
        upstream=upstream,
        backend=visible.reporting[downstream.key].name,
        job=(await add_verdicts(tx, upstream, [_with_failures(row_found, visible, _MOST_FAILED_TESTS)]))[0],
        attempts=tuple(job_view(row, visible) for row in rows),
        environment=row_found["environment"],
        log_excerpt=read_log_excerpt(row_found["log_excerpt"]),
        title=dispatch["title"] if dispatch else None,
        author=dispatch["author"] if dispatch else None,
        ref=dispatch["ref"] if dispatch else None,
        sent_at=from_us_or_none(dispatch["sent_at"]) if dispatch else None,
        superseded=bool(dispatch and dispatch["superseded_at"] is not None),
        test=bool(dispatch and dispatch["test"]),
        place=await read_commit_place(tx, upstream, row_found["head_sha"])
        if _is_self_reported(row_found)
        else None,
    )


def _is_self_reported(row: Row) -> bool:
    return result_kind(row["event"]) is ResultKind.NIGHTLY


async def read_jobs_by_name(
    tx: Tx, upstream: RepoName, downstream: RepoName, kind: ResultKind, window: Window
) -> tuple[tuple[JobFigures, ...], int]:
    """The jobs of a backend over the window, worst first, and how many more there are."""
    backend = {"upstream": upstream.key, "downstream": downstream.key}
    times = {"since": to_us(window.since), "until": to_us(window.until)}
    if window.whole_days:
        rows = await tx.all(_BY_NAME, kind=kind.value, **backend, **times)
    elif kind is ResultKind.INGESTED:
        ended_since = to_us(window.since - OLDEST_CLAIM)
        rows = await tx.all(_BY_NAME_INGESTED, ended_since=ended_since, **backend, **times)
    else:
        events = {"event": kind.events[0], "other_event": kind.events[-1]}
        rows = await tx.all(_BY_NAME_NOW, **backend, **times, **events)
    return sort_worst_first(rows)


def sort_worst_first(rows: Iterable[Row]) -> tuple[tuple[JobFigures, ...], int]:
    figures = sorted(map(_job_figures, plain_rows(rows)), key=_worst_key)
    return tuple(figures[:_MOST_JOBS]), max(0, len(figures) - _MOST_JOBS)


def _job_figures(row: Mapping[str, Any]) -> JobFigures:
    failure = row["failure"] + row["timed_out"]
    return JobFigures(
        column=Column(row["workflow"], row["workflow_name"], row["job_name"]),
        tally=Tally(success=row["success"], failure=failure, other=row["other"], timed_out=row["timed_out"]),
        execution_s=added_up_s(row["execution_sum_s"]) / row["execution_known"]
        if row["execution_known"]
        else None,
    )


def _worst_key(job: JobFigures) -> tuple[float, int, str]:
    rate = job.tally.pass_rate
    return 2.0 if rate is None else rate, -job.tally.failure, job.column.job_name.lower()
