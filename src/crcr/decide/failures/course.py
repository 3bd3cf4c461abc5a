"""The course of one failure along the commits of the base branch, without the judged change.

Everything that shows the failure, or shows its absence, has a place in the order of the base's commits: its own results and
those of unrelated pull requests. A breakage of the base is one row of failures: it came with a commit and went with one. A
failure by chance comes and goes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile

from crcr.decide.failures.history import (
    BaseResult,
    BaseState,
    FailedAs,
    JobHistory,
    RecordedFailure,
    state_of,
    unrelated,
)

_LEAST_RATE = 0.01
_SHORT_ROW = 2
"""So many failures in a row, between two passes, may be chance."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One result of the job that shows the failure, or shows that it is absent, at a place in the order of the base."""

    position: float
    at: datetime
    fails: bool
    base: BaseResult | None = None
    pull: RecordedFailure | None = None

    @property
    def order(self) -> tuple[float, datetime]:
        return self.position, self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The failure in the order of the base's commits, without the judged change: where it came and where it went.

    A breakage of the base is one episode: it came with a commit and went with one. A failure by chance comes and goes.
    """

    before: tuple[Sighting, ...]
    """At or before the commit that the head was built on."""
    after: tuple[Sighting, ...]

    @property
    def sightings(self) -> tuple[Sighting, ...]:
        return self.before + self.after

    @property
    def row_before(self) -> list[Sighting]:
        """The failing sightings right before the head, the nearest first."""
        return list(takewhile(lambda sighting: sighting.fails, reversed(self.before)))

    @property
    def row_after(self) -> list[Sighting]:
        return list(takewhile(lambda sighting: sighting.fails, self.after))

    @property
    def row(self) -> list[Sighting]:
        """The episode that the head is in."""
        return [*self.row_before, *self.row_after]

    @property
    def chances(self) -> list[Sighting]:
        """The first sighting of each short row of failures that came and went, without the head's own row.

        A longer row is a breakage that was fixed, and a row that has not ended says nothing about chance.
        """
        own, starts, row = {id(sighting) for sighting in self.row}, [], list[Sighting]()
        for sighting in self.sightings:
            if sighting.fails:
                row.append(sighting)
                continue
            if 0 < len(row) <= _SHORT_ROW and id(row[0]) not in own:
                starts.append(row[0])
            row = []
        return starts

    @property
    def base_passes(self) -> int:
        return sum(not sighting.fails and sighting.base is not None for sighting in self.sightings)

    @property
    def last_clean(self) -> BaseResult | None:
        clean = (one.base for one in reversed(self.before) if one.base is not None and not one.fails)
        return next(clean, None)

    @property
    def fail_rate(self) -> float:
        """How often it fails outside of the head's own episode."""
        others = len(self.sightings) - len(self.row)
        failing = sum(sighting.fails for sighting in self.sightings) - len(self.row)
        return max(failing / others if others else 0.0, _LEAST_RATE)


def trace_course(failure: RecordedFailure, fingerprint: str | None, history: JobHistory) -> Course:
    sightings = [
        Sighting(_position(result, history.base), result.at, state is BaseState.FAILS, base=result)
        for result in history.base
        if (state := state_of(result, fingerprint)) is not BaseState.UNCLEAR and not _is_own(result, failure)
    ]
    if not failure.on_base:
        sightings += _pull_sightings(failure, fingerprint, history)
    if failure.landed:
        # What fails alike after the change has landed is its own doing.
        sightings = [one for one in sightings if one.at <= failure.at or not one.fails]
    sightings.sort(key=lambda sighting: sighting.order)
    own = (failure.position, failure.at) if failure.position is not None else None
    is_before = [
        sighting.order <= own if own is not None else sighting.at <= failure.at for sighting in sightings
    ]
    if not failure.on_base and own is not None:
        # Every result of the base at that very commit counts, whenever it came.
        is_before = [
            before or (sighting.base is not None and sighting.position <= own[0])
            for before, sighting in zip(is_before, sightings, strict=True)
        ]
    return Course(
        before=tuple(one for one, before in zip(sightings, is_before, strict=True) if before),
        after=tuple(one for one, before in zip(sightings, is_before, strict=True) if not before),
    )


def _pull_sightings(failure: RecordedFailure, fingerprint: str | None, history: JobHistory) -> list[Sighting]:
    """Results on unrelated pull requests whose place in the order is known; where the base is not tested, they are all."""
    failing = {
        other.head_sha: Sighting(other.position, other.at, fails=True, pull=other)
        for other in unrelated(history.failures, failure)
        if other.position is not None
        and other.exact
        and other.passed_at is None
        and is_same_failure(other, fingerprint, failure)
    }
    passing = [
        Sighting(passed.position, passed.at, fails=False)
        for passed in history.pull_passes
        if passed.number != failure.number and passed.head_sha not in failing
    ]
    return [*failing.values(), *passing]


def _is_own(result: BaseResult, failure: RecordedFailure) -> bool:
    return failure.on_base and result.sha == failure.head_sha and result.at == failure.at


def _position(result: BaseResult, base: Sequence[BaseResult]) -> float:
    """A result of an unknown commit is placed by its time, right after the results that were there before it."""
    if result.position is not None:
        return result.position
    earlier = [other.position for other in base if other.position is not None and other.at <= result.at]
    return max(earlier, default=0) + 0.5


def is_same_failure(other: RecordedFailure, fingerprint: str | None, failure: RecordedFailure) -> bool:
    if other.failure_id == failure.failure_id or other.infrastructure or other.ended is not FailedAs.FAILURE:
        return False
    return not other.fingerprints if fingerprint is None else fingerprint in other.fingerprints
