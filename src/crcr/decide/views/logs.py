"""The relay's log pages as values; `views.overview` says how to treat their text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from crcr.decide.model import DeliveryState, RepoName
from crcr.decide.notices.notice import ChannelKind, NoticeKind, ThreadChange, Topic
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
    """A full SHA, or its first digits."""
    oldest_first: bool = False
    after: tuple[str | int, ...] | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectQuery:
    upstream: RepoName
    state: str | None = None
    """waiting, retried, claimed, parked, done or cancelled; None for all open ones."""
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
    """Only for administrators; else None."""
    held_by: HeldBy | None = None
    """The GitHub limit that holds it back until `due_at`."""
    fault: EffectFault | None = None
    """The external service's fault, since `fault_since`."""
    fault_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class EffectPage:
    """Parked effects first, the newest first; then by target and due time."""

    effects: tuple[EffectView, ...]
    next: tuple[str | int, ...] | None
    cursor: int = 0
    outbox: OutboxState = field(default_factory=OutboxState)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    upstream: RepoName
    who: str | None = None
    """Part of a name, ignoring case."""
    act: str | None = None
    """The beginning of a word of an act's name, with spaces or underscores."""
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


class NoticeFilter(StrEnum):
    """Which notices are listed."""

    OPEN = "open"
    """The newest of each thread that is open."""
    UNSENT = "unsent"
    """Those that a channel has not got yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeQuery:
    upstream: RepoName
    backend: str | None = None
    """Part of a name, ignoring case."""
    topic: Topic | None = None
    state: NoticeFilter | None = None
    after: tuple[str | int, ...] | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeMessageView:
    """One event for one place of one channel."""

    kind: ChannelKind
    state: str
    """waiting, sent or dropped."""
    due_at: datetime
    finished_at: datetime | None
    note: str | None
    """Why it was dropped."""
    channel: str | None = None
    """Its name; this and the following are for administrators."""
    destination: str | None = None
    address: str | None = None
    """Where it goes, masked."""
    reason: str | None = None
    """Why the channel gets it."""
    oncalls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeView:
    """One event of a thread, with what was sent about it."""

    event_id: int
    thread_id: int
    topic: Topic
    kind: NoticeKind
    change: ThreadChange
    at: datetime
    backend: RepoName | None
    number: int | None
    summary: str
    details: tuple[str, ...]
    path: str
    """The page about its subject."""
    thread_open: bool
    opened_at: datetime
    closed_at: datetime | None
    messages: tuple[NoticeMessageView, ...] = ()


@dataclass(frozen=True, slots=True)
class NoticePage:
    """Newest first."""

    notices: tuple[NoticeView, ...]
    next: tuple[str | int, ...] | None
    cursor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaiverQuery:
    upstream: RepoName
    state: WaiverState | None = None
    who: str | None = None
    """Part of a name, ignoring case; so is `backend`."""
    backend: str | None = None
    number: int | None = None
    newest_first: bool = False
    """Otherwise those in force come first."""
    after: tuple[str | int, ...] | None = None
    limit: int = 50
