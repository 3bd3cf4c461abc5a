"""Verdicts and groups of failures as pages and the JSON API show them.

Text that a downstream wrote (`sample`) is unescaped here.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from crcr.decide.failures.history import FailedAs
from crcr.decide.failures.verdict import Confidence, VerdictKind
from crcr.decide.jobs.report import FailedTest
from crcr.decide.model import RepoName


class JudgedBy(StrEnum):
    RULES = "rules"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class EvidenceView:
    kind: str
    url: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView:
    kind: VerdictKind
    confidence: Confidence
    sentence: str
    evidence: tuple[EvidenceView, ...] = ()
    by: JudgedBy = JudgedBy.RULES
    was: VerdictKind | None = None
    """The rules' verdict before it changed."""


@dataclass(frozen=True, slots=True)
class TestVerdict:
    __test__ = False  # not a pytest class

    kind: VerdictKind
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class FailedTestView(FailedTest):
    verdict: TestVerdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContradictedVerdicts:
    """How often people contradicted the rules in the last 30 days."""

    contradicted: int
    of: int
    """All verdicts of the rules in that time."""


class IssueState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailureView:
    """The issue that a maintainer linked a group to."""

    url: str
    state: IssueState
    by: str
    until: datetime
    reason: str | None = None

    @property
    def issue(self) -> str:
        """Its short name, `owner/repo#12`."""
        owner, repo, _, number = self.url.split("/")[-4:]
        return f"{owner}/{repo}#{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAt:
    """Where and when a failure was recorded; `sha` and `number` are None once its result is deleted."""

    sha: str | None
    number: int | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Failures with the same fingerprint."""

    fingerprint: str
    sample: str
    backends: tuple[str, ...]
    jobs: tuple[str, ...]
    first_seen: SeenAt
    known: KnownFailureView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitGroup(FailureGroup):
    """A group as it concerns one commit: `backends` and `jobs` are those of the commit."""

    is_first_here: bool
    """Nobody failed alike before this pull request or commit."""
    on_base: int
    """How often it failed on the base branch in the window."""
    sentence: str
    members: tuple[Any, ...] = ()
    """Its jobs on the commit, each a `JobView`."""
    in_tree: str | None = None
    """What the upstream's own CI shows on the same commit and on the base."""


class KnownFilter(StrEnum):
    YES = "yes"
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureQuery:
    upstream: RepoName
    backend: str | None = None
    """Part of a backend's name, ignoring case."""
    text: str | None = None
    """Part of the sample, ignoring case."""
    known: KnownFilter | None = None
    after: tuple[str | int, ...] | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGroup(FailureGroup):
    """A group over all commits: its backends, the last that failed first, and the jobs of its newest failures."""

    last_seen: SeenAt
    count: int
    """How often it failed, deleted results included."""


@dataclass(frozen=True, slots=True)
class FailurePage:
    """Open groups: seen in the last `OPEN_FOR`, and not since their issue was closed."""

    items: tuple[OpenGroup, ...]
    next: tuple[str | int, ...] | None
    cursor: int = 0


OPEN_FOR = timedelta(days=14)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One failed job of a group."""

    delivery: str
    downstream: str
    workflow: str
    run_id: str
    attempt: int
    job_name: str
    event: str
    number: int | None
    head_sha: str | None
    at: datetime
    ended: FailedAs
    passed_at: datetime | None
    """When the same job passed on the same commit."""
    verdict: VerdictKind | None
    confidence: Confidence | None


@dataclass(frozen=True, slots=True)
class GroupPage:
    """One group with its failures, newest first; `is_open` as in `FailurePage`."""

    group: OpenGroup
    is_open: bool
    failures: tuple[GroupMember, ...]
    next: tuple[str | int, ...] | None
    cursor: int = 0


def describe_group(group: "FailureGroup", *, failing: int, of: int, is_first_here: bool, on_base: int) -> str:
    """Say who fails alike and whether it was seen before; `failing` of `of` reporting backends fail with it."""
    who = (
        f"{failing:,} of {of:,} backends fail alike"
        if failing > 1
        else f"Only {group.backends[0]} fails"
        if group.backends
        else "One backend fails"
    )
    if on_base:
        times = "once" if on_base == 1 else f"{on_base:,} times"
        return f"{who}; it failed like this on the base branch {times} in the last 7 days."
    if is_first_here:
        return f"{who}; first seen here."
    return f"{who}; first seen {group.first_seen.at:%d %b %H:%M} UTC."
