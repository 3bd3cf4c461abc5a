"""What the relay's own logs and the search show, as values; what stays text is said in `views`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from crcr.decide.model import DeliveryState, RepoName
from crcr.decide.outbox.effect import EffectFault
from crcr.decide.views.commit import WaiverState
from crcr.decide.views.overview import OutboxState
from crcr.errors import HeldBy


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryQuery:
    upstream: RepoName
    event: str | None = None
    state: DeliveryState | None = None
    number: int | None = None
    head_sha: str | None = None
    """All of it, or its first digits."""
    oldest_first: bool = False
    after: tuple[str | int, ...] | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectQuery:
    upstream: RepoName
    state: str | None = None
    """waiting, retried, claimed, parked, done or cancelled; None for all that is not over."""
    target: str | None = None
    delivery: str | None = None
    after: tuple[str | int, ...] | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectView:
    effect_id: int
    kind: str
    target: str
    delivery: str | None
    state: str
    attempts: int
    unsure: bool
    created_at: datetime
    due_at: datetime
    finished_at: datetime | None
    last_error: str | None
    """For administrators; None for everybody else."""
    held_by: HeldBy | None = None
    """Which of GitHub's limits holds it back until `due_at`."""
    fault: EffectFault | None = None
    """Why the service outside did nothing for it, since `fault_since`."""
    fault_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class EffectPage:
    """Given up ones first, the newest first; then by target, and what is due first."""

    effects: tuple[EffectView, ...]
    next: tuple[str | int, ...] | None
    cursor: int = 0
    outbox: OutboxState = field(default_factory=OutboxState)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    upstream: RepoName
    who: str | None = None
    """Part of a name, in whichever case."""
    act: str | None = None
    """Part of an act's name from the beginning of a word on, with spaces or underscores."""
    oldest_first: bool = False
    after: tuple[str | int, ...] | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    audit_id: int
    at: datetime
    who: str
    act: str
    subject: str
    detail: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AuditPage:
    acts: tuple[AuditView, ...]
    next: tuple[str | int, ...] | None
    cursor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaiverQuery:
    upstream: RepoName
    state: WaiverState | None = None
    who: str | None = None
    """Part of a name, in whichever case; so is `backend`."""
    backend: str | None = None
    number: int | None = None
    newest_first: bool = False
    """Otherwise those in force come first."""
    after: tuple[str | int, ...] | None = None
    limit: int = 50


class HitKind(StrEnum):
    PULL = "pull request"
    COMMIT = "commit"
    AUTHOR = "author"
    BACKEND = "backend"
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One thing found; which of the fields are set depends on its kind."""

    kind: HitKind
    title: str
    detail: str | None = None
    number: int | None = None
    head_sha: str | None = None
    delivery: str | None = None
    backend: RepoName | None = None
    job: str | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SearchView:
    text: str
    hits: tuple[Hit, ...]
    exact: Hit | None
    """The one thing that was meant, where there is no doubt."""
    more: tuple[HitKind, ...] = ()
    """Kinds of which more was found than is listed."""
    next: tuple[str | int, ...] | None = None
    """Where the pull requests of an author go on."""
