"""Whether a commit that a downstream tested on its own belongs to the upstream.

That GitHub knows a commit says little: a fork's commits are in the same store of objects. Only what one of the
upstream's own branches has behind it is base history: the default branch, `nightly`, and release branches.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

NIGHTLY_BRANCH = "nightly"
RELEASE_BRANCHES = "release/"
"""How the names of release branches begin."""
MOST_RELEASES = 10
"""How many release branches are asked about one commit, the newest first."""

_DIGITS = re.compile(r"(\d{1,18})")


class CommitStanding(StrEnum):
    UNCHECKED = "unchecked"
    """GitHub has not been asked yet, or has not answered."""
    UNANSWERED = "unanswered"
    """It has not answered for so long that nobody asks any more, until somebody reports about the commit again."""
    BASE = "base"
    ELSEWHERE = "elsewhere"
    """GitHub knows it, and no branch of the upstream's has it: a fork's, a pull request's, or a lost one."""
    UNKNOWN = "unknown"
    """No commit was named, or GitHub does not know the one that was."""


@dataclass(frozen=True, slots=True)
class CommitPlace:
    """Where a commit stands; `branch` is the first of the upstream's branches that has it."""

    standing: CommitStanding
    branch: str | None = None


UNCHECKED = CommitPlace(CommitStanding.UNCHECKED)
ELSEWHERE = CommitPlace(CommitStanding.ELSEWHERE)
UNKNOWN = CommitPlace(CommitStanding.UNKNOWN)


def branches_to_ask(default: str, releases: Iterable[str]) -> tuple[str, ...]:
    """In this order: most nightlies test the default branch, few an old release."""
    newest = sorted(
        (each for each in releases if each.startswith(RELEASE_BRANCHES)), key=_release_sort_key, reverse=True
    )
    return tuple(dict.fromkeys((default, NIGHTLY_BRANCH, *newest[:MOST_RELEASES])))


def _release_sort_key(branch: str) -> tuple[tuple[int, int, str], ...]:
    """By the numbers in its name, so that 2.10 is newer than 2.9; a word is older than a number."""
    parts = _DIGITS.split(branch.removeprefix(RELEASE_BRANCHES))
    return tuple((1, int(each), "") if each.isdigit() else (0, 0, each) for each in parts if each)
