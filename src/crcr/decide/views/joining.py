"""Refused reports and sandbox reports, as values; `views.overview` says how to treat their text."""

from dataclasses import dataclass
from datetime import datetime

from crcr.decide.jobs.report import FailedTest
from crcr.decide.model import Conclusion, JobState, RepoName


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalView:
    refusal_id: int
    at: datetime
    code: str
    detail: str
    hint: str | None
    delivery: str | None
    """As the report named it."""
    delivery_known: bool
    """Whether the delivery exists."""
    run_id: str | None
    workflow_name: str | None
    job_name: str | None
    settled: bool = False
    """Whether a later report of the same job was accepted: then there is nothing left to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalList:
    upstream: RepoName
    backend: RepoName
    refusals: tuple[RefusalView, ...]
    """Newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxQuery:
    repository: str | None = None
    """A repository's id, or part of its name, ignoring case."""
    after: tuple[str | int, ...] | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxJob:
    repository_id: int
    repository: str | None
    """None for a private repository, unless the reader is an administrator."""
    private: bool
    event_type: str
    workflow_name: str | None
    """None where the repository's name is None."""
    run_id: str
    attempt: int
    job_name: str | None
    state: JobState
    conclusion: Conclusion | None
    late: bool
    started_at: datetime
    completed_at: datetime | None
    reported_at: datetime
    tests_passed: int | None
    tests_failed: int | None
    tests_skipped: int | None
    tests_total: int | None
    failed_tests: tuple[FailedTest, ...] = ()
    failed_tests_more: int = 0
    """Failed tests beyond the ones listed."""


@dataclass(frozen=True, slots=True)
class SandboxPage:
    jobs: tuple[SandboxJob, ...]
    """The newest report first."""
    next: tuple[str | int, ...] | None
