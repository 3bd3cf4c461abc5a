"""The one definition of a backend's numbers: what a job counts as, pass rate, times, silence.

Every page, API answer, badge and export gets its figures here, so that no two of them can differ. The highest attempt of
each job counts, without superseded runs, superseded commits and test dispatches; excluded results are counted
separately. A rate over nothing is None, neither 0 nor 100 %.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import cast

from crcr.decide.model import Conclusion, JobState, Level
from crcr.decide.row_dataclass import row_dataclass

ANSWER_WITHIN = timedelta(hours=1)
"""A younger dispatch does not count as unanswered."""
SILENT_WITHIN = timedelta(days=14)
"""How far back unanswered dispatches are counted, whatever range a page shows."""
PROBES_WITHIN = timedelta(hours=24)
"""A probe repository without a result for longer than this is stale."""
UNANSWERED_IS_SILENT = 3
"""So many unanswered dispatches make a backend silent that has reported before."""


class CountedAs(StrEnum):
    """What a job counts as."""

    SUCCESS = "success"
    FAILURE = "failure"
    RUNNING = "running"
    OTHER = "other"
    """Neither pass nor failure: cancelled, skipped, neutral."""


_BY_CONCLUSION = {
    Conclusion.SUCCESS: CountedAs.SUCCESS,
    Conclusion.FAILURE: CountedAs.FAILURE,
    Conclusion.TIMED_OUT: CountedAs.FAILURE,
    Conclusion.ACTION_REQUIRED: CountedAs.FAILURE,
    Conclusion.NONE: CountedAs.FAILURE,
    Conclusion.CANCELLED: CountedAs.OTHER,
    Conclusion.SKIPPED: CountedAs.OTHER,
    Conclusion.NEUTRAL: CountedAs.OTHER,
}


def count_as(state: JobState, conclusion: Conclusion | None, expected: Conclusion | None = None) -> CountedAs:
    """Return what a job counts as. A silent job counts as a failure until its late result arrives.

    Where an outcome is expected, as in probe repositories, only that one is a pass.
    """
    if state is JobState.TIMED_OUT:
        return CountedAs.FAILURE
    if state is not JobState.COMPLETED:
        return CountedAs.RUNNING
    if expected is not None:
        return CountedAs.SUCCESS if conclusion is expected else CountedAs.FAILURE
    return _BY_CONCLUSION[conclusion or Conclusion.NONE]


COUNTED_AS: Mapping[tuple[JobState, Conclusion | None, Conclusion | None], CountedAs] = {
    (state, conclusion, expected): count_as(state, conclusion, expected)
    for state in JobState
    for conclusion in (None, *Conclusion)
    for expected in (None, *Conclusion)
}
"""`count_as` for every job there can be: a page asks for thousands of jobs."""


class EndedAs(StrEnum):
    """The category of an ended job in the sums; exactly one for each job, and none for a test."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMED_OUT = "timed_out"
    """A failure too: it concluded as timed out."""
    SILENT = "silent"
    """A failure too: it never reported its end, so its duration is unknown."""
    OTHER = "other"
    SUPERSEDED = "superseded"
    """Left out: a newer commit or run replaced it."""
    EARLIER = "earlier"
    """Left out: a later attempt of the same job counts."""


def ended_as(
    state: JobState,
    conclusion: Conclusion | None,
    expected: Conclusion | None,
    *,
    superseded: bool,
    earlier: bool,
) -> EndedAs | None:
    """Return a job's category in the sums; None while it runs."""
    counted = count_as(state, conclusion, expected)
    if counted is CountedAs.RUNNING:
        return None
    if superseded:
        return EndedAs.SUPERSEDED
    if earlier:
        return EndedAs.EARLIER
    if state is JobState.TIMED_OUT:
        return EndedAs.SILENT
    if counted is CountedAs.FAILURE and conclusion is Conclusion.TIMED_OUT:
        return EndedAs.TIMED_OUT
    return EndedAs(counted.value)


TIMED = frozenset({EndedAs.SUCCESS, EndedAs.FAILURE, EndedAs.TIMED_OUT, EndedAs.SILENT})
"""Categories whose times are averaged: the duration of a skipped or cancelled job means nothing."""
COUNTING = (EndedAs.SUCCESS, EndedAs.FAILURE, EndedAs.TIMED_OUT, EndedAs.OTHER)
"""Categories of reported results that count, from which a backend's newest result is taken."""


