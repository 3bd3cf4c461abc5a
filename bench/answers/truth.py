"""What is true about each failure, and whether anybody could know it from what the relay was sent.

The cause of every failure is known, because the history made it. A failure is *decidable* when the sent results hold a
witness for its cause. The witnesses are these; nothing is taken from the relay's rules.

| cause | witness | without it |
| --- | --- | --- |
| regression | the job (the test) passed at least 3 times without the change | fewer: `unknown` is accepted too |
| breakage of the base | the newest base result at or before the tested commit shows it | see below |
| flake | the same commit also passed, or it came and went at least twice along the commits without the change | see below |
| sick fleet | at least 3 unrelated commits fail there within two hours, and most jobs with them | undecidable |
| stuck job | its conclusion | always there |
| silence | the backend answered at least 3 dispatches | fewer: `unknown` is accepted too |

- A breakage that the base shows only at a later commit, while the nearest earlier result passed, is `pre-existing` or
  `unknown`: nobody knows on which side of the tested commit it began. Without any base result it takes 3 pull requests
  of 2 other trusted authors; with fewer it is undecidable.
- Other commits decide between a broken backend and a sick one. While at least 3 unrelated commits and most jobs of the
  backend failed from the first to the last sight of a breakage, `infrastructure` is accepted too.
- A pull request on top of another one inherits its regression: `new` for the base branch, `pre-existing` for its author.
  The lower one is `new`, however many are stacked on it.
- A flake that came once elsewhere is `flaky` or `unknown`, and `pre-existing` too where no commit between passed. One that
  was never seen elsewhere is undecidable: nothing distinguishes it from a regression. One that also hit the base at the
  tested commit is `pre-existing` as well.
- Sick hours that also hit the base at the tested commit make `pre-existing` acceptable too.
- A job that lists no tests shows only that it failed. If other causes made it fail elsewhere, nobody can tell them
  apart, and it is undecidable, unless those failures can be recognised as infrastructure.
- A job with several failed tests is `new` if one of them is; otherwise each kind of its tests is accepted.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from bench.answers.causes import (
    Breakage,
    Cause,
    Failure,
    Flake,
    Kind,
    Outage,
    Regression,
    SickFleet,
    StuckJob,
)
from bench.answers.history import TRUSTED, History
from bench.answers.playback import Played, Result, Unanswered

_ENOUGH = 3
_SAME_TIME = timedelta(hours=1)
_MOST_JOBS = 0.6

Kinds = frozenset[Kind]
UNDECIDABLE: Kinds = frozenset()
_CONFUSED_WITH: dict[type, tuple[type, ...]] = {
    Regression: (Regression, Breakage, Flake, SickFleet),
    Breakage: (Flake, SickFleet),
    Flake: (Regression, Breakage, SickFleet),
}
"""Causes that look the same in a job that lists no tests."""


@dataclass(frozen=True, slots=True)
class TestTruth:
    __test__ = False

    test: str
    kind: Kind
    accepted: Kinds
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """About one failed job of a pull request's newest head, or a backend or job that did not answer."""

    pull: str
    backend: str
    job: str | None
    run: int | None
    attempt: int
    kind: Kind
    accepted: Kinds
    causes: tuple[str, ...]
    tests: tuple[TestTruth, ...] = ()

    @property
    def is_decidable(self) -> bool:
        return bool(self.accepted)


def judge_history(history: History, played: Played) -> list[Truth]:
    """The truth about everything that failed, or did not come, on the newest heads."""
    judge = _Judge(history, played)
    return [*judge.failed_jobs(), *judge.silences()]


