"""The upstream's own CI as pages and API show it: of one commit, and of the newest commits of the base branch."""

from dataclasses import dataclass
from datetime import datetime

from crcr.decide.in_tree.checks import Counts, Outcome


@dataclass(frozen=True, slots=True)
class FailingCheck:
    name: str
    url: str | None
    conclusion: str
    """GitHub's word."""


@dataclass(frozen=True, slots=True)
class InTreeView:
    """How many in-tree checks of a commit passed, failed and run; the failing ones by name."""

    passed: int
    failed: int
    running: int
    failing: tuple[FailingCheck, ...] = ()
    """The first ones, where there are very many."""


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
