"""The in-tree checks that are red on the base branch, each with the range of commits that broke it.

A check is like a job that reports no failed test: one failure, which lasts until it passes. The rules of `commit_range` apply.
"""

from collections.abc import Sequence

from crcr.decide.culprits.commit_range import BreakageRange, CommitResult, find_breakages
from crcr.decide.in_tree.base_results import CheckedCommit
from crcr.decide.in_tree.checks import CheckKey

RED_WITHIN = 20
"""A check without a result on the newest tested commits of this number was renamed or removed: it is not red."""
_FLAKY_AFTER = 2
"""So often it failed on a single commit and passed on the next."""


def find_red_checks(commits: Sequence[CheckedCommit]) -> dict[CheckKey, BreakageRange]:
    """The checks whose newest result failed, by name, each with the range of commits that broke it.

    `commits` are the newest tested ones of the branch, oldest first.
    """
    recent = commits[-RED_WITHIN:]
    newest = {key: passed for commit in recent for key, passed in commit.results.items()}
    red = sorted((key for key, passed in newest.items() if not passed), key=lambda key: (key[1], key[0]))
    found: dict[CheckKey, BreakageRange] = {}
    alike: dict[tuple[bool | None, ...], tuple[BreakageRange, ...]] = {}
    for key in red:  # checks that broke together have the same course
        course = tuple(commit.results.get(key) for commit in commits)
        if course not in alike:
            alike[course] = find_breakages(_as_results(key, commits))
        if alike[course]:
            found[key] = alike[course][0]
    return found


def _as_results(key: CheckKey, commits: Sequence[CheckedCommit]) -> list[CommitResult]:
    """The check's results as those of a job that reports no failed test."""
    tested = [commit for commit in commits if key in commit.results]
    is_flaky = _count_single_failures([commit.results[key] for commit in tested]) >= _FLAKY_AFTER
    return [
        CommitResult(
            position=commit.position,
            sha=commit.sha,
            at=commit.pushed_at,
            passed=commit.results[key],
            flaky=frozenset({None}) if is_flaky else frozenset(),
        )
        for commit in tested
    ]


def _count_single_failures(results: Sequence[bool]) -> int:
    """How often it failed on one commit and passed on those before and after it."""
    return sum(
        before and not passed and after
        for before, passed, after in zip(results, results[1:], results[2:], strict=False)
    )
