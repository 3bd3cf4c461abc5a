"""Reads what a failed job is judged by: the job's results on the base, its other failures, and the backend's hour.

Every query follows an index and has a limit: the cost of a verdict does not grow with the number of recorded jobs.
"""

# ruff: noqa: S608 - every name in these statements is our own

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.failures.history import (
    FLEET_SPAN,
    BackendHour,
    BaseResult,
    JobHistory,
    PullPass,
    RecordedFailure,
)
from crcr.decide.failures.verdict import VerdictPolicy
from crcr.decide.statistics.window import result_kind
from crcr.record.failures.failure_rows import read_failure
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us

_MOST_BASE = 100
_MOST_FAILURES = 120
_MOST_EXCUSABLE = 200
_MOST_IN_HOUR = 120
_MOST_PULL_RESULTS = 300
# A night usually has a workflow of its own, with the same jobs.
_OF_JOB = "{0}.upstream = :upstream AND {0}.downstream = :downstream AND {0}.job_name = :job_name AND ({0}.workflow = :workflow OR {0}.event IN ('nightly', 'periodic'))"
_BASE = Statement(
    text(
        "SELECT j.delivery, j.workflow, j.run_id, j.attempt, j.head_sha, j.event, j.ended_as,"
        " coalesce(j.completed_at, j.in_progress_at) AS at, c.position, u.default_branch FROM jobs j LEFT JOIN base_commits c"
        " ON c.sha = j.head_sha AND c.upstream = j.upstream AND c.ref = :ref LEFT JOIN upstreams u ON u.upstream = j.upstream"
        # What another relay recorded is no evidence: a verdict may excuse a failure.
        f" WHERE {_OF_JOB.format('j')} AND j.in_progress_at >= :since AND j.event <> 'pull_request'"
        " AND j.ended_as IS NOT NULL AND j.imported = 0 ORDER BY j.in_progress_at DESC LIMIT :most"
    )
)
_FAILURE = (
    "SELECT f.failure_id, f.delivery, f.workflow, f.job_name, f.kind, f.event, f.number, f.head_sha, f.base_ref,"
    " f.built_on, f.built_on_exact, f.author, f.trusted, f.at, f.ended, f.fingerprints, f.passed_at, f.attempt, f.run_id, f.verdict,"
    " f.confidence, f.sentence, f.verdict_before, f.judged_at, c.position, coalesce(p.merged, 0) AS landed, coalesce(p.is_open, 0) AS is_open, p.stacked_on"
    " FROM failures f LEFT JOIN base_commits c ON c.sha = f.built_on AND c.upstream = f.upstream AND c.ref = f.base_ref"
    " LEFT JOIN pulls p ON p.upstream = f.upstream AND p.number = f.number"
)
_FAILURES = Statement(
    text(f"{_FAILURE} WHERE {_OF_JOB.format('f')} AND f.at >= :since ORDER BY f.at DESC LIMIT :most")
)
_BASE_FAILURES = Statement(
    text(
        f"{_FAILURE} WHERE f.upstream = :upstream AND f.kind = :kind AND f.kind <> 'pull_request'"
        " AND f.downstream = :downstream AND f.workflow = :workflow AND f.job_name = :job_name AND f.at >= :since"
        " ORDER BY f.at DESC LIMIT :most"
    )
)
_EXCUSABLE = Statement(
    text(
        f"{_FAILURE} WHERE {_OF_JOB.format('f')} AND f.at >= :since AND f.at <= :until AND f.confidence = 'high'"
        " AND f.verdict IN ('pre-existing', 'flaky') AND p.is_open = 1 ORDER BY f.at DESC LIMIT :most"
    )
)
"""Older failures that the gate of an open pull request may excuse: their verdicts must not outlive what they rest on."""
_IN_HOUR = Statement(
    text(
        f"{_FAILURE} WHERE f.upstream = :upstream AND f.downstream = :downstream AND f.at >= :since AND f.at <= :until"
        " ORDER BY f.at DESC LIMIT :most"
    )
)
_PASSED_IN_HOUR = Statement(
    text(
        "SELECT count(*) AS number FROM (SELECT 1 AS one FROM jobs WHERE upstream = :upstream AND downstream = :downstream"
        " AND event IN ('pull_request', 'push', 'merge_group', 'nightly') AND completed_at >= :since"
        " AND completed_at <= :until AND ended_as IS NOT NULL"
        " AND ended_as = 'success' LIMIT :most) AS passed"
    )
)
_PULLS_PASSED = Statement(
    text(
        "SELECT day_at, success FROM job_days WHERE upstream = :upstream AND downstream = :downstream"
        " AND kind = 'pull_request' AND day_at >= :since AND workflow = :workflow AND job_name = :job_name"
    )
)


