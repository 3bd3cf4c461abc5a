"""The content of one callback, after its form was checked and before anything in it is believed.

Nothing here names a pull request or a label: those come from our own records. A commit and an upstream are said
only where nobody was dispatched, and are then looked at. `untrusted` is the body as it came, less the echoed
payload, and is kept for display and forwarding only.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.model import Conclusion

SELF_REPORTS = frozenset({"nightly", "periodic"})
"""Event types that a downstream reports on its own, without a dispatch."""


class ReportStatus(StrEnum):
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    event_type: str
    delivery_id: str
    """Empty where a self-report named none."""
    status: ReportStatus
    conclusion: Conclusion | None
    """None for `in_progress`; `Conclusion.NONE` for a `completed` that named none."""
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
    """The reporter says that this `in_progress` is sent after the fact: its times measure nothing."""
    tests: TestCounts | None
    failed_tests: tuple[FailedTest, ...]
    failed_tests_cut: int
    """How many failed tests were over the cap and left out."""
    environment: str | None
    """`workflow.environment` as compact JSON text."""
    untrusted: bytes
    """The body as JSON without its echoed `payload`."""
    said_commit: str | None = None
    """Of a self-report: the commit that it says it tested, 40 digits in lower case."""
    said_upstream: str | None = None
    """Of a self-report: the repository that its payload names."""
