"""Another relay's result, and the rules by which several reports of one job become one row.

What that relay proved and measured is its word, not ours, so nothing here decides about checks, the gate or levels.
The rules know no order of arrival: of two reports of a job the same one counts, whichever comes first.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from crcr.decide.model import Conclusion, Level, RepoName
from crcr.decide.report.lifecycle import badness
from crcr.decide.report.report import Report, ReportStatus

RUNS_AT_MOST = timedelta(hours=24)
"""After that a job that never ended counts as running no more; whose result was lost, nobody will tell us."""
OLDEST_CLAIM = timedelta(days=7)
"""How old a time may be that a report claims; with a freer choice it could put itself out of every window."""
_SKEW = timedelta(minutes=1)
NUMBERED_RANK = 10
"""The rank from which on results are those of a relay that counts the outcomes of a job."""
_MOST_OUTCOMES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoedEvent:
    """What the echoed payload says of its event: text for display, and nobody's proof."""

    upstream: str | None = None
    action: str | None = None
    number: int | None = None
    head_sha: str | None = None
    ref: str | None = None
    title: str | None = None
    author: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestedResult:
    """One envelope: what the other relay vouches for, and the report that it was sent."""

    repository: RepoName
    level: Level | None
    queue_s: float | None
    execution_s: float | None
    report: Report
    about: EchoedEvent
    outcome_number: int | None = None
    """Which outcome of the job it is, where that relay counts them: a later one takes an earlier one's place."""
    disputed: bool = False
    """Whether that relay says that two views of the job contradict each other."""

    @property
    def check_run(self) -> str:
        return self.report.check_run_text or f"{self.report.run_id}-{self.report.run_attempt}"


@dataclass(frozen=True, slots=True)
class IngestReceipt:
    """What became of an envelope."""

    repeat: bool
    hint: str | None
    """Why no page shows it; None when one does."""


def result_rank(report: Report, outcome_number: int | None = None) -> int:
    """Of two reports of one job the one of higher rank counts: a result over a start, the worse result over the other.

    Where the other relay counts the outcomes of a job, its later result counts: it knows what it corrected. Of the same
    rank, the one of the later attempt does (`record.reports.ingested`).
    """
    if report.status is ReportStatus.IN_PROGRESS:
        return 0
    later = NUMBERED_RANK * min(outcome_number or 0, _MOST_OUTCOMES)
    return later + 1 + badness(report.conclusion or Conclusion.NONE)


def plausible_time(at: datetime | None, now: datetime) -> datetime | None:
    """A claimed time, if it can be true."""
    return at if at is not None and now - OLDEST_CLAIM <= at <= now + _SKEW else None


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """One of the times that a job ran for a delivery."""

    run_id: str
    attempt: int


def is_superseded(turn: RunAttempt, among: Iterable[RunAttempt]) -> bool:
    """Whether a newer run of the same workflow took its place; only numbers tell which of two runs is newer."""
    return turn.run_id.isdecimal() and any(
        each.run_id.isdecimal() and int(each.run_id) > int(turn.run_id) for each in among
    )


def has_later_attempt(turn: RunAttempt, among: Iterable[RunAttempt]) -> bool:
    """Whether a later attempt counts instead of it."""
    return any(
        each.attempt > turn.attempt
        for each in among
        if each.run_id == turn.run_id or not (each.run_id.isdecimal() and turn.run_id.isdecimal())
    )


def choose_ingest_upstream(
    about: EchoedEvent, upstreams: tuple[RepoName, ...], listing: list[RepoName]
) -> RepoName:
    """Which of our upstreams a result belongs to: the one it names, else the only one that lists it, else the first."""
    for each in upstreams:
        if about.upstream and each.key == about.upstream.lower():
            return each
    return listing[0] if len(listing) == 1 else upstreams[0]
