"""Bisections as pages, the JSON API and the command line show them.

Text that others wrote (`job`, titles of commits, samples) is unescaped here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.bisection.request import AUTOMATIC
from crcr.decide.bisection.search import BisectionOutcome, CommitFinding, RunResult, SearchLimits
from crcr.decide.model import RepoName


class BisectionState(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionCommit:
    """A commit of the range."""

    sha: str
    number: int | None
    """Its pull request."""
    title: str
    finding: CommitFinding | None
    """None where it was not tested; `open` while a run of it is awaited."""
    is_candidate: bool
    """Whether it may still be the one that broke the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionRun:
    number: int
    sha: str
    delivery: str
    result: RunResult | None
    """None while it runs."""
    sample: str | None
    """The first line of a failure's message."""
    url: str | None
    """The job's own page."""
    sent_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionView:
    """One bisection without its commits and runs."""

    id: int
    backend: RepoName
    workflow: str
    job: str
    branch: str
    state: BisectionState
    outcome: BisectionOutcome | None
    reason: str | None
    """Why it ended, where the outcome does not say it."""
    good: str
    bad: str
    """The ends of the range that it began with."""
    commits: int
    """How many candidates there were."""
    left: int
    """How many there are now."""
    left_good: str
    left_bad: str
    """The culprit is after `left_good`, up to `left_bad`."""
    culprit: BisectionCommit | None
    runs: int
    most_runs: int
    flake_rate: float
    who: str
    created_at: datetime
    ends_at: datetime
    finished_at: datetime | None

    @property
    def sentence(self) -> str:
        return describe_bisection(self)

    @property
    def is_automatic(self) -> bool:
        """Whether the relay began it by itself."""
        return self.who == AUTOMATIC

    @property
    def failures_needed(self) -> int:
        """How many failures of one commit are no chance."""
        limits = SearchLimits(commits=self.commits, most_runs=self.most_runs, flake_rate=self.flake_rate)
        return limits.failures_needed


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionDetail:
    bisection: BisectionView
    commits: tuple[BisectionCommit, ...]
    """The good end first, the bad end last."""
    runs: tuple[BisectionRun, ...]
    """In the order in which they were sent."""
    change: int
    """The newest change that this shows, for live pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionQuery:
    upstream: RepoName
    backend: RepoName | None = None
    job: str | None = None
    state: BisectionState | None = None
    after: tuple[str | int, ...] | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class BisectionPage:
    items: tuple[BisectionView, ...]
    """Newest first."""
    next: tuple[str | int, ...] | None
    change: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritBisection:
    """A bisection that found a commit to be the one that broke a job."""

    id: int
    backend: RepoName
    job: str


def name_commit(sha: str, number: int | None) -> str:
    return f"{sha[:10]} (#{number})" if number is not None else sha[:10]


_SENTENCES: Mapping[BisectionOutcome, str] = {
    BisectionOutcome.DOWNSTREAM_CHANGED: "The good end {good} fails with today's downstream: the downstream changed,"
    " and no upstream commit can be blamed.",
    BisectionOutcome.NOT_REPRODUCED: "The bad end {bad} passes with today's downstream: the failure is gone, or came by"
    " chance.",
    BisectionOutcome.NARROWED: "One of {left} commits broke it: those between {left_good} and {left_bad} have no clear"
    " result.",
    BisectionOutcome.BUDGET_SPENT: "The budget is spent. Commits left: {left} of {commits}, after {left_good} up to"
    " {left_bad}.",
    BisectionOutcome.NO_ANSWER: "The downstream's runs have no result. Commits left: {left} of {commits}.",
    BisectionOutcome.STOPPED: "It was stopped. Commits left: {left} of {commits}.",
    BisectionOutcome.WITHDRAWN: "It was withdrawn. Commits left: {left} of {commits}.",
}


def describe_briefly(view: BisectionView) -> str:
    """A few words, where the page names the job and links to the rest."""
    if view.culprit is not None:
        return f"{name_commit(view.culprit.sha, view.culprit.number)} broke it"
    left = f"{view.left:,} of {view.commits:,} commits left"
    return left if view.outcome is None else f"{view.outcome.value.replace('_', ' ')}, {left}"


def describe_bisection(view: BisectionView) -> str:
    """One sentence about where it stands, or what it found."""
    if view.culprit is not None:
        culprit = name_commit(view.culprit.sha, view.culprit.number)
        return f"{culprit} broke it: the job fails there and passes at {view.left_good[:10]} before it."
    if view.outcome is None:
        return f"Commits left: {view.left:,} of {view.commits:,}. Runs sent: {view.runs:,} of at most {view.most_runs:,}."
    sentence = _SENTENCES[view.outcome].format(
        good=view.good[:10],
        bad=view.bad[:10],
        left=view.left,
        commits=view.commits,
        left_good=view.left_good[:10],
        left_bad=view.left_bad[:10],
    )
    return f"{sentence} Reason: {view.reason}." if view.reason else sentence
