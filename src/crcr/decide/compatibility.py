"""What works together: at which of the upstream's commits every chosen backend is green.

*Green at a commit* is a statement about exactly that commit: of each of the backend's jobs there the newest result counts, none of
these failed, runs or was cancelled, and at least one succeeded. Testing is sparse, so `GreenMatch.BETWEEN` also accepts a commit without
a result of its own that lies between two green ones with no failure in between; every answer says which of both it rests on. Commits
are in the order of their branch (`base_commits.position`), never in that of results' arrival.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.model import Level, RepoName
from crcr.errors import BadRequest

MOST_SEARCHED = 500
"""Commits of a branch, newest first, among which a green one is looked for."""
MOST_NAMED = 50
"""Backends that one request may name."""
DEFAULT_LEVEL = Level.L3
"""Of the backends that are chosen by nothing else."""


class NewestResult(StrEnum):
    """The newest result of a job at a commit, worst first."""

    FAILURE = "failure"
    """Also timed out, or silent."""
    RUNNING = "running"
    CANCELLED = "cancelled"
    SUCCESS = "success"
    OTHER = "other"
    """Skipped or neutral."""


class CompatState(StrEnum):
    """A backend's state at exactly one commit; a backend that has no result there has none."""

    GREEN = "green"
    FAILED = "failed"
    RUNNING = "running"
    INCONCLUSIVE = "inconclusive"
    """A job was cancelled, or all were skipped or neutral: nothing failed, and nothing is proved."""


_BY_WORST = {
    NewestResult.FAILURE: CompatState.FAILED,
    NewestResult.RUNNING: CompatState.RUNNING,
    NewestResult.CANCELLED: CompatState.INCONCLUSIVE,
    NewestResult.SUCCESS: CompatState.GREEN,
    NewestResult.OTHER: CompatState.INCONCLUSIVE,
}


def judge_commit(results: Collection[NewestResult]) -> CompatState | None:
    """Return a backend's state by the newest result of each of its jobs at the commit; the worst ones suffice."""
    return next((_BY_WORST[result] for result in NewestResult if result in results), None)


class GreenMatch(StrEnum):
    EXACT = "exact"
    """The backend is green at exactly this commit."""
    BETWEEN = "between"
    """Or it has no result there, and is green at the nearest decided commits before and after it."""


def accept_commits(
    states: Sequence[CompatState | None], match: GreenMatch, *, is_after_green: bool = False
) -> list[bool | None]:
    """Whether each commit of a branch, newest first, is accepted for one backend.

    None where that depends on older commits than these. `is_after_green` says of the nearest newer commit that is green or failed, if
    there is one, that it is green.
    """
    accepted: list[bool | None] = [state is CompatState.GREEN for state in states]
    if match is GreenMatch.EXACT:
        return accepted
    open_ones: list[int] = []
    for index, state in enumerate(states):
        if state in (CompatState.GREEN, CompatState.FAILED):
            is_after_green = state is CompatState.GREEN
            for waiting in open_ones:
                accepted[waiting] = is_after_green
            open_ones.clear()
        elif is_after_green and state is not CompatState.RUNNING:
            accepted[index] = None
            open_ones.append(index)
    return accepted


@dataclass(frozen=True, slots=True)
class CommonCommit:
    """The result of a search over the newest commits of a branch."""

    index: int | None
    """The newest commit that all backends accept; None where there is none among these."""
    is_settled: bool
    """Whether older commits cannot change it."""


def find_common(
    states: Sequence[Sequence[CompatState | None]],
    match: GreenMatch,
    after_green: Sequence[bool] | None = None,
) -> CommonCommit:
    """Find the newest commit that is accepted for every backend; `states` has a sequence for each, newest commit first.

    `after_green` has `is_after_green` of each backend.
    """
    if not states:
        return CommonCommit(None, is_settled=True)
    after = after_green or [False] * len(states)
    accepted = [
        accept_commits(backend, match, is_after_green=is_after)
        for backend, is_after in zip(states, after, strict=True)
    ]
    columns = list(zip(*accepted, strict=True))
    index = next((index for index, column in enumerate(columns) if all(column)), None)
    undecided = next((index for index, column in enumerate(columns) if False not in column), None)
    return CommonCommit(index, is_settled=index is not None and undecided == index)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatQuery:
    upstream: RepoName
    level: Level | None = None
    """This level and those above."""
    backends: tuple[RepoName, ...] = ()
    hardware: str | None = None
    """Part of the hardware's description, or of the device."""
    branch: str | None = None
    """None for the upstream's default branch."""
    match: GreenMatch = GreenMatch.EXACT
    commits: int = 20
    """Of the branch, in the matrix."""


