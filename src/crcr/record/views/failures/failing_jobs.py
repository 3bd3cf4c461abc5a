"""Continuously failing jobs, worked out when they are read: callbacks write nothing for them.

Candidates are jobs with a failure on the base in the last 30 days whose last pass to arrive is not of a later commit: one
statement, along the index of the base's failures. It also finds the place of each candidate's last pass, by the index of the base's
results alone. The failures after it are read for each candidate, the pass itself for the jobs that are shown.
"""

# ruff: noqa: S608 - every name in these statements is our own

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.failures.failing import BranchCommit, FailingRow, find_failing_row
from crcr.decide.failures.history import FailedAs
from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.model import RepoName
from crcr.decide.statistics.figures import EndedAs
from crcr.decide.views.failing import (
    FailingJob,
    FailingKey,
    FailingKind,
    FailingPage,
    FailingQuery,
    FailingSort,
    failing_key,
    matches_text,
    order_jobs,
)
from crcr.decide.views.failures import KnownFailureView
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.failures.commit_failures import load_known
from crcr.record.views.paging import bad_cursor
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

FAILED_WITHIN = timedelta(days=30)
"""A job that did not fail for longer is not listed: it was renamed or removed."""
HISTORY = timedelta(days=90)
"""How far back the first failure and the last pass are looked for."""
_MOST_JOBS = 1_000
_MOST_PASSES = {FailingKind.PUSH: 50, FailingKind.NIGHTLY: 5}
"""Passes of commits arrive in any order, those of nights nearly in theirs."""
_MOST_FAILURES = 1_000
_MOST_FINGERPRINTS = 10
_LATE_PUSH_US = 4 * 86_400 * 1_000_000
"""A commit's results follow its push, but for those of its merge group, and of pushes that were recovered: GitHub redelivers
for 3 days."""

_BRANCH = Statement(text("SELECT default_branch FROM upstreams WHERE upstream = :upstream"))
_OF_JOB = (
    "{0}.upstream = :upstream AND {0}.downstream = {1}downstream AND {0}.workflow = {1}workflow"
    " AND {0}.job_name = {1}job_name"
)
_ON_COMMITS = " JOIN base_commits c ON c.sha = {0}.head_sha AND c.upstream = {0}.upstream AND c.ref = :ref"
_ENDED_AT = "coalesce(j.completed_at, j.in_progress_at)"
_PASSED = (
    " AND j.in_progress_at >= :since AND {0} AND j.ended_as IS NOT NULL AND j.ended_as = 'success' AND j.imported = 0"
    " ORDER BY j.in_progress_at DESC LIMIT "
)


_EVENTS = {
    FailingKind.PUSH: "j.event <> 'pull_request' AND j.event IN ('push', 'merge_group')",
    FailingKind.NIGHTLY: "j.event IN ('nightly', 'periodic')",
}
"""The conditions of `ix_jobs_base` and of `ix_jobs_nights`: between two nights are the results of many commits."""
_PLACES = {
    FailingKind.PUSH: (_ON_COMMITS, "c.position", "c.position"),
    # A sum is in no index: SQLite would look for it in the one of all failures of the job, most of which are on pull requests.
    FailingKind.NIGHTLY: ("", "(f.at + 0)", _ENDED_AT),
}
"""What gives failures and passes their place in the order: a joined table, and a column of each."""
_LATER = "CASE WHEN {0} > :failed_since THEN {0} ELSE :failed_since END AS since"
_COMPARED = {
    FailingKind.PUSH: (
        f"SELECT s.*, {_LATER.format(f'(c.pushed_at - {_LATE_PUSH_US})')} FROM passed s LEFT JOIN base_commits c"
        " ON c.upstream = :upstream AND c.ref = :ref AND c.position = s.place"
    ),
    FailingKind.NIGHTLY: f"SELECT s.*, {_LATER.format('s.place')} FROM passed s",
}
"""Since when a failure of a later place than the pass can have arrived."""


