"""The nouns of the relay as values: levels, states, conclusions, keys.

Everything is frozen. A repository's name keeps the case it was written in and compares without it, because
GitHub does the same (`Ascend/pytorch` and `ascend/pytorch` are one repository).
"""

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from functools import total_ordering

_REPO_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,38}/[A-Za-z0-9._-]{1,100}")


class Level(IntEnum):
    """How far a downstream takes part; each level includes the ones before it."""

    L1 = 1
    L2 = 2
    L3 = 3
    L4 = 4


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class RepoName:
    """`owner/name`; equal without regard to case, printed as written."""

    full_name: str
    key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not is_repo_name(self.full_name):
            raise ValueError(f"{self.full_name!r} is not owner/name")
        object.__setattr__(self, "key", self.full_name.lower())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RepoName) and self.key == other.key

    def __lt__(self, other: "RepoName") -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.full_name

    @property
    def owner(self) -> str:
        return self.full_name.partition("/")[0]

    @property
    def name(self) -> str:
        return self.full_name.partition("/")[2]


def is_repo_name(text: str) -> bool:
    return bool(_REPO_NAME.fullmatch(text)) and text.partition("/")[2] not in {".", ".."}


TEST_EVENT = "crcr_test"
"""The event type of a dispatch that only tries the way there and back."""


class DeliveryState(StrEnum):
    ACCEPTED = "accepted"
    """Planned: its dispatches and acts are recorded."""
    IN_DOUBT = "in_doubt"
    """Its place in the pull request's order is unclear; GitHub is being asked."""
    SUPERSEDED = "superseded"
    """Older than the known head, or of a pull request closed since: recorded, not dispatched."""


class DispatchState(StrEnum):
    HELD = "held"
    WAITING = "waiting"
    SENT = "sent"
    PARKED = "parked"
    CANCELLED = "cancelled"
    LEFT_OUT = "left_out"
    """Not concerned by its own options: recorded where the gate must say so, never sent."""


class EffectState(StrEnum):
    WAITING = "waiting"
    CLAIMED = "claimed"
    DONE = "done"
    PARKED = "parked"
    CANCELLED = "cancelled"


class EffectKind(StrEnum):
    SEND_DISPATCH = "send_dispatch"
    IDENTIFY_REPOSITORY = "identify_repository"
    CONFIRM_HEAD = "confirm_head"
    REFRESH_ALLOWLIST = "refresh_allowlist"
    FORWARD_RESULT = "forward_result"
    ASK_FILES = "ask_files"
    """Which files a delivery changes, for the entries with `paths`."""
    READ_GROUP = "read_group"
    """A merge group's tree and pull requests, before its dispatches leave."""
    PUBLISH_CHECKS = "publish_checks"
    """A commit's checks of one tier, as they should be now."""
    RERUN = "rerun"
    LOOK_UP = "look_up"
    """What GitHub's Actions say of the runs that answer a dispatch."""
    ANSWER_COMMAND = "answer_command"
    """A `/crcr` comment: rights asked, obeyed or refused, answered."""
    OFFER_WAIVER = "offer_waiver"
    """The gate's button: a comment with the ready command."""
    VERIFY_COMMIT = "verify_commit"
    """Whether a commit that a downstream tested on its own belongs to the upstream's history."""
    INSPECT_REPOSITORY = "inspect_repository"
    """How a downstream is set up: the App's installation and rights there, its workflows."""
    FEED_HISTORY = "feed_history"
    """ClickHouse is told what it does not know yet."""


class JobState(StrEnum):
    DISPATCHED = "dispatched"
    """No row yet: the delivery was dispatched and nobody has reported this job."""
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    TIMED_OUT = "timed_out"


class Conclusion(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    NEUTRAL = "neutral"
    TIMED_OUT = "timed_out"
    ACTION_REQUIRED = "action_required"
    NONE = "none"
    """`completed` came without a conclusion; it counts as a failure."""


class JobMark(StrEnum):
    """What is remarkable about a job beside its state."""

    LATE = "late"
    DISPUTED = "disputed"
    SUPERSEDED = "superseded"
    UNSIGNED = "unsigned"


@dataclass(frozen=True, slots=True)
class Binding:
    """The immutable ids behind a downstream's name; `confirmed` when GitHub itself told us, not a first caller."""

    repository_id: int
    owner_id: int | None
    confirmed: bool


@dataclass(frozen=True, slots=True)
class KnownPull:
    """What is known of one upstream pull request, in the order GitHub made it, not the order it arrived."""

    number: int
    head_sha: str
    previous_sha: str | None
    head_at: datetime | None
    """Date of the newest event about the head or its closing; None while only labels and the like were heard of."""
    updated_at: datetime
    """Date of the newest event of any kind: whose labels, draft state and title hold."""
    is_open: bool
    draft: bool
    labels: tuple[str, ...]
    base_ref: str
    title: str
    author: str
    author_association: str = "NONE"
    merged: bool = False
    base_at: datetime | None = None
    """GitHub's time of the event that brought the base; None while it has the base that it was first heard of with."""