@row_dataclass(frozen=True, slots=True)
class Tally:
    success: int = 0
    failure: int = 0
    running: int = 0
    other: int = 0
    timed_out: int = 0
    """How many of the failures timed out or went silent."""

    def __add__(self, more: "Tally") -> "Tally":
        return Tally.sum_up((self, more))

    @classmethod
    def sum_up(cls, tallies: Iterable["Tally"]) -> "Tally":
        """Add any number at once: a page adds up thousands."""
        success = failure = running = other = timed_out = 0
        for tally in tallies:
            success += tally.success
            failure += tally.failure
            running += tally.running
            other += tally.other
            timed_out += tally.timed_out
        return cls(success, failure, running, other, timed_out)

    @property
    def decided(self) -> int:
        return self.success + self.failure

    @property
    def total(self) -> int:
        return self.decided + self.running + self.other

    @property
    def pass_rate(self) -> float | None:
        return self.success / self.decided if self.decided else None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Results of the same window that are in no rate."""

    superseded: int = 0
    earlier: int = 0

    def __add__(self, more: "LeftOut") -> "LeftOut":
        return LeftOut(self.superseded + more.superseded, self.earlier + more.earlier)


EDGES_S = (1, 5, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 57_600)
"""Upper bounds of the duration buckets; the last bucket has none."""
BUCKETS = len(EDGES_S) + 1
_TOP_S = 115_200.0
_NONE = (0,) * BUCKETS


def find_bucket(seconds: float) -> int:
    return bisect_left(EDGES_S, seconds)


FEW = 20
"""With fewer durations than this, percentiles are exact: one of the durations themselves."""


@row_dataclass(frozen=True, slots=True)
class Durations:
    """Known durations, summed up; jobs with an unknown time are not included."""

    sum_s: float = 0.0
    known: int = 0
    buckets: tuple[int, ...] = _NONE
    low_s: float | None = None
    """The shortest, including superseded results."""
    high_s: float | None = None
    few: tuple[float, ...] | None = None
    """All of them, sorted, where they are fewer than `FEW` and were read one by one."""

    @classmethod
    def from_seconds(cls, seconds: Sequence[float]) -> "Durations":
        buckets = [0] * BUCKETS
        for second in seconds:
            buckets[find_bucket(second)] += 1
        low_s, high_s = min(seconds, default=None), max(seconds, default=None)
        few = tuple(sorted(seconds)) if 0 < len(seconds) < FEW else None
        return cls(sum(seconds), len(seconds), tuple(buckets), low_s, high_s, few)

    def __add__(self, more: "Durations") -> "Durations":
        return Durations.sum_up((self, more))

    @classmethod
    def sum_up(cls, durations: Iterable["Durations"]) -> "Durations":
        """Add any number at once. The shortest, the longest and the single ones are known where all have them."""
        some = [times for times in durations if times.known]
        if len(some) <= 1:
            return some[0] if some else cls()
        known = sum([times.known for times in some])
        lows, highs = [times.low_s for times in some], [times.high_s for times in some]
        fews = [times.few for times in some] if known < FEW else [None]
        return cls(
            sum([times.sum_s for times in some]),
            known,
            tuple(map(sum, zip(*[times.buckets for times in some], strict=True))),
            None if None in lows else min(cast("list[float]", lows)),
            None if None in highs else max(cast("list[float]", highs)),
            None
            if None in fews
            else tuple(sorted(chain.from_iterable(cast("list[tuple[float, ...]]", fews)))),
        )

    @property
    def average_s(self) -> float | None:
        return self.sum_s / self.known if self.known else None

    @property
    def p50_s(self) -> float | None:
        return self.quantile(0.50)

    @property
    def p95_s(self) -> float | None:
        return self.quantile(0.95)

    def quantile(self, share: float) -> float | None:
        """Return the duration that this share of all stays within.

        Exact for few durations; for many an estimate: the right bucket, interpolated within it, and clamped to the
        shortest and the longest.
        """
        if self.few:
            return self.few[max(math.ceil(share * len(self.few) - 1e-9), 1) - 1]
        total = sum(self.buckets)
        if not total:
            return None
        target_count, below = share * total, 0
        for index, number in enumerate(self.buckets):
            if number and below + number >= target_count:
                low, high = self._bounds(index)
                return low + (high - low) * (target_count - below) / number
            below += number
        return _TOP_S

    def _bounds(self, index: int) -> tuple[float, float]:
        """Return a bucket's bounds: its edges, or the shortest and longest of all where they are in it."""
        low = float(EDGES_S[index - 1]) if index else 0.0
        high = float(EDGES_S[index]) if index < len(EDGES_S) else _TOP_S
        if self.low_s is not None and find_bucket(self.low_s) == index and not any(self.buckets[:index]):
            low = self.low_s
        if (
            self.high_s is not None
            and find_bucket(self.high_s) == index
            and not any(self.buckets[index + 1 :])
        ):
            high = self.high_s
        return low, high


