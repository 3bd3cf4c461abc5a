"""Results that another relay sends, and how several reports of one job become one row.

That relay's proofs and measurements are not ours, so nothing here affects checks, the gate or levels. The order of
arrival does not matter: of two reports of a job the same one counts, whichever comes first.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from crcr.decide.jobs.lifecycle import badness
from crcr.decide.jobs.report import Report, ReportStatus
from crcr.decide.model import Conclusion, Level, RepoName

RUNS_AT_MOST = timedelta(hours=24)
"""After that a job without a result no longer counts as running: its result was probably lost."""
OLDEST_CLAIM = timedelta(days=7)
"""The oldest time that a report may claim; without a limit it could place itself outside every window."""
_SKEW = timedelta(minutes=1)
NUMBERED_RANK = 10
"""The lowest rank of results from a relay that numbers a job's outcomes."""
_MOST_OUTCOMES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoedEvent:
    """The event in the echoed payload: text for display, not a proof."""

    upstream: str | None = None
    action: str | None = None
    number: int | None = None
    head_sha: str | None = None
    ref: str | None = None
    title: str | None = None
    author: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestedResult:
    """One envelope: the other relay's own fields, and the report that it received."""

    repository: RepoName
    level: Level | None
    queue_s: float | None
    execution_s: float | None
    report: Report
    about: EchoedEvent
    outcome_number: int | None = None
    """The number of the job's outcome, where that relay numbers them: a later one replaces an earlier one."""
    disputed: bool = False
    """Whether that relay marks the result as disputed."""

    @property
    def check_run(self) -> str:
        return self.report.check_run_text or f"{self.report.run_id}-{self.report.run_attempt}"


@dataclass(frozen=True, slots=True)
class IngestReceipt:
    """The result of storing an envelope."""

    repeat: bool
    hint: str | None
    """Why no page shows it; None when a page does."""


def result_rank(report: Report, outcome_number: int | None = None) -> int:
    """Return a report's rank; the highest of a job counts: a result over a start, the worse of two results.

    Where the other relay numbers a job's outcomes, the later one counts, because it is a correction. Of the same rank,
    the later attempt counts (`record.jobs.ingested`).
    """
    if report.status is ReportStatus.IN_PROGRESS:
        return 0
    later = NUMBERED_RANK * min(outcome_number or 0, _MOST_OUTCOMES)
    return later + 1 + badness(report.conclusion or Conclusion.NONE)


def plausible_time(at: datetime | None, now: datetime) -> datetime | None:
    """Return a claimed time if it is plausible, else None."""
    return at if at is not None and now - OLDEST_CLAIM <= at <= now + _SKEW else None


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """One execution of a job for a delivery."""

    run_id: str
    attempt: int


def is_superseded(turn: RunAttempt, among: Iterable[RunAttempt]) -> bool:
    """Whether a newer run of the same workflow replaces it; only numeric ids tell which of two runs is newer."""
    return turn.run_id.isdecimal() and any(
        other.run_id.isdecimal() and int(other.run_id) > int(turn.run_id) for other in among
    )


def has_later_attempt(turn: RunAttempt, among: Iterable[RunAttempt]) -> bool:
    """Whether a later attempt counts instead."""
    return any(
        other.attempt > turn.attempt
        for other in among
        if other.run_id == turn.run_id or not (other.run_id.isdecimal() and turn.run_id.isdecimal())
    )


def choose_ingest_upstream(
    about: EchoedEvent, upstreams: tuple[RepoName, ...], listing: list[RepoName]
) -> RepoName:
    """Return the upstream of a result: the one it names, else the only one that lists its sender, else the first."""
    for upstream in upstreams:
        if about.upstream and upstream.key == about.upstream.lower():
            return upstream
    return listing[0] if len(listing) == 1 else upstreams[0]