class _Judge:
    def __init__(self, history: History, played: Played) -> None:
        self._history, self._played = history, played
        self._at_place: dict[tuple[str, str], list[Result]] = defaultdict(list)
        self._of_backend: dict[str, list[Result]] = defaultdict(list)
        for result in sorted(played.results, key=lambda result: result.at):
            self._at_place[result.backend, result.job].append(result)
            self._of_backend[result.backend].append(result)
        self._witnesses: dict[type, Callable[[Result, Failure], Kinds]] = {
            Regression: self._about_regression,
            Breakage: self._about_breakage,
            Flake: self._about_flake,
            SickFleet: self._about_sick_fleet,
            StuckJob: lambda _result, _failure: frozenset({"infrastructure"}),
        }

    def failed_jobs(self) -> Iterable[Truth]:
        for result in self._newest():
            if result.failures:
                yield self._about_job(result)

    def _newest(self) -> list[Result]:
        """The last attempt of each job on the newest head of each pull request."""
        newest: dict[tuple[str, str, str], Result] = {}
        for result in self._played.results:
            key = result.code.pull
            if key is None or result.code.head != self._played.pulls[key].head:
                continue
            place = key, result.backend, result.job
            if place not in newest or newest[place].attempt <= result.attempt:
                newest[place] = result
        return list(newest.values())

    def _about_job(self, result: Result) -> Truth:
        judged = [(failure, self._accepted(result, failure)) for failure in result.failures]
        shown = _shows_tests(result)
        real, accepted = _sum_up([(failure.cause.kind, kinds) for failure, kinds in judged])
        tests = tuple(
            TestTruth(failure.symptom.test, failure.cause.kind, kinds, failure.cause.name)
            for failure, kinds in judged
            if shown and failure.symptom is not None
        )
        return Truth(
            pull=result.code.pull or "",
            backend=result.backend,
            job=result.job,
            run=result.run,
            attempt=result.attempt,
            kind=real,
            accepted=accepted,
            causes=tuple(sorted({failure.cause.name for failure in result.failures})),
            tests=tests,
        )

    def _accepted(self, result: Result, failure: Failure) -> Kinds:
        recognisable = failure.conclusion != "failure" or isinstance(failure.cause, SickFleet)
        if not recognisable and not _shows_tests(result) and self._is_confounded(result, failure.cause):
            return UNDECIDABLE
        return self._witnesses[type(failure.cause)](result, failure)

    def _is_confounded(self, result: Result, cause: Cause) -> bool:
        """Whether the job also failed without listed tests for another reason that nobody can recognise.

        What the base shows at the tested commit is a breakage, whatever other pull requests did: only chance is like it.
        """
        alike = _CONFUSED_WITH[type(cause)]
        return any(
            other.cause is not cause and not self._is_recognisable(each, other)
            for each in self._at_place[result.backend, result.job]
            if not _shows_tests(each)
            for other in each.failures
            if isinstance(other.cause, alike) and not _is_same_origin(other.cause, cause)
        )

    def _is_recognisable(self, result: Result, failure: Failure) -> bool:
        if failure.conclusion != "failure":
            return True
        return isinstance(failure.cause, SickFleet) and bool(self._about_sick_fleet(result, failure))

    def _about_regression(self, result: Result, failure: Failure) -> Kinds:
        assert isinstance(failure.cause, Regression)
        cause = failure.cause
        elsewhere = [
            each
            for each in self._at_place[result.backend, result.job]
            if not each.code.contains(cause.pull)
            and (cause.landed_at is None or each.code.base < cause.landed_at)
        ]
        accepted: set[Kind] = {"new"}
        if sum(_passes(each, failure) for each in elsewhere) < _ENOUGH:
            accepted.add("unknown")
        if result.code.pull != cause.pull:
            accepted |= {"unknown", "pre-existing"}
        return frozenset(accepted)

    def _without_change(self, result: Result) -> list[Result]:
        return [
            each
            for each in self._at_place[result.backend, result.job]
            if not each.code.contains(result.code.pull)
        ]

    def _about_breakage(self, result: Result, failure: Failure) -> Kinds:
        accepted = self._about_landed_breakage(result, failure)
        if accepted and self._looks_sick(result, failure.cause):
            return accepted | {"infrastructure"}
        return accepted

    def _looks_sick(self, result: Result, cause: Cause) -> bool:
        """Whether most jobs fail from the first to the last time that the breakage was seen, whatever the commit."""
        own = self._of_backend[result.backend]
        hit = [each.at for each in own if any(failure.cause is cause for failure in each.failures)]
        meanwhile = [each for each in own if hit[0] - _SAME_TIME <= each.at <= hit[-1] + _SAME_TIME]
        failed = [each for each in meanwhile if each.failures]
        unrelated = {each.code.pull or each.code.sha for each in failed}
        return len(unrelated) >= _ENOUGH and len(failed) >= _MOST_JOBS * len(meanwhile)

    def _about_landed_breakage(self, result: Result, failure: Failure) -> Kinds:
        base = self._base_results(result)
        nearest = _nearest(base, result.code.base)
        if nearest is not None and _has(nearest, failure):
            return frozenset({"pre-existing"})
        if any(_has(each, failure) and each.code.base > result.code.base for each in base):
            return frozenset({"pre-existing", "unknown"})
        if any(_passes(each, failure) and each.code.base > result.code.base for each in base):
            return UNDECIDABLE
        return frozenset({"pre-existing"}) if self._is_shared(result, failure) else UNDECIDABLE

    def _is_shared(self, result: Result, failure: Failure) -> bool:
        """Whether enough pull requests of other trusted authors fail in the same way."""
        others = {
            (each.code.pull, each.author)
            for each in self._without_change(result)
            if each.event == "pull" and _has(each, failure) and each.author != result.author
            and self._history.authors[each.author or ""] in TRUSTED
        }  # fmt: skip
        return len(others) >= _ENOUGH and len({author for _, author in others}) >= 2

    def _base_results(self, result: Result) -> list[Result]:
        return [each for each in self._at_place[result.backend, result.job] if each.event != "pull"]

    def _about_flake(self, result: Result, failure: Failure) -> Kinds:
        nearest = _nearest(self._base_results(result), result.code.base)
        accepted: set[Kind] = {"flaky"}
        if nearest is not None and _has(nearest, failure):
            accepted.add("pre-existing")
        same_commit = (
            each
            for each in self._at_place[result.backend, result.job]
            if each.code.sha == result.code.sha and each.code.base == result.code.base
        )
        if any(_passes(each, failure) for each in same_commit):
            return frozenset(accepted)
        elsewhere = self._without_change(result)
        episodes = _episodes(elsewhere, failure)
        if episodes == 1:
            accepted.add("unknown")
            if _episodes([*elsewhere, result], failure) == 1:
                accepted.add("pre-existing")
        return frozenset(accepted) if episodes else UNDECIDABLE

    def _about_sick_fleet(self, result: Result, failure: Failure) -> Kinds:
        if failure.conclusion != "failure":
            return frozenset({"infrastructure"})
        near = [each for each in self._of_backend[result.backend] if abs(each.at - result.at) <= _SAME_TIME]
        sick = [each for each in near if any(other.cause is failure.cause for other in each.failures)]
        unrelated = {each.code.pull or each.code.sha for each in sick}
        if len(unrelated) < _ENOUGH or len(sick) < _MOST_JOBS * len(near):
            return UNDECIDABLE
        nearest = _nearest(self._base_results(result), result.code.base)
        if nearest is not None and _has(nearest, failure):
            return frozenset({"infrastructure", "pre-existing"})
        return frozenset({"infrastructure"})

    def silences(self) -> Iterable[Truth]:
        for silence in self._played.unanswered:
            if self._played.pulls[silence.pull].head == silence.head:
                yield self._about_silence(silence)

    def _about_silence(self, silence: Unanswered) -> Truth:
        accepted: set[Kind] = {"missing"}
        if silence.cause.manner != "unreported":
            # The run never started: this is a fault of the fleet just as well.
            accepted.add("infrastructure")
        if self._answered(silence.backend) < _ENOUGH:
            accepted.add("unknown")
        return Truth(
            pull=silence.pull,
            backend=silence.backend,
            job=silence.job,
            run=None,
            attempt=1,
            kind="missing",
            accepted=frozenset(accepted),
            causes=(silence.cause.name,),
        )

    def _answered(self, backend: str) -> int:
        return len({each.run for each in self._of_backend[backend] if each.event == "pull"})