# The newest results of all jobs are read by their index, and those of the job chosen among them.
_PULL_PASSES = Statement(
    text(
        "SELECT j.number, j.head_sha, j.completed_at, c.position FROM (SELECT number, head_sha, completed_at, workflow,"
        " job_name, ended_as, upstream FROM jobs WHERE upstream = :upstream AND downstream = :downstream"
        " AND event = 'pull_request' AND completed_at >= :since AND ended_as IS NOT NULL AND imported = 0"
        " ORDER BY completed_at DESC LIMIT :most) AS j"
        " JOIN pulls p ON p.upstream = j.upstream AND p.number = j.number AND p.head_sha = j.head_sha"
        " JOIN base_commits c ON c.sha = p.merge_base AND c.upstream = j.upstream AND c.ref = :ref"
        " WHERE j.workflow = :workflow AND j.job_name = :job_name AND j.ended_as = 'success' AND p.base_ref = :ref"
    )
)


@dataclass(frozen=True, slots=True)
class LoadedHistory:
    """The history of one job for one base branch, with the rows of its failures."""

    history: JobHistory
    rows: dict[int, Row]
    """The failures by id."""

    def find(self, failure_id: int) -> RecordedFailure | None:
        return next((one for one in self.history.failures if one.failure_id == failure_id), None)


async def load_history(
    tx: Tx, job: dict[str, Any], ref: str | None, now: datetime, policy: VerdictPolicy
) -> LoadedHistory:
    """`job` names upstream, downstream, workflow and job_name; `ref` is the base branch."""
    since = to_us(now - policy.window)
    rows = await tx.all(_FAILURES, since=since, most=_MOST_FAILURES, **job)
    results = await tx.all(_BASE, ref=ref or "", since=since, most=_MOST_BASE, **job)
    rows += await _hidden_failures(tx, job, results, rows, since)
    failed = {_run_key(row): row for row in rows}
    base = tuple(result for row in results if (result := _base_result(row, ref, failed)) is not None)
    failures = tuple(read_failure(row) for row in rows)
    days = await _passes_by_day(tx, job, now, policy)
    passes: tuple[PullPass, ...] = ()
    if not base and _have_shared(rows):
        passes = await _pull_passes(tx, job, ref, since)
    history = JobHistory(
        base=base,
        failures=failures,
        pull_passes=passes,
        pulls_passed=sum(number for _, number in days),
        pulls_passed_by_day=days,
    )
    return LoadedHistory(history, {row["failure_id"]: row for row in rows})


async def _hidden_failures(
    tx: Tx, job: dict[str, Any], results: list[Row], rows: list[Row], since: int
) -> list[Row]:
    """What many newer failures of pull requests leave no room for: those of the base, and those that a gate may excuse."""
    if len(rows) < _MOST_FAILURES:
        return []
    known = {_run_key(row) for row in rows}
    failed = [row for row in results if row["ended_as"] == "failure" and _run_key(row) not in known]
    found = await tx.all(_EXCUSABLE, since=since, until=rows[-1]["at"], most=_MOST_EXCUSABLE, **job)
    for kind, workflow in sorted({(result_kind(row["event"]) or "", row["workflow"]) for row in failed}):
        of_workflow = {**job, "workflow": workflow, "kind": str(kind)}
        found += await tx.all(_BASE_FAILURES, since=since, most=_MOST_BASE, **of_workflow)
    return list({row["failure_id"]: row for row in found if _run_key(row) not in known}.values())


