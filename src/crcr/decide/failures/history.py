"""Recorded history that a failure is judged by: results of the base branch, other failures of the job, the backend's hour.

Positions order the commits of the base branch by its pushes (`order_pushes`), never by the time at which results arrived.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from crcr.decide.failures.fingerprint import MOST_FINGERPRINTS
from crcr.decide.statistics.figures import EndedAs
from crcr.decide.statistics.window import ResultKind

TRUSTED_ASSOCIATIONS = frozenset({"OWNER", "MEMBER", "COLLABORATOR", "CONTRIBUTOR"})


class FailedAs(StrEnum):
    """How a job failed; each of these gets a verdict."""

    FAILURE = EndedAs.FAILURE.value
    TIMED_OUT = EndedAs.TIMED_OUT.value
    SILENT = EndedAs.SILENT.value
    """It never reported its end."""
    CANCELLED = "cancelled"
    """Cancelled, and not because of a newer commit."""


NO_DETAILS: frozenset[str] = frozenset()
"""The fingerprints of a failure that reported no failed test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFailure:
    """One failed job, of a pull request, a push, a merge group or a night."""

    failure_id: int
    kind: ResultKind
    number: int | None
    head_sha: str | None
    base_ref: str | None
    position: int | None
    """Of the base commit that the tested commit contains; None when it is unknown."""
    exact: bool
    """Whether that is the merge base, and not only the newest commit that it can be."""
    author: str | None
    trusted: bool
    at: datetime
    ended: FailedAs
    fingerprints: frozenset[str] = NO_DETAILS
    passed_at: datetime | None = None
    """When the same job passed on the same commit."""
    workflow: str = ""
    attempt: int = 1
    run_id: str = ""
    on_branch: bool = False
    """The tested commit itself is one of the base branch; that of a merge group is not, nor is a pull request's head."""
    landed: bool = False
    """Its pull request was merged."""
    stacked_on: frozenset[int] = frozenset()
    """The open pull requests whose heads its own head contains."""
    infrastructure: bool = False
    """Judged as a failure of the backend's machines: it says nothing about code."""

    @property
    def on_base(self) -> bool:
        return self.kind is not ResultKind.PULLS

    @property
    def may_be_cut(self) -> bool:
        """Whether it may have had more fingerprints than are recorded."""
        return len(self.fingerprints) >= MOST_FINGERPRINTS


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseResult:
    """One result of the job on the base branch: a push, a merge group that was pushed, or a night."""

    sha: str | None
    position: int | None
    at: datetime
    nightly: bool = False
    passed: bool
    fingerprints: frozenset[str] = NO_DETAILS
    """Of a failure."""
    workflow: str = ""
    """A night may be of another workflow, which has a job of that name too and may run it in another way."""


class BaseState(StrEnum):
    """What a result of the base says about one failure."""

    FAILS = "fails"
    CLEAN = "clean"
    UNCLEAR = "unclear"
    """The job failed without details, or for a reason that cannot be compared."""


def state_of(result: BaseResult, fingerprint: str | None) -> BaseState:
    """Whether a result of the base has the failure; `fingerprint` is None for a failure without details."""
    if result.passed:
        return BaseState.CLEAN
    if fingerprint is None:
        return BaseState.FAILS if not result.fingerprints else BaseState.UNCLEAR
    if fingerprint in result.fingerprints:
        return BaseState.FAILS
    # A result with that many fingerprints may have had more than are recorded.
    is_whole = 0 < len(result.fingerprints) < MOST_FINGERPRINTS
    return BaseState.CLEAN if is_whole else BaseState.UNCLEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendHour:
    """The backend's results around the time of the failure, of all jobs."""

    failed: tuple[RecordedFailure, ...] = ()
    passed: int = 0
    """Counted up to a limit that the failures set."""


FLEET_SPAN = timedelta(minutes=45)
"""How far from each other in time failures may be that one sick fleet explains."""


@dataclass(frozen=True, slots=True)
class PullPass:
    """The job passed on a pull request that was built on this commit of the base."""

    number: int
    head_sha: str
    position: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistory:
    """What is recorded about one job of one backend, as far as a failure can be judged by it."""

    base: tuple[BaseResult, ...] = ()
    failures: tuple[RecordedFailure, ...] = ()
    """All recorded failures of the job in the window, also those on the base."""
    pull_passes: tuple[PullPass, ...] = ()
    """Passing results on pull requests whose place in the order is known; of the newest only."""
    pulls_passed: int = 0
    """Passing results on pull requests in the window."""
    pulls_passed_by_day: tuple[tuple[datetime, int], ...] = field(default=())

    def passes_since(self, at: datetime) -> int:
        day = at.replace(hour=0, minute=0, second=0, microsecond=0)
        return sum(number for start, number in self.pulls_passed_by_day if start >= day)


def is_stacked(one: RecordedFailure, other: RecordedFailure) -> bool:
    """Whether one's head contains the other's, or both contain a third one's."""
    own = one.stacked_on | ({one.number} if one.number is not None else frozenset())
    others = other.stacked_on | ({other.number} if other.number is not None else frozenset())
    return bool(own & others)


def unrelated(failures: Iterable[RecordedFailure], to: RecordedFailure) -> list[RecordedFailure]:
    """Failures on pull requests that cannot share the judged change: other authors, heads and numbers, the same base."""
    return [
        other
        for other in failures
        if not other.on_base
        and not is_stacked(other, to)
        and other.head_sha != to.head_sha
        and (other.author is None or other.author != to.author)
        and other.base_ref == to.base_ref
    ]


@dataclass(frozen=True, slots=True)
class Push:
    before: str
    """The commit that it started from."""
    commits: tuple[str, ...]
    """Oldest first, at least one."""


def order_pushes(arrived: Sequence[Push]) -> tuple[Push, ...]:
    """Return the pushes, given in their order of arrival, in the order of the branch."""
    following: dict[str, list[Push]] = {}
    for push in arrived:
        following.setdefault(push.before, []).append(push)
    ends = {push.commits[-1] for push in arrived}
    # A branch that was set back to an earlier commit can make a ring: then the first push to arrive begins it.
    starts = [push for push in arrived if push.before not in ends] or list(arrived[:1])
    ordered: dict[int, Push] = {}
    for start in (*starts, *arrived):
        chain: Push | None = start if id(start) not in ordered else None
        while chain is not None:
            ordered[id(chain)] = chain
            followers = following.get(chain.commits[-1], ())
            chain = next((push for push in followers if id(push) not in ordered), None)
    return tuple(ordered.values())