def _sum_up(kinds: list[tuple[Kind, Kinds]]) -> tuple[Kind, Kinds]:
    """The job's own kind, and what is accepted for it, from those of its failures."""
    new = [accepted for kind, accepted in kinds if kind == "new"]
    if new:
        known = [accepted for accepted in new if accepted]
        return "new", min(known, key=len) if known else UNDECIDABLE
    if any(not accepted for _, accepted in kinds):
        return kinds[0][0], UNDECIDABLE
    return kinds[0][0], frozenset().union(*(accepted for _, accepted in kinds))


def _shows_tests(result: Result) -> bool:
    return result.lists_tests and all(failure.symptom is not None for failure in result.failures)


def _is_same_origin(one: Cause, other: Cause) -> bool:
    """A regression and the breakage that it became when it was merged."""
    pulls = [getattr(cause, "landed_from", None) or getattr(cause, "pull", None) for cause in (one, other)]
    return pulls[0] is not None and pulls[0] == pulls[1] and not isinstance(one, Outage | StuckJob)


def _has(result: Result, failure: Failure) -> bool:
    """Whether the result shows the same failure: the same test with the same text, or a job without tests."""
    if failure.symptom is None or not result.lists_tests:
        return result.conclusion == "failure" and not _shows_tests(result)
    return any(other.symptom == failure.symptom for other in result.failures)


def _passes(result: Result, failure: Failure) -> bool:
    """Whether the result shows that the test, or without tests the job, is in order."""
    if not result.failures:
        return True
    if not _shows_tests(result) or failure.symptom is None:
        return False
    return all(
        other.symptom is None or other.symptom.test != failure.symptom.test for other in result.failures
    )


def _nearest(base: list[Result], position: int) -> Result | None:
    """The result of the newest commit that the tested one contains; of several, the last to arrive."""
    before = [each for each in base if each.code.base <= position]
    return max(before, key=lambda each: (each.code.base, each.at), default=None)


def _episodes(results: list[Result], failure: Failure) -> int:
    """How often the failure came and went in the order of commits: a breakage of the base branch does so once."""
    episodes, failing = 0, False
    for result in sorted(results, key=lambda result: (result.code.base, result.at)):
        if _has(result, failure):
            episodes += not failing
            failing = True
        elif _passes(result, failure):
            failing = False
    return episodes
