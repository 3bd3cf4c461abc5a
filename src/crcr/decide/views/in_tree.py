"""The upstream's own CI as pages and API show it: of one commit, and of the newest commits of the base branch.

The names of checks are unescaped here.
"""

from dataclasses import dataclass
from datetime import datetime

from crcr.decide.in_tree.base_results import OnBase
from crcr.decide.in_tree.checks import Counts, Outcome, describe_names


@dataclass(frozen=True, slots=True)
class RedSince:
    """Where a check of the base branch began to fail."""

    sha: str
    """The first commit of the row on which it fails."""
    number: int | None = None
    """The pull request, where it is the only change since the check passed."""


@dataclass(frozen=True, slots=True)
class FailingCheck:
    name: str
    url: str | None
    conclusion: str
    """GitHub's word."""
    on_base: OnBase | None = None
    """The same check on the commits of the base that this one is built on; None where it has no result there."""
    since: RedSince | None = None
    """For a commit of a branch; None where no pass of the check is recorded."""


@dataclass(frozen=True, slots=True)
class InTreeView:
    """How many in-tree checks of a commit passed, failed and run; the failing ones by name."""

    passed: int
    failed: int
    running: int
    failing: tuple[FailingCheck, ...] = ()
    """The first ones, where there are very many."""


_ON_BASE = {
    OnBase.PASSED: "which passed on the base",
    OnBase.FAILED: "which also fails on the base",
    None: "of which the base has no result",
}


def describe_in_tree(view: InTreeView) -> str | None:
    """A sentence for failures of downstreams on the same commit: whether in-tree CI fails there too, and on the base.

    None while it runs and nothing has failed.
    """
    if not view.failed:
        return None if view.running or not view.passed else "In-tree CI passed on this commit."
    clauses = [
        f"{describe_names([check.name for check in alike])}, {words}"
        for on_base, words in _ON_BASE.items()
        if (alike := [check for check in view.failing if check.on_base is on_base])
    ]
    return f"In-tree CI fails on this commit too: {'; '.join(clauses)}."


@dataclass(frozen=True, slots=True)
class InTreeCommit:
    sha: str
    pushed_at: datetime
    passed: int
    failed: int
    running: int

    @property
    def outcome(self) -> Outcome | None:
        return Counts(self.passed, self.failed, self.running).outcome


@dataclass(frozen=True, slots=True)
class InTreeTrend:
    branch: str
    commits: tuple[InTreeCommit, ...]
    """Those with in-tree checks, the newest last; never empty."""

    @property
    def decided(self) -> tuple[InTreeCommit, ...]:
        """The commits that passed or failed; one that still runs may do either."""
        return tuple(commit for commit in self.commits if commit.outcome is not Outcome.RUNNING)

    @property
    def passed(self) -> int:
        return sum(commit.outcome is Outcome.PASSED for commit in self.commits)