def choose_backends(entries: Iterable[AllowlistEntry], query: CompatQuery) -> tuple[AllowlistEntry, ...]:
    """Return the backends of the query, L4 first, of those whose results the reader may see.

    A named backend is never left out silently: `BadRequest` is raised for one that is not there, which does not say whether it is
    hidden, and for one that the other choices exclude.
    """
    listed = {entry.name.key: entry for entry in entries}
    for name in query.backends:
        if name.key not in listed:
            raise BadRequest(
                f"{name} is not a backend of {query.upstream} with results",
                hint="see /api/v1/allowlist; results are recorded from L2 on",
            )
    named = {name.key for name in query.backends}
    level = query.level or (Level.L2 if named or query.hardware else DEFAULT_LEVEL)
    words = (query.hardware or "").lower()
    chosen = []
    for key, entry in listed.items():
        fits = entry.level >= level and words in f"{entry.device or ''} {entry.hardware or ''}".lower()
        if key in named and not fits:
            raise BadRequest(
                f"{entry.name} is at {entry.level.name} and does not fit the other choices",
                hint="leave out level or hardware, or the name",
            )
        if fits and (not named or key in named):
            chosen.append(entry)
    return tuple(sorted(chosen, key=lambda entry: (-entry.level, entry.name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GreenCommit:
    """A commit of a branch at which backends are green."""

    sha: str
    title: str | None
    number: int | None
    """The pull request that its message says it merges."""
    pushed_at: datetime
    age_s: float
    """Since it was pushed."""
    newer_commits: int
    """How many commits the branch has after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestGreen:
    """The newest commit of a branch at which all these backends are green together."""

    upstream: RepoName
    branch: str
    match: GreenMatch
    """The rule that was asked for."""
    backends: tuple[RepoName, ...]
    commit: GreenCommit
    between: tuple[RepoName, ...] = ()
    """Those that have no result at the commit itself; none with `exact`."""

    @property
    def sha(self) -> str:
        return self.commit.sha


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatBackend:
    name: RepoName
    level: Level
    device: str | None
    hardware: str | None
    last_green: GreenCommit | None
    """Its newest green commit on the branch; None where there is none among those searched."""


class GroupKind(StrEnum):
    BRANCH = "branch"
    NIGHTLY = "nightly"
    """Commits that nightly or periodic runs tested."""
    RELEASE = "release"
    TAGS = "tags"


@dataclass(slots=True)
class CompatCell:
    """One backend at one commit. Not frozen: a page has a thousand."""

    backend: RepoName
    state: CompatState | None
    """None where it has no result at exactly this commit."""
    between: bool = False
    """Whether it has none, and lies between two green commits of the group with no failure in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatCommit:
    sha: str
    label: str | None
    """The name of a tag."""
    title: str | None
    number: int | None
    pushed_at: datetime
    cells: tuple[CompatCell, ...]
    """In the order of the backends."""

    @property
    def is_green(self) -> bool:
        """Whether every chosen backend is green at exactly this commit."""
        return bool(self.cells) and all(cell.state is CompatState.GREEN for cell in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatColumns:
    """A group of columns: commits of a branch, newest first, or tags, highest version first."""

    kind: GroupKind
    name: str
    commits: tuple[CompatCommit, ...]

    @property
    def newest_green(self) -> str | None:
        """The first of these commits at which every chosen backend is green."""
        return next((commit.sha for commit in self.commits if commit.is_green), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatView:
    upstream: RepoName
    at: datetime
    cursor: int
    branch: str | None
    """None while the default branch is not known."""
    level: Level | None
    """The lowest level that was chosen, also by default; None where names or hardware chose."""
    searched: int
    """How many of the branch's commits were searched at most."""
    backends: tuple[CompatBackend, ...]
    groups: tuple[CompatColumns, ...]
    exact: LatestGreen | None
    between: LatestGreen | None


def lowest_level(query: CompatQuery) -> Level | None:
    """The level by which backends are chosen, if one does."""
    return query.level or (None if query.backends or query.hardware else DEFAULT_LEVEL)


def age_of(pushed_at: datetime, now: datetime) -> float:
    """In seconds; a clock that was set back makes nothing younger than new."""
    return max(timedelta(0), now - pushed_at).total_seconds()