def _write_candidates(kind: FailingKind, chosen: str = "", *, on_any_branch: bool = False) -> str:
    """Only failures that may be of later commits than the pass are compared with it: most jobs have passed since.

    With `on_any_branch`, jobs without a failure on the branch are left out first: looking for a pass on a branch that has
    none, as strangers may ask for, would read all passes of all other jobs.
    """
    join, failed, passed = _PLACES[kind]
    on_base = f"f.upstream = :upstream AND f.kind <> 'pull_request' AND f.kind = '{kind.value}'"
    of_branch = (
        f" WHERE EXISTS (SELECT 1 FROM failures f{join.format('f')} WHERE {on_base} AND f.downstream = b.downstream"
        " AND f.workflow = b.workflow AND f.job_name = b.job_name AND f.at >= :failed_since)"
    )
    return (
        "WITH listed AS MATERIALIZED (SELECT f.downstream, f.workflow, f.job_name FROM failures f"
        f" WHERE {on_base}{chosen} AND f.at >= :failed_since GROUP BY f.downstream, f.workflow, f.job_name),"
        f" failed AS MATERIALIZED (SELECT b.* FROM listed b{of_branch if on_any_branch else ''}),"
        " passed AS MATERIALIZED (SELECT b.downstream, b.workflow, b.job_name,"
        f" coalesce((SELECT {passed} FROM jobs j{join.format('j')} WHERE {_OF_JOB.format('j', 'b.')}"
        f"{_PASSED.format(_EVENTS[kind])}1), -1) AS place FROM failed b), compared AS MATERIALIZED ({_COMPARED[kind]})"
        f" SELECT p.downstream, p.workflow, p.job_name, {_write_last_good(kind)} AS last_good"
        " FROM compared p WHERE EXISTS (SELECT 1 FROM"
        f" failures f{join.format('f')} WHERE {on_base} AND f.downstream = p.downstream AND f.workflow = p.workflow"
        f" AND f.job_name = p.job_name AND f.at >= p.since AND f.passed_at IS NULL AND {failed} > p.place)"
        " ORDER BY p.downstream, p.workflow, p.job_name LIMIT :most"
    )


def _write_last_good(kind: FailingKind) -> str:
    """The place of the latest commit or night with a pass, among the newest passes to arrive; -1 where there is none."""
    join, _, passed = _PLACES[kind]
    return (
        f"coalesce((SELECT max(newest.place) FROM (SELECT {passed} AS place FROM jobs j{join.format('j')}"
        f" WHERE {_OF_JOB.format('j', 'p.')}{_PASSED.format(_EVENTS[kind])}{_MOST_PASSES[kind]}) AS newest), -1)"
    )


def _write_last_pass(kind: FailingKind) -> str:
    """The pass at a place. Its commit is compared in the index, so that only its own row is read."""
    at_place = {
        FailingKind.PUSH: "j.head_sha IN (SELECT c.sha FROM base_commits c WHERE c.upstream = :upstream"
        " AND c.ref = :ref AND c.position = :last_good)",
        FailingKind.NIGHTLY: f"{_ENDED_AT} = :last_good",
    }
    return (
        f"SELECT j.delivery, j.head_sha FROM jobs j WHERE {_OF_JOB.format('j', ':')} AND {at_place[kind]}"
        f"{_PASSED.format(_EVENTS[kind])}1"
    )


def _write_failures(kind: FailingKind) -> str:
    join, failed, _ = _PLACES[kind]
    return (
        f"SELECT f.delivery, f.run_id, f.head_sha, f.at, {failed} AS place, f.ended, f.verdict, f.passed_at,"
        f" f.fingerprint, f.fingerprints, f.sample, j.ended_as FROM failures f{join.format('f')}"
        " LEFT JOIN jobs j ON j.delivery = f.delivery AND j.upstream = f.upstream AND j.downstream = f.downstream"
        " AND j.workflow = f.workflow AND j.run_id = f.run_id AND j.attempt = f.attempt AND j.job_name = f.job_name"
        f" WHERE {_OF_JOB.format('f', ':')} AND f.kind <> 'pull_request' AND f.kind = '{kind.value}'"
        f" AND f.at >= :since AND {failed} > :last_good ORDER BY f.at DESC LIMIT :most"
    )


