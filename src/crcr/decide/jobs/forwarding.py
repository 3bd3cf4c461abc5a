"""Forwarded results: a job's outcome in the other HUD's terms, and the times that its queries filter by.

That HUD knows two states: running, and ended with a conclusion. Other outcomes (a silent job that timed out, a result
without a conclusion) are sent as the conclusion that they count as here.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from crcr.decide.jobs.ingested import plausible_time
from crcr.decide.model import Conclusion, JobState


@dataclass(frozen=True, slots=True)
class ForwardedOutcome:
    status: str
    conclusion: str | None
    disputed: bool

    def __str__(self) -> str:
        """Its stored form: two outcomes with the same text need one forward."""
        words = (self.status, self.conclusion, "disputed" if self.disputed else None)
        return " ".join(word for word in words if word)


def outcome_to_forward(
    state: JobState, conclusion: Conclusion | None, *, disputed: bool, taken_off: bool
) -> ForwardedOutcome:
    """Return the outcome to send. `taken_off`: its run turned out to answer another delivery, so it is neutral for this one."""
    if taken_off:
        return ForwardedOutcome("completed", Conclusion.NEUTRAL.value, disputed)
    if state is JobState.TIMED_OUT:
        return ForwardedOutcome("completed", Conclusion.TIMED_OUT.value, disputed)
    if state is JobState.COMPLETED:
        counts = conclusion if conclusion not in {None, Conclusion.NONE} else Conclusion.FAILURE
        return ForwardedOutcome("completed", str(counts), disputed)
    return ForwardedOutcome("in_progress", None, disputed)


def job_started_at(claimed: datetime | None, first_report_at: datetime) -> datetime:
    """Return a job's start: the claimed time where it is plausible, else the time of the first report."""
    return plausible_time(claimed, first_report_at) or first_report_at


def job_completed_at(claimed: datetime | None, recorded: datetime, started: datetime) -> datetime:
    """Return a job's end: the claimed time where it is plausible, else the recorded one; never before its start."""
    return max(plausible_time(claimed, recorded) or recorded, started)


def parse_claimed_time(text: object) -> datetime | None:
    """Parse an ISO 8601 time; without a zone it is UTC. None for anything else."""
    if not isinstance(text, str) or len(text) > 64:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
