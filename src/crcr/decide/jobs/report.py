"""The content of one callback: syntactically checked, but not yet verified.

Nothing here names a pull request or a label: those come from our own records. Only self-reports, which have no dispatch,
name a commit and an upstream, which are then verified. `untrusted` is the body without the echoed payload, kept for
display and forwarding only.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.jobs.log_excerpt import LogExcerpt
from crcr.decide.model import Conclusion
from crcr.decide.row_dataclass import row_dataclass

SELF_REPORTS = frozenset({"nightly", "periodic"})
"""Event types that a downstream reports on its own, without a dispatch."""


class ReportStatus(StrEnum):
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


@row_dataclass(frozen=True, slots=True)
class TestCounts:
    __test__ = False  # not a pytest class

    passed: int | None
    failed: int | None
    skipped: int | None
    total: int | None


@dataclass(frozen=True, slots=True)
class FailedTest:
    name: str
    file: str | None
    message: str | None


@row_dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    event_type: str
    delivery_id: str
    """Empty in a self-report without one."""
    status: ReportStatus
    conclusion: Conclusion | None
    """None for `in_progress`; `Conclusion.NONE` for a `completed` without a conclusion."""
    workflow_name: str
    run_id: str
    run_attempt: int
    job_name: str
    url: str | None
    artifact_url: str | None
    check_run_text: str | None
    """The body's `check_run_id`: text for display, never compared."""
    started_at: datetime | None
    completed_at: datetime | None
    late: bool
    """The reporter sends this `in_progress` after the fact: its times measure nothing."""
    tests: TestCounts | None
    failed_tests: tuple[FailedTest, ...]
    failed_tests_cut: int
    """How many failed tests beyond the cap were left out."""
    environment: str | None
    """`workflow.environment` as compact JSON text."""
    untrusted: bytes
    """The body as JSON without its echoed `payload`."""
    log_excerpt: LogExcerpt | None = None
    """Of a job that did not pass; masked and cut."""
    said_commit: str | None = None
    """In a self-report: the commit that it claims to have tested, 40 lower-case digits."""
    said_upstream: str | None = None
    """In a self-report: the repository that its payload names."""
