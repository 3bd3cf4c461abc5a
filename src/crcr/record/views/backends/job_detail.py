"""One job with everything known of it, and the jobs of a backend by name."""

from collections.abc import Iterable

from sqlalchemy import bindparam, select, text

from crcr.decide.model import RepoName
from crcr.decide.report.ingested import OLDEST_CLAIM
from crcr.decide.statistics.figures import Tally
from crcr.decide.statistics.window import ResultKind, Window, result_kind
from crcr.decide.views.backend import Column, JobDetail, JobFigures, JobKey
from crcr.errors import NotFound
from crcr.record.reports.tested_commits import read_place
from crcr.record.schema.core import jobs
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import added_up_s, from_us_or_none, to_us
from crcr.record.views.backends.ingested import ingested_job
from crcr.record.views.backends.job_list import OF_BACKEND, VIEW_COLUMNS, job_view
from crcr.record.views.visibility import Seen

_MOST_FAILED_TESTS = 50
_MOST_JOBS = 100
_WHY_NOT = "it may be so old that it is no longer kept, or its backend is not shown"

_ATTEMPTS = Statement(
    select(*VIEW_COLUMNS, jobs.c.failed_tests, jobs.c.failed_tests_cut, jobs.c.environment)
    .where(
        *OF_BACKEND,
        *(jobs.c[name] == bindparam(name) for name in ("delivery", "workflow", "run_id", "job_name")),
    )
    .order_by(jobs.c.attempt.desc())
)
_AROUND = Statement(
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
# A window of hours cuts through days; a day's jobs of one backend are few enough to be asked themselves.
_BY_NAME_NOW = Statement(
    text(
        f"SELECT workflow, max(workflow_name) AS workflow_name, job_name,{_COUNTED}"  # noqa: S608  our own text
        " FROM jobs WHERE upstream = :upstream AND downstream = :downstream AND in_progress_at >= :since"
        " AND in_progress_at < :until AND ended_as IN ('success', 'failure', 'timed_out', 'silent', 'other')"
        " AND event IN (:event, :other_event) GROUP BY workflow, job_name ORDER BY workflow, job_name"
    )
)
# They have an index by when they ended, which may be claimed, and is believed for a week back.
_BY_NAME_INGESTED = Statement(
    text(
        f"SELECT workflow_name AS workflow, workflow_name, job_name,{_COUNTED}"  # noqa: S608  our own text
        " FROM ingested WHERE upstream = :upstream AND downstream = :downstream AND completed_at >= :ended_since"
        " AND coalesce(started_at, seen_at) >= :since AND coalesce(started_at, seen_at) < :until"
        " AND ended_as IN ('success', 'failure', 'timed_out', 'other') GROUP BY workflow_name, job_name"
        " ORDER BY workflow_name, job_name"
    )
)


async def job_detail(tx: Tx, upstream: RepoName, downstream: RepoName, key: JobKey, seen: Seen) -> JobDetail:
    """Raises `NotFound` for what is not there and for what is not to be seen, alike."""
    where = {"upstream": upstream.key, "downstream": downstream.key, "delivery": key.delivery}
    job = {"workflow": key.workflow, "run_id": key.run_id, "job_name": key.job_name}
    visible = downstream.key in seen.reporting
    rows = await tx.all(_ATTEMPTS, **where, **job) if visible else []
    asked = next((row for row in rows if row["attempt"] == key.attempt), None)
    if asked is None:
        other = await ingested_job(tx, upstream, downstream, key, seen) if visible else None
        if other is not None:
            return other
        raise NotFound("no such job is known", hint=_WHY_NOT)
    around = await tx.one(_AROUND, **where)
    return JobDetail(
        upstream=upstream,
        backend=seen.reporting[downstream.key].name,
        job=job_view(
            asked, seen, asked["failed_tests"], most=_MOST_FAILED_TESTS, cut=asked["failed_tests_cut"]
        ),
        attempts=tuple(job_view(row, seen) for row in rows),
        environment=asked["environment"],
        title=around["title"] if around else None,
        author=around["author"] if around else None,
        ref=around["ref"] if around else None,
        sent_at=from_us_or_none(around["sent_at"]) if around else None,
        superseded=bool(around and around["superseded_at"] is not None),
        test=bool(around and around["test"]),
        place=await read_place(tx, upstream, asked["head_sha"]) if _is_own(asked) else None,
    )


def _is_own(row: Row) -> bool:
    return result_kind(row["event"]) is ResultKind.NIGHTLY


async def jobs_by_name(
    tx: Tx, upstream: RepoName, downstream: RepoName, kind: ResultKind, window: Window
) -> tuple[tuple[JobFigures, ...], int]:
    """The jobs of a backend over the window, worst first, and how many more there are."""
    where = {"upstream": upstream.key, "downstream": downstream.key}
    times = {"since": to_us(window.since), "until": to_us(window.until)}
    if window.whole_days:
        rows = await tx.all(_BY_NAME, kind=kind.value, **where, **times)
    elif kind is ResultKind.INGESTED:
        ended_since = to_us(window.since - OLDEST_CLAIM)
        rows = await tx.all(_BY_NAME_INGESTED, ended_since=ended_since, **where, **times)
    else:
        events = {"event": kind.events[0], "other_event": kind.events[-1]}
        rows = await tx.all(_BY_NAME_NOW, **where, **times, **events)
    return worst_first(rows)


def worst_first(rows: Iterable[Row]) -> tuple[tuple[JobFigures, ...], int]:
    found = sorted(map(_job_figures, rows), key=_worst)
    return tuple(found[:_MOST_JOBS]), max(0, len(found) - _MOST_JOBS)


def _job_figures(row: Row) -> JobFigures:
    failure = row["failure"] + row["timed_out"]
    return JobFigures(
        column=Column(row["workflow"], row["workflow_name"], row["job_name"]),
        tally=Tally(success=row["success"], failure=failure, other=row["other"], timed_out=row["timed_out"]),
        execution_s=added_up_s(row["execution_sum_s"]) / row["execution_known"]
        if row["execution_known"]
        else None,
    )


def _worst(job: JobFigures) -> tuple[float, int, str]:
    rate = job.tally.pass_rate
    return 2.0 if rate is None else rate, -job.tally.failure, job.column.job_name.lower()
