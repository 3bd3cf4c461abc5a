"""Whether a commit in a self-report belongs to the upstream's history.

That GitHub knows a commit proves little: a fork's commits are in the same object store. Only ancestors of the
upstream's own branches count: the default branch, `nightly`, and release branches.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

NIGHTLY_BRANCH = "nightly"
RELEASE_BRANCHES = "release/"
"""The prefix of release branches."""
MOST_RELEASES = 10
"""How many release branches are compared with one commit, the newest first."""

_DIGITS = re.compile(r"(\d{1,18})")
_VERSION = re.compile(r"(?:^|[/_-])v?[0-9]{1,9}\.[0-9]", re.IGNORECASE)


class CommitStanding(StrEnum):
    UNCHECKED = "unchecked"
    """Not looked up yet, or GitHub has not answered."""
    UNANSWERED = "unanswered"
    """GitHub did not answer for so long that the look-up was given up, until the commit is reported again."""
    BASE = "base"
    ELSEWHERE = "elsewhere"
    """GitHub knows it, but no upstream branch contains it: it is a fork's, a pull request's, or a lost commit."""
    UNKNOWN = "unknown"
    """No commit was named, or GitHub does not know it."""


@dataclass(frozen=True, slots=True)
class CommitPlace:
    """A commit's origin; `branch` is the first of the upstream's branches that contains it."""

    standing: CommitStanding
    branch: str | None = None


UNCHECKED = CommitPlace(CommitStanding.UNCHECKED)
ELSEWHERE = CommitPlace(CommitStanding.ELSEWHERE)
UNKNOWN = CommitPlace(CommitStanding.UNKNOWN)


def branches_to_ask(default: str, releases: Iterable[str]) -> tuple[str, ...]:
    """Return the branches to compare, the likeliest first: most nightlies test the default branch, few an old release."""
    newest = newest_releases(branch for branch in releases if branch.startswith(RELEASE_BRANCHES))
    return tuple(dict.fromkeys((default, NIGHTLY_BRANCH, *newest[:MOST_RELEASES])))


def newest_releases(names: Iterable[str]) -> list[str]:
    """Return release branches, or tags, with the highest version first."""
    return sorted(names, key=_release_sort_key, reverse=True)


def is_version_tag(name: str) -> bool:
    """Return whether a tag names a version, such as `v2.9.0-rc1`: CI systems push tags for each pull request."""
    return _VERSION.search(name) is not None


def _release_sort_key(branch: str) -> tuple[tuple[int, int, str], ...]:
    """Sort by the numbers in the name, so that 2.10 is newer than 2.9, and 2.9.0 than 2.9.0-rc1; a word is older than a number."""
    parts = filter(None, _DIGITS.split(branch.removeprefix(RELEASE_BRANCHES)))
    return (*map(_part_sort_key, parts), (0, 1, ""))


def _part_sort_key(part: str) -> tuple[int, int, str]:
    if part.isdecimal():
        return 1, int(part), ""
    return 0, 2 if part == "." else 0, part