@dataclass(frozen=True, slots=True)
class LastResult:
    """The newest result that counts, by its end."""

    state: JobState
    conclusion: Conclusion | None
    job_name: str
    at: datetime
    counted: CountedAs = CountedAs.OTHER


@row_dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a window."""

    at: datetime
    """Its start."""
    tally: Tally = Tally()
    queue: Durations = Durations()
    execution: Durations = Durations()
    sent: int = 0
    """Dispatches that were sent."""
    delay_s: float = 0.0
    """The sum over these of the time from a delivery's arrival to its dispatch."""

    @property
    def average_delay_s(self) -> float | None:
        return self.delay_s / self.sent if self.sent else None


@dataclass(frozen=True, kw_only=True)  # without slots, for the cached properties
class Figures:
    """A backend's numbers over a window, and the window's parts, oldest first."""

    parts: tuple[Part, ...]
    running: int = 0
    left_out: LeftOut = LeftOut()
    last_result: LastResult | None = None

    @property
    def strip(self) -> tuple[Tally, ...]:
        return tuple([part.tally for part in self.parts])

    @cached_property
    def tally(self) -> Tally:
        return Tally.sum_up((*self.strip, Tally(running=self.running)))

    @cached_property
    def queue(self) -> Durations:
        return Durations.sum_up(part.queue for part in self.parts)

    @cached_property
    def execution(self) -> Durations:
        return Durations.sum_up(part.execution for part in self.parts)

    @property
    def sent(self) -> int:
        return sum(part.sent for part in self.parts)

    @property
    def average_delay_s(self) -> float | None:
        return sum(part.delay_s for part in self.parts) / self.sent if self.sent else None

    def with_latest(self, *, running: int, last_result: LastResult | None) -> "Figures":
        """The same sums with what is true now; times that were added up already are not added up again."""
        changed = replace(self, running=running, last_result=last_result)
        added_up = ((name, self.__dict__.get(name)) for name in ("queue", "execution"))
        changed.__dict__.update((name, times) for name, times in added_up if times is not None)
        return changed

    def __add__(self, more: "Figures") -> "Figures":
        return Figures.sum_up((self, more))

    @classmethod
    def sum_up(cls, figures: Sequence["Figures"]) -> "Figures":
        """Add the figures of several backends over the same window, at least one."""
        results = [one.last_result for one in figures if one.last_result]
        return cls(
            parts=tuple(_add_parts(parts) for parts in zip(*(one.parts for one in figures), strict=True)),
            running=sum(one.running for one in figures),
            left_out=sum((one.left_out for one in figures), LeftOut()),
            last_result=max(results, key=_result_time, default=None),
        )


def _add_parts(parts: Sequence[Part]) -> Part:
    return Part(
        at=parts[0].at,
        tally=Tally.sum_up([part.tally for part in parts]),
        queue=Durations.sum_up([part.queue for part in parts]),
        execution=Durations.sum_up([part.execution for part in parts]),
        sent=sum([part.sent for part in parts]),
        delay_s=sum([part.delay_s for part in parts]),
    )


def _result_time(result: LastResult) -> datetime:
    return result.at


def is_silent(level: Level, *, ever_reported: bool, unanswered: int) -> bool:
    """Whether a backend that should report does not; `unanswered` counts the dispatches since its last report."""
    if level < Level.L2:
        return False
    return unanswered >= (UNANSWERED_IS_SILENT if ever_reported else 1)


def is_stale(last: LastResult | None, now: datetime, *, silent: bool) -> bool:
    """Whether a probe repository has stopped reporting."""
    return silent or last is None or now - last.at > PROBES_WITHIN
