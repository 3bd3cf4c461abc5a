"""The course of one failure along the commits of the base branch, without the judged change.

Everything that shows the failure, or shows its absence, has a place in the order of the base's commits: its own results and
those of unrelated pull requests. A breakage of the base is one row of failures: it came with a commit and went with one. A
failure by chance comes and goes.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, takewhile

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
class CourseStep:
    """One result of the job that shows the failure, or shows that it is absent, at a place in the order of the base."""

    position: float
    at: datetime
    fails: bool
    base: BaseResult | None = None
    pull: RecordedFailure | None = None
    is_sure: bool = False
    """A result of the base by the failure's own workflow on a known commit: only these make a verdict sure."""

    @property
    def order(self) -> tuple[float, datetime]:
        return self.position, self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The failure in the order of the base's commits, without the judged change: where it came and where it went.

    A breakage of the base is one episode: it came with a commit and went with one. A failure by chance comes and goes.
    """

    before: tuple[CourseStep, ...]
    """At or before the commit that the head was built on."""
    after: tuple[CourseStep, ...]

    @property
    def steps(self) -> tuple[CourseStep, ...]:
        return self.before + self.after

    @property
    def row_before(self) -> list[CourseStep]:
        """The failing steps right before the head, the nearest first."""
        return list(takewhile(lambda step: step.fails, reversed(self.before)))

    @property
    def row_after(self) -> list[CourseStep]:
        return list(takewhile(lambda step: step.fails, self.after))

    @property
    def row(self) -> list[CourseStep]:
        """The episode that the head is in."""
        return [*self.row_before, *self.row_after]

    @property
    def chances(self) -> list[CourseStep]:
        """The first step of each short row of failures that came and went, without the head's own row.

        A longer row is a breakage that was fixed, and a row that has not ended says nothing about chance. Nor does one that
        only nights of another workflow show, where the job's own workflow tests the base: the two may differ.
        """
        steps = self.steps
        own, starts, row = {id(step) for step in self.row}, [], list[CourseStep]()
        is_tested = any(step.is_sure for step in steps)
        for step in steps:
            if step.fails:
                row.append(step)
                continue
            if 0 < len(row) <= _SHORT_ROW and id(row[0]) not in own:
                starts += [one for one in row if not is_tested or one.is_sure or one.pull is not None][:1]
            row = []
        return starts

    @property
    def base_passes(self) -> int:
        return sum(not step.fails and step.base is not None for step in self.steps)

    @property
    def last_clean(self) -> BaseResult | None:
        clean = (one.base for one in reversed(self.before) if one.base is not None and not one.fails)
        return next(clean, None)

    @property
    def fail_rate(self) -> float:
        """How often it fails outside of the head's own episode."""
        others = len(self.steps) - len(self.row)
        failing = sum(step.fails for step in self.steps) - len(self.row)
        return max(failing / others if others else 0.0, _LEAST_RATE)


def trace_course(failure: RecordedFailure, fingerprint: str | None, history: JobHistory) -> Course:
    steps = _base_steps(failure, fingerprint, history.base)
    if not failure.on_base:
        steps += _pull_steps(failure, fingerprint, history)
    if failure.landed:
        # What fails alike after the change has landed is its own doing.
        steps = [one for one in steps if not one.fails or _was_before(one, failure)]
    steps.sort(key=lambda step: step.order)
    own = (failure.position, failure.at) if failure.position is not None else None
    is_before = [step.order <= own if own is not None else step.at <= failure.at for step in steps]
    if not failure.on_branch and own is not None:
        # Every result of the base at that very commit counts, whenever it came.
        is_before = [
            before or (step.base is not None and step.position <= own[0])
            for before, step in zip(is_before, steps, strict=True)
        ]
    return Course(
        before=tuple(one for one, before in zip(steps, is_before, strict=True) if before),
        after=tuple(one for one, before in zip(steps, is_before, strict=True) if not before),
    )


def _base_steps(
    failure: RecordedFailure, fingerprint: str | None, base: Iterable[BaseResult]
) -> list[CourseStep]:
    told = [
        (result, state)
        for result in base
        if (state := state_of(result, fingerprint)) is not BaseState.UNCLEAR and not _is_own(result, failure)
    ]
    position = _find_positions([result for result, _ in told], failure)
    passed = {
        result.sha
        for result, state in told
        if state is BaseState.CLEAN and result.workflow == failure.workflow and result.sha is not None
    }
    return [
        CourseStep(
            position(result),
            result.at,
            state is BaseState.FAILS,
            base=result,
            is_sure=result.workflow == failure.workflow and result.position is not None,
        )
        for result, state in told
        # Another workflow that fails where the job's own passed the very commit runs it in another way.
        if not (state is BaseState.FAILS and result.workflow != failure.workflow and result.sha in passed)
    ]


def _pull_steps(failure: RecordedFailure, fingerprint: str | None, history: JobHistory) -> list[CourseStep]:
    """Results on unrelated pull requests whose place in the order is known; where the base is not tested, they are all."""
    failing = {
        other.head_sha: CourseStep(other.position, other.at, fails=True, pull=other)
        for other in unrelated(history.failures, failure)
        if other.position is not None
        and other.exact
        and other.passed_at is None
        and is_same_failure(other, fingerprint, failure)
    }
    # Passes of pull requests say nothing where the base itself was tested: one may contain the fix.
    passing = [
        CourseStep(passed.position, passed.at, fails=False)
        for passed in (() if history.base else history.pull_passes)
        if passed.number != failure.number and passed.head_sha not in failing
    ]
    return [*failing.values(), *passing]


def _was_before(step: CourseStep, failure: RecordedFailure) -> bool:
    """Whether the step was there without the judged change: by its place, or where that is unknown by its time."""
    return step.at <= failure.at or (failure.position is not None and step.position <= failure.position)


def _is_own(result: BaseResult, failure: RecordedFailure) -> bool:
    return failure.on_base and result.sha == failure.head_sha and result.at == failure.at


def _find_positions(base: Iterable[BaseResult], failure: RecordedFailure) -> Callable[[BaseResult], float]:
    """A result of an unknown commit is placed by its time: after the results before it, and after the failure if it is newer."""
    placed = sorted((result.at, result.position) for result in base if result.position is not None)
    times = [at for at, _ in placed]
    highest = [0, *accumulate((position for _, position in placed), max)]

    def find(result: BaseResult) -> float:
        if result.position is not None:
            return result.position
        least = failure.position or 0 if result.at > failure.at else 0
        return max(highest[bisect_right(times, result.at)], least) + 0.5

    return find


def find_last_before(failure: RecordedFailure, history: JobHistory) -> BaseResult | None:
    """The last result of the base by the job's own workflow at or before the commit that the head was built on."""
    placed = [
        (result.position, result.at, result)
        for result in history.base
        if result.position is not None
        and result.workflow == failure.workflow
        and not _is_own(result, failure)
    ]
    before = [one for one in placed if failure.position is not None and one[0] <= failure.position]
    return max(before, key=lambda one: one[:2])[2] if before else None


def is_same_failure(other: RecordedFailure, fingerprint: str | None, failure: RecordedFailure) -> bool:
    if other.failure_id == failure.failure_id or other.infrastructure or other.ended is not FailedAs.FAILURE:
        return False
    return not other.fingerprints if fingerprint is None else fingerprint in other.fingerprints