_CANDIDATES = {kind: Statement(text(_write_candidates(kind))) for kind in FailingKind}
_ON_ANY_BRANCH = Statement(text(_write_candidates(FailingKind.PUSH, on_any_branch=True)))
_IN_BACKEND = {
    kind: Statement(
        text(
            _write_candidates(kind, " AND f.downstream = :downstream", on_any_branch=kind is FailingKind.PUSH)
        )
    )
    for kind in FailingKind
}
_LAST_PASS = {kind: Statement(text(_write_last_pass(kind))) for kind in FailingKind}
_FAILURES = {kind: Statement(text(_write_failures(kind))) for kind in FailingKind}


@dataclass(frozen=True, slots=True)
class _FoundJob:
    """A failing job, without its last pass where only a job's own result shows it."""

    view: FailingJob
    marks: Sequence[str]
    """The fingerprints of its newest failure."""
    pass_at: Mapping[str, Any] | None
    """The names of the job and the place of the pass; None where there is none, or where a re-run was the last to pass."""


async def failing_page(tx: Tx, query: FailingQuery, visible: VisibleBackends, now: datetime) -> FailingPage:
    check_cursor(query)
    branch = query.branch or await read_base_branch(tx, query.upstream)
    known = _KnownIssues(tx, query.upstream.key, now)
    found = dict[FailingKey, _FoundJob]()
    for job in await _find_failing(tx, query, branch, visible, now):
        if matches_text(job.view, query):
            view = replace(job.view, known=await known.find(job.marks))
            if query.known in (None, view.known is not None):
                found[failing_key(view, query.sort)] = replace(job, view=view)
    listed = order_jobs((job.view for job in found.values()), query)
    keys = [failing_key(view, query.sort) for view in listed[: query.limit]]
    more = keys[-1] if len(listed) > query.limit else None
    items = [await _add_last_pass(tx, query.kind, found[key]) for key in keys]
    return FailingPage(tuple(items), more, await newest_change(tx), branch)


def check_cursor(query: FailingQuery) -> None:
    """Raise `BadRequest` for a cursor that is not of this list in this order."""
    if query.after is None:
        return
    is_text = query.sort in (FailingSort.BACKEND, FailingSort.JOB)
    match query.after:
        case (int() | str() as value, str(), str(), str()) if isinstance(value, str) is is_text:
            return
    raise bad_cursor()


async def read_base_branch(tx: Tx, upstream: RepoName) -> str | None:
    row = await tx.one(_BRANCH, upstream=upstream.key)
    return row["default_branch"] if row else None


async def find_red_jobs(
    tx: Tx, upstream: RepoName, branch: str, now: datetime, backend: RepoName | None = None
) -> list[Row]:
    """The names of jobs, of one backend or of all, that failed on the branch and may not have passed since."""
    statement, chosen = _ON_ANY_BRANCH, dict[str, str]()
    if backend is not None:
        statement, chosen = _IN_BACKEND[FailingKind.PUSH], {"downstream": backend.key}
    return await tx.all(statement, upstream=upstream.key, ref=branch, **chosen, **_spans(now))


def _spans(now: datetime) -> dict[str, int]:
    since = {"failed_since": to_us(now - FAILED_WITHIN), "since": to_us(now - HISTORY)}
    return {**since, "most": _MOST_JOBS}


async def _find_failing(
    tx: Tx, query: FailingQuery, branch: str | None, visible: VisibleBackends, now: datetime
) -> list[_FoundJob]:
    """All failing jobs that the reader may see."""
    place: dict[str, Any] = {"upstream": query.upstream.key}
    if query.kind is FailingKind.PUSH:
        place["ref"] = branch or ""
    candidates = await tx.all(_choose_candidates(query, branch), **place, **_spans(now))
    jobs = [(visible.reporting.get(names["downstream"]), names) for names in candidates]
    return await _read_failing(tx, query.kind, place, [(entry, names) for entry, names in jobs if entry], now)


async def find_failing_jobs(
    tx: Tx, upstream: RepoName, entry: AllowlistEntry, now: datetime
) -> list[FailingJob]:
    """The jobs of one backend that fail on the base branch, or in its nights."""
    branch, found = await read_base_branch(tx, upstream), []
    for kind in FailingKind:
        place = {"upstream": upstream.key, **({"ref": branch or ""} if kind is FailingKind.PUSH else {})}
        candidates = await tx.all(_IN_BACKEND[kind], downstream=entry.name.key, **place, **_spans(now))
        jobs = await _read_failing(tx, kind, place, [(entry, names) for names in candidates], now)
        found += [await _add_last_pass(tx, kind, job) for job in jobs]
    return found


