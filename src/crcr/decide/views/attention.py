"""What needs somebody's attention now: one line for each thing, with the time since when, and the people to call.

Only facts that the relay records. A backend turned red when a job of it began to fail on the base branch, and silent when it
stopped answering, both within the last 24 hours. The text of an item is unescaped: job names and titles are from outside.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from crcr.decide.in_tree.checks import Outcome
from crcr.decide.model import Level, RepoName
from crcr.decide.number_format import count_things
from crcr.decide.views.in_tree import InTreeCommit, InTreeTrend

TURNED_WITHIN = timedelta(hours=24)
"""What changed earlier is no news."""
BLOCKED_RECENTLY = timedelta(days=14)
"""A blocked pull request without an event for longer is counted, and not listed."""
MOST_BACKENDS = 8
MOST_PULLS = 5
_MOST_JOB_NAMES = 2
_MOST_ONCALLS = 4


class AttentionKind(StrEnum):
    """The most urgent first."""

    BACKEND_RED = "backend_red"
    BACKEND_SILENT = "backend_silent"
    PULL_BLOCKED = "pull_blocked"
    IN_TREE_RED = "in_tree_red"
    BASE_RED = "base_red"
    BACKEND_SUSPENDED = "backend_suspended"
    BACKEND_DEMOTED = "backend_demoted"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionItem:
    kind: AttentionKind
    text: str
    since: datetime | None
    oncalls: tuple[str, ...] = ()
    """Whom to call; empty where nobody is named."""
    backend: RepoName | None = None
    level: Level | None = None
    number: int | None = None
    """The pull request."""
    sha: str | None = None
    branch: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    items: tuple[AttentionItem, ...] = ()
    blocked_pulls: int = 0
    """All open pull requests whose gate failed; the worst of them are items."""
    more_backends: int = 0
    """Backends that turned red or silent beyond the listed ones."""
    branch: str | None = None
    """The base branch; None where it is not known, so that nothing is said about it."""


@dataclass(frozen=True, slots=True)
class TroubledBackend:
    """A visible backend with what an item says about it."""

    name: RepoName
    level: Level
    oncalls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DemotedBackend:
    backend: TroubledBackend
    since: datetime
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RedBaseJob:
    """A job whose newest result on the base branch failed."""

    backend: TroubledBackend
    job: str
    since: datetime
    """When it first failed after its last pass."""
    repeated: bool = True
    """It failed on at least two commits since its last pass."""
    flaky: bool = False
    """All its newest failures are judged flaky."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedPull:
    """An open pull request whose gate failed."""

    number: int
    title: str
    author: str
    since: datetime
    reason: str | None
    """The gate's title; None where it may name a hidden backend."""
    oncalls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFacts:
    branch: str | None = None
    red_jobs: Sequence[RedBaseJob] = ()
    silent: Sequence[tuple[TroubledBackend, datetime]] = ()
    """Silent backends, and since when."""
    suspended: Sequence[tuple[TroubledBackend, datetime]] = ()
    demoted: Sequence[DemotedBackend] = ()
    blocked: Sequence[BlockedPull] = ()
    blocked_pulls: int = 0
    in_tree: InTreeTrend | None = None


def turned_lately(since: datetime, now: datetime) -> bool:
    return now - since < TURNED_WITHIN


def fails_continuously(job: RedBaseJob) -> bool:
    """Whether a red job is worth a line: a single failure that is judged flaky is not."""
    return job.repeated or not job.flaky


def silent_since(
    unanswered_at: Sequence[datetime], *, reported: bool, after: int, within: timedelta
) -> datetime:
    """Return when a backend became silent: its last missing answer was due then.

    `unanswered_at` are the times of the dispatches since its last report, oldest first, of which `after` make a backend silent
    that has reported before, and a single one another.
    """
    place = min(after if reported else 1, len(unanswered_at)) - 1
    return unanswered_at[place] + within


def list_attention(facts: AttentionFacts, now: datetime) -> Attention:
    red = [job for job in facts.red_jobs if fails_continuously(job)]
    backends = [
        *_red_backends([job for job in red if turned_lately(job.since, now)], facts.branch),
        *_silent_backends((one for one in facts.silent if turned_lately(one[1], now)), now),
    ]
    items = [
        *backends[:MOST_BACKENDS],
        *map(_blocked_pull, facts.blocked[:MOST_PULLS]),
        *_red_in_tree(facts.in_tree),
        *_red_base([job for job in red if not turned_lately(job.since, now)], facts.branch),
        *_suspended_backends(facts.suspended),
        *_demoted_backends(facts.demoted),
    ]
    return Attention(
        items=tuple(items),
        blocked_pulls=facts.blocked_pulls,
        more_backends=max(0, len(backends) - MOST_BACKENDS),
        branch=facts.branch,
    )


