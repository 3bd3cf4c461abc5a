"""The range of base commits that broke a job: those after its last result without the failure, up to its first with it.

The failure that counts is one fingerprint, not any failure. Of one commit all results count together:

- It passed if any run of it passed, and is never blamed.
- It shows the failure, or it failed otherwise. A job that failed otherwise may not have come as far as the failing test: its
  commit is known to be clean only if it ran about as many tests, or if it shows another failure that is still there.
- A failure without details cannot be compared with one that has them: it says nothing.
- A failure that the backend's sick machines explain says nothing either.

A failure that came and went before may be at the beginning of its row by chance. Then the range ends where chance is below one
percent, as the failure's own rate says, and the commits after the first failing one are candidates too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import groupby, takewhile

from crcr.decide.failures.history import NO_DETAILS

Fingerprint = str | None
"""None for a failure without details."""
MOST_BREAKAGES = 5
"""Of one job: those with the most failing commits."""
_CHANCE = 0.01
_CHANCE_OF_A_ROW = 0.05
"""A row that chance makes more often than this is no breakage, where the verdict rules call the failure flaky."""
_MOST_REPEATS = 3
_AS_MANY_TESTS = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """One result of the job on a commit of the base."""

    position: int
    """Of the commit on its branch."""
    sha: str
    at: datetime
    passed: bool
    sick: bool = False
    """It failed because the backend's machines were sick."""
    fingerprints: frozenset[str] = NO_DETAILS
    """Of a failure."""
    tests: int | None = None
    """How many tests it ran, where it says so."""
    flaky: frozenset[Fingerprint] = frozenset()
    """Its failures that the verdict rules call flaky."""


@dataclass(frozen=True, slots=True)
class TestedBaseCommit:
    """A commit of the base with all results of the job on it that say something."""

    __test__ = False  # not a pytest class

    position: int
    sha: str
    results: tuple[CommitResult, ...]

    @property
    def passed(self) -> bool:
        return any(result.passed for result in self.results)

    @property
    def at(self) -> datetime:
        return min(result.at for result in self.results)

    @property
    def fingerprints(self) -> frozenset[str]:
        return frozenset().union(*(result.fingerprints for result in self.results))

    @property
    def tests(self) -> int:
        return max((result.tests or 0 for result in self.results), default=0)

    @property
    def failures(self) -> list[Fingerprint]:
        """What it failed with."""
        failed = [result for result in self.results if not result.passed]
        without_details: list[Fingerprint] = [None] if any(not one.fingerprints for one in failed) else []
        return [*sorted(self.fingerprints), *without_details]

    def shows(self, fingerprint: Fingerprint) -> bool:
        return fingerprint in self.failures

    def is_flaky(self, fingerprint: Fingerprint) -> bool:
        return any(fingerprint in result.flaky for result in self.results)


class CommitState(StrEnum):
    """What a tested commit says about one failure."""

    FAILS = "fails"
    CLEAN = "clean"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class EarlierBreakage:
    """An earlier row of the same failure that ended, in positions."""

    good: int | None
    """None where no clean commit before it is recorded."""
    first_bad: int
    fixed: int
    """The first clean commit after it."""

    def explains(self, position: int) -> bool:
        """Whether code that was built on this commit fails because of it."""
        return self.first_bad <= position < self.fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakageRange:
    """One breakage of a job that lasts until now: where it came from."""

    fingerprints: tuple[Fingerprint, ...]
    """The failures that came within this range, those on the most commits first."""
    good: TestedBaseCommit | None
    """The newest commit before the row that is clean; None where none is recorded."""
    first_bad: TestedBaseCommit
    bad: TestedBaseCommit
    """The commit where the failure is no chance: the first bad one, unless the failure came and went before."""
    newest: TestedBaseCommit
    failing: int
    """Commits of the row."""
    chance: float = 0.0
    """How often the failure comes by chance."""
    failed_otherwise: tuple[int, ...] = ()
    """Positions between the good and the first bad commit where the job failed without showing this failure."""
    earlier: tuple[EarlierBreakage, ...] = ()
    """Newest first."""

    def contains(self, position: int) -> bool:
        return (self.good is None or self.good.position < position) and position <= self.bad.position


def find_breakages(results: Iterable[CommitResult]) -> tuple[BreakageRange, ...]:
    """Return the breakages of one job that last until now, the oldest first; none where its newest result passed."""
    commits = group_by_commit(results)
    row = list(takewhile(lambda commit: not commit.passed, reversed(commits)))
    newest = next((commit for commit in row if commit.fingerprints), row[0] if row else None)
    found: dict[tuple[int, int], list[BreakageRange]] = {}
    for fingerprint in newest.failures if newest else ():
        breakage = _trace(fingerprint, commits)
        if breakage is not None:
            place = breakage.good.position if breakage.good else -1, breakage.first_bad.position
            found.setdefault(place, []).append(breakage)
    merged = [_merge(sorted(alike, key=lambda one: -one.failing)) for alike in found.values()]
    known = [one for one in merged if one.fingerprints != (None,)] or merged
    biggest = sorted(known, key=lambda one: -one.failing)[:MOST_BREAKAGES]
    return tuple(sorted(biggest, key=lambda one: one.first_bad.position))


