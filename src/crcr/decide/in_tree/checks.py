"""Check runs and commit statuses of the upstream's own CI: which one of a name is the newest, and what it counts as.

GitHub sends webhooks late, twice and in any order, so the order of arrival decides nothing. A check run has an id that grows
with each run of the same name, and a re-run is a new check run; a commit status has a new id for each state. Within one check
run the completed state is newer than any other, and of two completions the later one counts. Equal times go to the worse
result: whatever arrives when, the same one remains.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

STATUSES = -1
"""In place of an App's id: commit statuses, which belong to no App."""
NO_APP = 0
"""A check run whose App GitHub does not name."""
MOST_CHECKS = 5_000
"""Of one commit: those with further names are not recorded."""
_LONGEST_NAME = 250
_LONGEST_SHOWN = 80
_DIGEST_CHARS = 16
_PASSING = frozenset({"success", "neutral", "skipped"})
"""What GitHub lets pass as a required check."""
CLEAR_CONCLUSIONS: Mapping[str | None, bool] = {
    "success": True,
    "failure": False,
    "timed_out": False,
    "error": False,
}
"""Those that say whether the tested code passed. A check that was skipped, cancelled or left for somebody to act on counts as
passed or failed for GitHub, and nothing was tested; `error` is a commit status."""
CheckKey = tuple[int, str]
"""An App's id, and the name of a check."""


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    RUNNING = "running"


class InTreeCheck(NamedTuple):
    """A check run, or a commit status, as a webhook describes it."""

    app_id: int
    name: str
    check_id: int
    ended_at: int | None
    """In seconds since 1970, as exact as GitHub's times."""
    conclusion: str | None
    """GitHub's word; None until it is completed."""
    url: str | None

    @property
    def key(self) -> CheckKey:
        """Of checks with the same key only the newest counts."""
        return self.app_id, self.name

    @property
    def outcome(self) -> Outcome:
        if self.conclusion is None:
            return Outcome.RUNNING
        return Outcome.PASSED if self.conclusion in _PASSING else Outcome.FAILED

    @property
    def order(self) -> tuple[int, bool, int, bool, str]:
        """Sorts the checks of a key from the oldest to the newest."""
        is_over, has_failed = self.conclusion is not None, self.outcome is Outcome.FAILED
        return self.check_id, is_over, self.ended_at or 0, has_failed, self.conclusion or ""

    def is_newer_than(self, other: "InTreeCheck") -> bool:
        """Whether it replaces the other check of the same key."""
        return self.order > other.order


class Counts(NamedTuple):
    """How many checks of a commit passed, failed and run; or by how much these numbers change."""

    passed: int = 0
    failed: int = 0
    running: int = 0

    def add(self, change: "Counts") -> "Counts":
        return Counts(self.passed + change.passed, self.failed + change.failed, self.running + change.running)

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.running

    @property
    def outcome(self) -> Outcome | None:
        """The commit's own outcome; None without any check."""
        if self.failed:
            return Outcome.FAILED
        if self.running:
            return Outcome.RUNNING
        return Outcome.PASSED if self.passed else None


_ONE = {
    Outcome.PASSED: Counts(passed=1),
    Outcome.FAILED: Counts(failed=1),
    Outcome.RUNNING: Counts(running=1),
}
_ONE_LESS = {outcome: Counts(*(-number for number in one)) for outcome, one in _ONE.items()}


def change_counts(known: InTreeCheck | None, reported: InTreeCheck) -> Counts | None:
    """By how much a reported check changes its commit's counts; None when it is a repeat, or older than the known one."""
    if known is None:
        return _ONE[reported.outcome]
    if not reported.is_newer_than(known):
        return None
    return _ONE[reported.outcome].add(_ONE_LESS[known.outcome])


def shorten_name(name: str) -> str:
    """Cut a name to what an index can hold; two long names stay different."""
    if len(name) <= _LONGEST_NAME:
        return name
    digest = sha256(name.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: _LONGEST_NAME - _DIGEST_CHARS - 1]}…{digest}"


def describe_names(names: Sequence[str], quote: str = "") -> str:
    """The first of these names for a sentence, and how many more there are; names are text of the authors of workflows."""
    name = " ".join(names[0].split()).replace("`", "'")
    shown = name if len(name) <= _LONGEST_SHOWN else f"{name[: _LONGEST_SHOWN - 1]}…"
    return f"{quote}{shown}{quote}{f' (+{len(names) - 1})' if len(names) > 1 else ''}"