def _red_backends(jobs: Sequence[RedBaseJob], branch: str | None) -> list[AttentionItem]:
    by_backend: dict[RepoName, list[RedBaseJob]] = {}
    for job in jobs:
        by_backend.setdefault(job.backend.name, []).append(job)
    items = [_red_backend(group, branch) for group in by_backend.values()]
    return sorted(items, key=_urgency)


def _red_backend(jobs: Sequence[RedBaseJob], branch: str | None) -> AttentionItem:
    backend = jobs[0].backend
    names = [job.job for job in jobs]
    what = f"{names[0]} fails" if len(jobs) == 1 else f"{count_things(len(jobs), 'job')} fail"
    named = "" if len(jobs) == 1 else f": {_join_names(names)}"
    return AttentionItem(
        kind=AttentionKind.BACKEND_RED,
        text=f"{what} on {branch or 'the base branch'}{named}",
        since=min(job.since for job in jobs),
        oncalls=backend.oncalls,
        backend=backend.name,
        level=backend.level,
        branch=branch,
    )


def _join_names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_JOB_NAMES
    return ", ".join(names[:_MOST_JOB_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _silent_backends(
    silent: Iterable[tuple[TroubledBackend, datetime]], now: datetime
) -> list[AttentionItem]:
    items = [
        AttentionItem(
            kind=AttentionKind.BACKEND_SILENT,
            text="does not answer dispatches",
            since=min(since, now),
            oncalls=backend.oncalls,
            backend=backend.name,
            level=backend.level,
        )
        for backend, since in silent
    ]
    return sorted(items, key=_urgency)


def _urgency(item: AttentionItem) -> tuple[int, float, RepoName | None]:
    """The highest level first, and there what happened last."""
    level = item.level.value if item.level else 0
    return -level, -(item.since.timestamp() if item.since else 0.0), item.backend


def _blocked_pull(pull: BlockedPull) -> AttentionItem:
    by = f" by {pull.author}" if pull.author else ""
    why = f": {pull.reason}" if pull.reason else ""
    return AttentionItem(
        kind=AttentionKind.PULL_BLOCKED,
        text=f"{pull.title}{by} is blocked{why}",
        since=pull.since,
        oncalls=pull.oncalls,
        number=pull.number,
    )


def _red_in_tree(trend: InTreeTrend | None) -> Iterator[AttentionItem]:
    """The upstream's own CI, where the newest commit that is decided failed."""
    if trend is None or not trend.decided or trend.decided[-1].outcome is not Outcome.FAILED:
        return
    newest, row = trend.decided[-1], list(_failed_row(trend.decided))
    checks = f"{newest.failed:,} in-tree {'check fails' if newest.failed == 1 else 'checks fail'}"
    commits = "" if len(row) == 1 else f", red for {len(row):,} commits"
    yield AttentionItem(
        kind=AttentionKind.IN_TREE_RED,
        text=f"{checks} on {trend.branch}{commits}",
        since=row[-1].pushed_at,
        sha=newest.sha,
        branch=trend.branch,
    )


def _failed_row(commits: Sequence[InTreeCommit]) -> Iterator[InTreeCommit]:
    """The newest commits up to the last one that passed, the newest first."""
    for commit in reversed(commits):
        if commit.outcome is not Outcome.FAILED:
            return
        yield commit


def _red_base(jobs: Sequence[RedBaseJob], branch: str | None) -> Iterator[AttentionItem]:
    """One line for all jobs that have failed for longer: the list of failing jobs has them one by one."""
    if not jobs:
        return
    backends = {job.backend.name: job.backend for job in jobs}
    oncalls = dict.fromkeys(person for backend in backends.values() for person in backend.oncalls)
    many = len(jobs) > 1
    yield AttentionItem(
        kind=AttentionKind.BASE_RED,
        text=f"{count_things(len(jobs), 'job')} of {count_things(len(backends), 'backend')}"
        f" {'have' if many else 'has'} failed on {branch or 'the base branch'} for more than 24 hours",
        since=min(job.since for job in jobs),
        oncalls=tuple(oncalls)[:_MOST_ONCALLS],
        branch=branch,
    )


def _suspended_backends(suspended: Sequence[tuple[TroubledBackend, datetime]]) -> list[AttentionItem]:
    items = [
        AttentionItem(
            kind=AttentionKind.BACKEND_SUSPENDED,
            text="is suspended: nothing is dispatched to it, and its reports are refused",
            since=since,
            oncalls=backend.oncalls,
            backend=backend.name,
            level=backend.level,
        )
        for backend, since in suspended
    ]
    return sorted(items, key=_urgency)[:MOST_BACKENDS]


def _demoted_backends(demoted: Sequence[DemotedBackend]) -> list[AttentionItem]:
    items = [
        AttentionItem(
            kind=AttentionKind.BACKEND_DEMOTED,
            text=one.text,
            since=one.since,
            oncalls=one.backend.oncalls,
            backend=one.backend.name,
            level=one.backend.level,
        )
        for one in demoted
    ]
    return sorted(items, key=_urgency)[:MOST_BACKENDS]