async def _read_failing(
    tx: Tx,
    kind: FailingKind,
    place: Mapping[str, Any],
    candidates: Iterable[tuple[AllowlistEntry, Row]],
    now: datetime,
) -> list[_FoundJob]:
    """Those of the candidates that fail after their last pass."""
    found = []
    for entry, names in candidates:
        job = {**place, "since": to_us(now - HISTORY), **dict(names)}
        failures = await tx.all(_FAILURES[kind], most=_MOST_FAILURES, **job)
        row = find_failing_row(_read_failure(failure, kind) for failure in failures if _counts(failure))
        if row is not None:
            has_pass = row.last_good is None and job["last_good"] >= 0
            found.append(_FoundJob(_view(entry, job, row), _marks(row.newest), job if has_pass else None))
    return found


async def _add_last_pass(tx: Tx, kind: FailingKind, job: _FoundJob) -> FailingJob:
    if job.pass_at is None or (row := await tx.one(_LAST_PASS[kind], **job.pass_at)) is None:
        return job.view
    return replace(job.view, last_good=row["head_sha"], good_delivery=row["delivery"])


def _choose_candidates(query: FailingQuery, branch: str | None) -> Statement:
    """Most jobs have results on the default branch; of another one, or of none, nothing is known."""
    is_default = query.branch is None and branch is not None
    return _CANDIDATES[query.kind] if is_default or query.kind is FailingKind.NIGHTLY else _ON_ANY_BRANCH


def _counts(row: Row) -> bool:
    """A cancelled job has no result, and a superseded one was replaced by another run."""
    is_void = row["ended"] == FailedAs.CANCELLED.value or row["ended_as"] == EndedAs.SUPERSEDED.value
    return not is_void


def _order(row: Row, kind: FailingKind) -> tuple[int, str]:
    return row["place"], row["head_sha"] if kind is FailingKind.PUSH else f"{row['delivery']} {row['run_id']}"


def _read_failure(row: Row, kind: FailingKind) -> BranchCommit:
    passed = row["passed_at"] is not None
    is_sick = row["ended"] == FailedAs.FAILURE.value and row["verdict"] == VerdictKind.INFRASTRUCTURE.value
    return BranchCommit(
        order=_order(row, kind),
        sha=row["head_sha"],
        at=from_us(row["at"]),
        passed=passed,
        sick=is_sick and not passed,
        delivery=row["delivery"],
        fingerprint=row["fingerprint"],
        fingerprints=frozenset((row["fingerprints"] or "").split()),
        sample=row["sample"],
    )


def _view(entry: AllowlistEntry, job: Mapping[str, Any], row: FailingRow) -> FailingJob:
    newest, good = row.newest, row.last_good
    return FailingJob(
        backend=entry.name,
        workflow=job["workflow"],
        job=job["job_name"],
        since=row.since,
        failures_in_a_row=row.number,
        first_bad=row.first.sha,
        last_good=good.sha if good else None,
        fingerprint=newest.fingerprint,
        oncalls=entry.oncalls,
        sample=newest.sample,
        last_bad=newest.sha,
        last_failed_at=newest.at,
        first_delivery=row.first.delivery,
        last_delivery=newest.delivery,
        good_delivery=good.delivery if good else None,
    )


def _marks(newest: BranchCommit) -> Sequence[str]:
    """The fingerprints by which the newest failure may be known, its own first."""
    others = sorted(newest.fingerprints - {newest.fingerprint or ""})
    return [mark for mark in (newest.fingerprint, *others) if mark][:_MOST_FINGERPRINTS]


class _KnownIssues:
    """The issues that failures are linked to; each fingerprint is looked up once."""

    def __init__(self, tx: Tx, upstream: str, now: datetime) -> None:
        self._tx = tx
        self._upstream = upstream
        self._now = now
        self._found: dict[str, KnownFailureView | None] = {}

    async def find(self, marks: Sequence[str]) -> KnownFailureView | None:
        for mark in marks:
            if mark not in self._found:
                key = {"fingerprint": mark, "upstream": self._upstream}
                self._found[mark] = await load_known(self._tx, key, self._now)
            if (known := self._found[mark]) is not None:
                return known
        return None