def group_by_commit(results: Iterable[CommitResult]) -> list[TestedBaseCommit]:
    """The tested commits in their order; a commit of which nothing is known but that machines were sick is left out."""
    clear = sorted(
        (result for result in results if not result.sick), key=lambda one: (one.position, one.sha, one.at)
    )
    return [
        TestedBaseCommit(position, sha, tuple(group))
        for (position, sha), group in groupby(clear, key=lambda one: (one.position, one.sha))
    ]


def count_chance_failures(results: Iterable[CommitResult]) -> int:
    """How many commits failed by chance: they passed too, or failed alone with what the verdict rules call flaky.

    A row of failing commits is a breakage, also where the verdict rules call it flaky because it was fixed and came again; so is
    the row that lasts until now.
    """
    commits = group_by_commit(results)
    retried = sum(commit.passed and bool(commit.failures) for commit in commits)
    rows = [list(row) for passed, row in groupby(commits, key=lambda commit: commit.passed) if not passed]
    alone = [row[0] for row in rows if len(row) == 1 and row[0] is not commits[-1]]
    return retried + sum(any(result.flaky for result in commit.results) for commit in alone)


def _trace(fingerprint: Fingerprint, commits: Sequence[TestedBaseCommit]) -> BreakageRange | None:
    """Follow one failure back from the newest commit; None where it may come and go by chance."""
    row: list[TestedBaseCommit] = []
    otherwise: list[int] = []
    good: TestedBaseCommit | None = None
    for commit in reversed(commits):
        state = _state(commit, fingerprint, row[-1] if row else None)
        if state is CommitState.CLEAN:
            good = commit
            break
        if state is CommitState.FAILS:
            row.append(commit)
            otherwise = []
        elif commit.fingerprints:
            otherwise.append(commit.position)
    if not row:
        return None
    row.reverse()
    before = [
        (commit, _state(commit, fingerprint, row[0]))
        for commit in commits
        if good is not None and commit.position <= good.position
    ]
    chance = _measure_chance(before, fingerprint)
    may_be_chance = len(row) == 1 or chance ** len(row) > _CHANCE_OF_A_ROW
    if may_be_chance and row[-1].is_flaky(fingerprint):
        return None
    return BreakageRange(
        fingerprints=(fingerprint,),
        good=good,
        first_bad=row[0],
        bad=row[min(_repeats(chance), len(row)) - 1],
        newest=row[-1],
        failing=len(row),
        chance=chance,
        failed_otherwise=tuple(otherwise),
        earlier=tuple(reversed(_find_earlier(before))),
    )


def _state(
    commit: TestedBaseCommit, fingerprint: Fingerprint, witness: TestedBaseCommit | None
) -> CommitState:
    """`witness` is the next commit that shows the failure."""
    if commit.passed:
        return CommitState.CLEAN
    if commit.shows(fingerprint):
        return CommitState.FAILS
    if fingerprint is None or witness is None or not commit.fingerprints:
        return CommitState.UNCLEAR
    ran_as_many = 0 < _AS_MANY_TESTS * witness.tests <= commit.tests
    fails_beside_it = bool(commit.fingerprints & witness.fingerprints)
    return CommitState.CLEAN if ran_as_many or fails_beside_it else CommitState.UNCLEAR


def _measure_chance(
    before: Sequence[tuple[TestedBaseCommit, CommitState]], fingerprint: Fingerprint
) -> float:
    """How often the failure came and went before: on single commits, or on commits that passed when run again."""
    struck = sum(len(row) == 1 for row in _find_rows(before))
    struck += sum(commit.passed and commit.shows(fingerprint) for commit, _ in before)
    decided = sum(state is not CommitState.UNCLEAR for _, state in before)
    return struck / decided if struck else 0.0


def _find_rows(states: Sequence[tuple[TestedBaseCommit, CommitState]]) -> list[list[TestedBaseCommit]]:
    """The rows of failing commits, oldest first; the last state is clean, so each has ended."""
    rows: list[list[TestedBaseCommit]] = []
    row: list[TestedBaseCommit] = []
    for commit, state in states:
        if state is CommitState.FAILS:
            row.append(commit)
        elif state is CommitState.CLEAN and row:
            rows.append(row)
            row = []
    return rows


def _find_earlier(states: Sequence[tuple[TestedBaseCommit, CommitState]]) -> list[EarlierBreakage]:
    """The earlier rows of the failure, oldest first."""
    earlier: list[EarlierBreakage] = []
    clean: int | None = None
    first: int | None = None
    for commit, state in states:
        if state is CommitState.FAILS and first is None:
            first = commit.position
        elif state is CommitState.CLEAN:
            if first is not None:
                earlier.append(EarlierBreakage(clean, first, commit.position))
            clean, first = commit.position, None
    return earlier


def _repeats(chance: float) -> int:
    """How many failing commits in a row are no chance."""
    repeats = 1
    while round(chance**repeats, 6) > _CHANCE and repeats < _MOST_REPEATS:
        repeats += 1
    return repeats


def _merge(alike: Sequence[BreakageRange]) -> BreakageRange:
    """Several failures that came within the same commits are one breakage, as sure as the surest of them."""
    surest = min(alike, key=lambda one: (one.bad.position, one.chance))
    return BreakageRange(
        fingerprints=tuple(one.fingerprints[0] for one in alike),
        good=surest.good,
        first_bad=surest.first_bad,
        bad=surest.bad,
        newest=max((one.newest for one in alike), key=lambda commit: commit.position),
        failing=max(one.failing for one in alike),
        chance=surest.chance,
        failed_otherwise=surest.failed_otherwise,
        earlier=surest.earlier,
    )