def _have_shared(rows: list[Row]) -> bool:
    """Whether two pull requests failed alike: only then do passes of others matter."""
    seen: dict[str, int] = {}
    for row in rows:
        if row["number"] is not None:
            for fingerprint in (row["fingerprints"] or "none").split():
                if seen.setdefault(fingerprint, row["number"]) != row["number"]:
                    return True
    return False


async def _pull_passes(tx: Tx, job: dict[str, Any], ref: str | None, since: int) -> tuple[PullPass, ...]:
    """The job's passes among the backend's newest results on pull requests: they matter where the base is not tested."""
    rows = await tx.all(_PULL_PASSES, ref=ref or "", since=since, most=_MOST_PULL_RESULTS, **job)
    return tuple(
        PullPass(row["number"], row["head_sha"], row["position"], from_us(row["completed_at"]))
        for row in rows
    )


async def _passes_by_day(
    tx: Tx, job: dict[str, Any], now: datetime, policy: VerdictPolicy
) -> tuple[tuple[datetime, int], ...]:
    day = (now - policy.window).replace(hour=0, minute=0, second=0, microsecond=0)
    rows = await tx.all(_PULLS_PASSED, since=to_us(day), **job)
    return tuple((from_us(row["day_at"]), row["success"]) for row in rows)


def _run_key(row: Row) -> tuple[Any, ...]:
    return row["delivery"], row["workflow"], row["run_id"], row["attempt"]


def _base_result(row: Row, ref: str | None, failed: dict[tuple[Any, ...], Row]) -> BaseResult | None:
    """A result as the baseline counts it: pushed commits and nights that passed or failed by themselves."""
    nightly = row["event"] not in ("push", "merge_group")
    if row["position"] is None and (not nightly or ref != row["default_branch"]):
        return None  # of another branch, or of a merge group that was not merged
    failure = failed.get(_run_key(row))
    if row["ended_as"] not in ("success", "failure") or (
        failure is not None and (failure["verdict"] == "infrastructure" or failure["passed_at"] is not None)
    ):
        return None
    return BaseResult(
        sha=row["head_sha"],
        position=row["position"],
        at=from_us(row["at"]),
        nightly=nightly,
        passed=row["ended_as"] == "success",
        fingerprints=frozenset((failure["fingerprints"] or "").split()) if failure else frozenset(),
        workflow=row["workflow"],
    )


async def load_hour(
    tx: Tx, job: dict[str, Any], failure: RecordedFailure, policy: VerdictPolicy
) -> tuple[BackendHour, list[Row]]:
    """The backend's failures around this one; its passes are counted only when there are enough failures to matter."""
    span = {"since": to_us(failure.at - FLEET_SPAN), "until": to_us(failure.at + FLEET_SPAN)}
    backend = {name: job[name] for name in ("upstream", "downstream")}
    rows = await tx.all(_IN_HOUR, most=_MOST_IN_HOUR, **span, **backend)
    heads = {(row["number"], row["head_sha"]) for row in rows}
    if len(rows) < policy.fleet_jobs or len(heads) < policy.fleet_heads:
        return BackendHour(), []
    most = int(len(rows) / policy.fleet_share) - len(rows) + 1
    counted = await tx.one(_PASSED_IN_HOUR, most=most, **span, **backend)
    passed = counted["number"] if counted else 0
    return BackendHour(failed=tuple(read_failure(row) for row in rows), passed=passed), rows


def is_in_span(failure: RecordedFailure, now: datetime) -> bool:
    """Whether the failure is recent enough for the backend's hour to change its verdict."""
    return now - failure.at <= FLEET_SPAN + timedelta(minutes=1)
