"""What a run of a bisection says about the failure that is looked for.

The failure is a set of fingerprints: those of the recorded breakage, if the bad end still shows one of them, else those that the
bad end shows today. A run that fails without any of them is clean only if it demonstrably ran the failing test, by the same rules
as for culprits (`decide.culprits.commit_range`): otherwise its commit is skipped rather than called good.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from crcr.decide.bisection.search import RunResult
from crcr.decide.model import Conclusion, JobState
from crcr.decide.statistics.figures import CountedAs, count_as

_AS_MANY_TESTS = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectedJob:
    """The bisected job as one run reported it."""

    state: JobState
    conclusion: Conclusion | None = None
    expected: Conclusion | None = None
    superseded: bool = False
    """A newer run of the same dispatch replaced it."""
    fingerprints: frozenset[str] = frozenset()
    tests: int | None = None
    """How many tests it ran, where it says so."""

    @property
    def has_failed(self) -> bool:
        return self.state is JobState.COMPLETED and self._counted is CountedAs.FAILURE

    @property
    def has_passed(self) -> bool:
        return self._counted is CountedAs.SUCCESS

    @property
    def has_ended(self) -> bool:
        return self._counted is not CountedAs.RUNNING

    @property
    def _counted(self) -> CountedAs:
        return count_as(self.state, self.conclusion, self.expected)


@dataclass(frozen=True, slots=True)
class TargetFailure:
    """The failure that is looked for."""

    fingerprints: frozenset[str]
    """Empty for a failure without details."""
    tests: int = 0
    """How many tests the bad end ran."""
    beside: frozenset[str] = frozenset()
    """All fingerprints of the bad end: a commit that fails with one of them came as far as the bad end did."""


def choose_target(recorded: frozenset[str], bad_end: Iterable[BisectedJob]) -> TargetFailure:
    """The recorded failure, or what the bad end shows today where it does not show that."""
    failed = [job for job in bad_end if job.has_failed]
    shown = frozenset[str]().union(*(job.fingerprints for job in failed))
    tests = max((job.tests or 0 for job in failed), default=0)
    if failed and not shown & recorded:
        return TargetFailure(shown, tests, shown)
    return TargetFailure(recorded, tests, shown or recorded)


def classify_run(job: BisectedJob | None, target: TargetFailure, *, is_over: bool) -> RunResult | None:
    """The result of a run; None while it may still come. `is_over` when nothing is waited for any more."""
    if job is None or not job.has_ended:
        return RunResult.NO_RESULT if is_over else None
    if job.has_passed:
        return RunResult.PASSED
    if not job.has_failed:
        return RunResult.NO_RESULT
    if not target.fingerprints:
        return RunResult.FAILED_OTHERWISE if job.fingerprints else RunResult.FAILED
    if job.fingerprints & target.fingerprints:
        return RunResult.FAILED
    if not job.fingerprints:
        return RunResult.FAILED_OTHERWISE
    ran_as_many = 0 < _AS_MANY_TESTS * target.tests <= (job.tests or 0)
    fails_beside_it = bool(job.fingerprints & target.beside)
    # The failing test ran and did not fail: what else fails there is another breakage.
    return RunResult.PASSED if ran_as_many or fails_beside_it else RunResult.FAILED_OTHERWISE
