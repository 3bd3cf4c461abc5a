"""Continuously failing jobs as pages, the JSON API and the command line show them.

Text that a downstream wrote (`workflow`, `job`, `sample`) is unescaped here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.model import RepoName
from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.failures import KnownFailureView


class FailingKind(StrEnum):
    """The results that a row of failures is looked for in."""

    PUSH = ResultKind.PUSH.value
    """Pushes to the base branch, and merge groups that were pushed to it."""
    NIGHTLY = ResultKind.NIGHTLY.value
    """Nightly and periodic runs."""


class FailingSort(StrEnum):
    SINCE = "since"
    FAILURES = "failures"
    BACKEND = "backend"
    JOB = "job"
    LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingJob:
    """A job that failed on the newest commits of the base, or in the newest nights, without a pass since."""

    backend: RepoName
    workflow: str
    job: str
    since: datetime
    failures_in_a_row: int
    """Commits or nights, each counted once."""
    first_bad: str | None
    last_good: str | None
    fingerprint: str | None
    """Of the newest failure; None where it reported no failed test."""
    oncalls: tuple[str, ...]
    known: KnownFailureView | None = None
    sample: str | None = None
    """The first line of one of the newest failure's messages."""
    last_bad: str | None = None
    last_failed_at: datetime
    first_delivery: str | None = None
    """Finds the first bad commit's page; so do the others."""
    last_delivery: str | None = None
    good_delivery: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingQuery:
    upstream: RepoName
    kind: FailingKind = FailingKind.PUSH
    branch: str | None = None
    """The base branch; None for the upstream's default branch. Nights have none."""
    backend: str | None = None
    """Part of `owner/repo`, ignoring case."""
    text: str | None = None
    """Part of the job, the workflow, the sample or an on-call, ignoring case."""
    known: bool | None = None
    """Only jobs whose failure is linked to an issue, or only the others."""
    sort: FailingSort = FailingSort.SINCE
    down: bool = False
    after: tuple[str | int, ...] | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class FailingPage:
    items: tuple[FailingJob, ...]
    next: tuple[str | int, ...] | None
    cursor: int = 0
    branch: str | None = None
    """The base branch that was looked at; None where it is not known yet."""


FailingKey = tuple[int | str, str, str, str]
_VALUES: Mapping[FailingSort, Callable[[FailingJob], int | str]] = {
    FailingSort.SINCE: lambda job: round(job.since.timestamp() * 1_000_000),
    FailingSort.FAILURES: lambda job: job.failures_in_a_row,
    FailingSort.BACKEND: lambda job: job.backend.key,
    FailingSort.JOB: lambda job: job.job,
    FailingSort.LAST: lambda job: round(job.last_failed_at.timestamp() * 1_000_000),
}


def failing_key(job: FailingJob, sort: FailingSort) -> FailingKey:
    """The place of a job in the list; the names make it unique."""
    return _VALUES[sort](job), job.backend.key, job.workflow, job.job


def matches_text(job: FailingJob, query: FailingQuery) -> bool:
    if query.backend and query.backend.casefold() not in job.backend.key.casefold():
        return False
    texts = (job.job, job.workflow, job.sample or "", *job.oncalls)
    return not query.text or query.text.casefold() in "\n".join(texts).casefold()


def order_jobs(jobs: Iterable[FailingJob], query: FailingQuery) -> list[FailingJob]:
    """The jobs of the list in its order, those after the cursor only; the cursor is the key of the last one before."""
    ordered = sorted(jobs, key=lambda job: failing_key(job, query.sort), reverse=query.down)
    if query.after is None:
        return ordered
    last = query.after
    keys = [(failing_key(job, query.sort), job) for job in ordered]
    return [job for key, job in keys if (key < last if query.down else key > last)]
