"""What is known of one downstream's set-up with one upstream, gathered for `join.findings.examine` to examine."""

from dataclasses import dataclass
from datetime import datetime

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.github.inspection import Inspection
from crcr.decide.model import Conclusion, DispatchState, JobState, RepoName
from crcr.decide.views.overview import DispatchAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class LastDispatch:
    delivery: str
    event: str
    state: DispatchState
    created_at: datetime
    sent_at: datetime | None = None
    answer: DispatchAnswer | None = None
    reason: str | None = None
    error: str | None = None
    """What was said at the last attempt to send it, in words that only administrators read as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCallback:
    """The job that was reported last."""

    at: datetime
    job_name: str
    event: str
    state: JobState
    conclusion: Conclusion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRefusal:
    """`run_id` and `job_name` are the caller's own words."""

    at: datetime
    code: str
    detail: str
    hint: str | None = None
    run_id: str | None = None
    job_name: str | None = None
    settled: bool = False
    """The same job's result was taken since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFacts:
    """`entry` is None both for who is not listed and for who is not to be seen: nobody can tell them apart."""

    upstream: RepoName
    repository: RepoName
    entry: AllowlistEntry | None = None
    has_allowlist: bool = True
    allowlist_source: str | None = None
    for_admin: bool = False
    paused_at: datetime | None = None
    suspended_at: datetime | None = None
    repository_id: int | None = None
    confirmed: bool = False
    """GitHub itself told the id, not a first caller."""
    alarm: str | None = None
    asked_at: datetime | None = None
    inspected_at: datetime | None = None
    inspection: Inspection | None = None
    last_dispatch: LastDispatch | None = None
    """The newest that is no test."""
    last_test: LastDispatch | None = None
    waiting: int = 0
    parked: int = 0
    first_sent_at: datetime | None = None
    """When the first dispatch that is no test was sent; None once there is a report."""
    first_run_at: datetime | None = None
    """When its run began, as far as GitHub has shown one that is not over; None once there is a report."""
    last_callback: LastCallback | None = None
    last_refusal: LastRefusal | None = None
    """The newest that is not settled; where all are, the newest."""
    silent: bool = False
    """It should have answered dispatches, and did not."""
    last_nightly: LastCallback | None = None

    @property
    def is_being_inspected(self) -> bool:
        return self.asked_at is not None and (self.inspected_at is None or self.inspected_at < self.asked_at)
