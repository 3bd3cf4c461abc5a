"""What in-tree checks show along the commits of a branch: which turned red where, and what a failure elsewhere adds to it.

In-tree failures have a name and no message. The same name may fail for any cause, so a name tells something only by its course:
it passed, and from one commit on it fails. A check that failed before, comes and goes, or never runs on the branch tells nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import takewhile

from crcr.decide.in_tree.checks import CLEAR_CONCLUSIONS, CheckKey

_ENOUGH_COMMITS = 2
"""A failure on a single commit that the next one does not have is chance."""


@dataclass(frozen=True, slots=True)
class CheckedCommit:
    """A commit of a branch with the clear results of its in-tree checks."""

    position: int
    sha: str
    pushed_at: datetime
    results: Mapping[CheckKey, bool]
    """Whether each check passed."""

    def failed(self) -> list[CheckKey]:
        return [key for key, passed in self.results.items() if not passed]


def clear_results(conclusions: Iterable[tuple[CheckKey, str | None]]) -> dict[CheckKey, bool]:
    """The checks of a commit that say whether its code passed."""
    clear = CLEAR_CONCLUSIONS
    return {key: clear[conclusion] for key, conclusion in conclusions if conclusion in clear}


class OnBase(StrEnum):
    """What a check that fails on a commit shows on the base branch."""

    FAILED = "failed"
    PASSED = "passed"


def compare_with_base(key: CheckKey, commits: Sequence[CheckedCommit]) -> OnBase | None:
    """The check on these commits, newest first: failed if the newest result or half of all failed; None without a result."""
    results = [commit.results[key] for commit in commits if key in commit.results]
    if not results:
        return None
    is_red = not results[0] or 2 * sum(results) <= len(results)
    return OnBase.FAILED if is_red else OnBase.PASSED


@dataclass(frozen=True, slots=True)
class TurnedRed:
    """A check that passed up to one commit of the branch and fails from another one on, in positions."""

    key: CheckKey
    good: int
    bad: int
    failing: int
    """Commits in a row."""

    @property
    def name(self) -> str:
        return self.key[1]

    @property
    def is_lasting(self) -> bool:
        return self.failing >= _ENOUGH_COMMITS


def find_turned_red(commits: Sequence[CheckedCommit]) -> tuple[TurnedRed, ...]:
    """The checks that turned red for the first time within these commits, oldest first, and that are no chance.

    One that fails on a single commit counts only while no later result contradicts it.
    """
    keys = dict.fromkeys(key for commit in commits for key in commit.failed())
    found = (_trace(key, commits) for key in keys)
    return tuple(sorted((one for one in found if one), key=lambda one: (one.bad, one.good, one.name)))


def _trace(key: CheckKey, commits: Sequence[CheckedCommit]) -> TurnedRed | None:
    results = [(commit.position, commit.results[key]) for commit in commits if key in commit.results]
    passing = list(takewhile(lambda result: result[1], results))
    failing = list(takewhile(lambda result: not result[1], results[len(passing) :]))
    if not passing or not failing:
        return None  # it was red before, or not at all
    is_over = len(passing) + len(failing) < len(results)
    if is_over and len(failing) < _ENOUGH_COMMITS:
        return None
    return TurnedRed(key, passing[-1][0], failing[0][0], len(failing))


def find_unexplained_failures(
    head: Mapping[CheckKey, bool], commits: Sequence[CheckedCommit], position: int
) -> tuple[str, ...]:
    """The names of checks that failed on a pull request's last head, and that the base does not explain.

    The base, whose `commits` are given oldest first, had them green on every commit before `position`, where the pull request
    landed, and does not contradict them after it. A check that the base never runs is not comparable.
    """
    before = [commit for commit in commits if commit.position < position]
    after = [commit for commit in commits if commit.position >= position]
    names = []
    for key in (key for key, passed in head.items() if not passed):
        results = [commit.results[key] for commit in before if key in commit.results]
        landed = next((commit.results[key] for commit in after if key in commit.results), None)
        if results and all(results) and not landed:
            names.append(key[1])
    return tuple(sorted(dict.fromkeys(names)))


def red_since(key: CheckKey, commits: Sequence[CheckedCommit]) -> tuple[CheckedCommit, CheckedCommit | None]:
    """The first commit of the row on which the check fails, and the last one before it where it passed, if there is one.

    The last of `commits`, oldest first, shows the failure.
    """
    first, good = commits[-1], None
    for commit in reversed(commits):
        passed = commit.results.get(key)
        if passed:
            good = commit
            break
        first = commit if passed is False else first
    return first, good
