"""The one definition of a backend's numbers: what a job counts as, pass rate, averages, silence.

Every page, API answer and badge gets its figures here, so no two of them can differ. Which jobs are counted is
the reader's part: the highest attempt of each job, without superseded runs, superseded commits and test
dispatches. A rate over nothing is None, never a full or an empty one.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from crcr.decide.model import Conclusion, JobState, Level

ANSWER_WITHIN = timedelta(hours=1)
"""A dispatch younger than this is not held against the backend."""
_UNANSWERED_IS_SILENT = 3


class Counted(StrEnum):
    """What a job counts as."""

    SUCCESS = "success"
    FAILURE = "failure"
    RUNNING = "running"
    OTHER = "other"
    """Says nothing about the change: cancelled, skipped, neutral."""


_BY_CONCLUSION = {
    Conclusion.SUCCESS: Counted.SUCCESS,
    Conclusion.FAILURE: Counted.FAILURE,
    Conclusion.TIMED_OUT: Counted.FAILURE,
    Conclusion.ACTION_REQUIRED: Counted.FAILURE,
    Conclusion.NONE: Counted.FAILURE,
    Conclusion.CANCELLED: Counted.OTHER,
    Conclusion.SKIPPED: Counted.OTHER,
    Conclusion.NEUTRAL: Counted.OTHER,
}


def count_as(state: JobState, conclusion: Conclusion | None) -> Counted:
    """A job that went silent counts as a failure until its late result comes: silence is no pass."""
    if state is JobState.TIMED_OUT:
        return Counted.FAILURE
    if state is JobState.COMPLETED:
        return _BY_CONCLUSION[conclusion or Conclusion.NONE]
    return Counted.RUNNING


@dataclass(frozen=True, slots=True)
class Tally:
    success: int = 0
    failure: int = 0
    running: int = 0
    other: int = 0

    @classmethod
    def of(cls, counted: Counted, number: int) -> "Tally":
        return cls(**{counted.value: number})

    def __add__(self, more: "Tally") -> "Tally":
        return Tally(
            self.success + more.success,
            self.failure + more.failure,
            self.running + more.running,
            self.other + more.other,
        )

    @property
    def total(self) -> int:
        return self.success + self.failure + self.running + self.other

    @property
    def pass_rate(self) -> float | None:
        decided = self.success + self.failure
        return self.success / decided if decided else None


@dataclass(frozen=True, slots=True)
class Durations:
    """Known durations summed up; jobs whose time is not known are in neither figure."""

    sum_s: float = 0.0
    known: int = 0

    def __add__(self, more: "Durations") -> "Durations":
        return Durations(self.sum_s + more.sum_s, self.known + more.known)

    @property
    def average_s(self) -> float | None:
        return self.sum_s / self.known if self.known else None


def is_silent(level: Level, *, ever_reported: bool, unanswered: int) -> bool:
    """Whether a backend that should report does not: `unanswered` dispatches were sent since its last report."""
    if level < Level.L2:
        return False
    return unanswered >= (_UNANSWERED_IS_SILENT if ever_reported else 1)
