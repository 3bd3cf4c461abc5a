"""The relay's basic values: levels, states, conclusions, repository names.

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
    """A downstream's level of participation; each includes the ones before it."""

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
"""The event type of a test dispatch."""
BISECTION_EVENT = "crcr_bisection"
"""Under which a bisection's deliveries are recorded, so that no number counts them; downstreams get them as `push`."""
PAIR_EVENT = "crcr_pair"
"""The event type of a pull request's dispatch together with a pull request of the backend's own; no number counts it."""
UNCOUNTED_EVENTS = (TEST_EVENT, BISECTION_EVENT, PAIR_EVENT)
"""Deliveries that the relay makes itself: their results are recorded and count nowhere."""


class DeliveryState(StrEnum):
    ACCEPTED = "accepted"
    """Its dispatches and effects are recorded."""
    IN_DOUBT = "in_doubt"
    """Its order within the pull request is unclear; a request to GitHub is queued."""
    SUPERSEDED = "superseded"
    """Older than the known head, or of a pull request closed since: recorded, not dispatched."""


class DispatchState(StrEnum):
    HELD = "held"
    WAITING = "waiting"
    SENT = "sent"
    PARKED = "parked"
    CANCELLED = "cancelled"
    LEFT_OUT = "left_out"
    """Excluded by its entry's own options: recorded where the gate must give the reason, never sent."""


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
    WRITE_DYNAMODB = "write_dynamodb"
    """Write a result to the DynamoDB table of the public HUD."""
    ASK_FILES = "ask_files"
    """List the files that a delivery changes, for the entries with `paths`."""
    READ_GROUP = "read_group"
    """Read a merge group's tree and pull requests, before its dispatches are sent."""
    PUBLISH_CHECKS = "publish_checks"
    """A commit's checks of one tier, as they should be now."""
    RERUN = "rerun"
    LOOK_UP = "look_up"
    """Look up the runs that answer a dispatch in GitHub Actions."""
    ANSWER_COMMAND = "answer_command"
    """Execute or refuse the commands of a `/crcr` comment, and answer it."""
    OFFER_WAIVER = "offer_waiver"
    """The gate's button: post a comment with the command to copy."""
    VERIFY_COMMIT = "verify_commit"
    """Check whether a self-report's commit belongs to the upstream's history."""
    READ_ISSUE = "read_issue"
    """Read whether the issue of a known failure is still open."""
    INSPECT_REPOSITORY = "inspect_repository"
    """Read a downstream's set-up: the App's installation and permissions there, its workflows."""
    ADVANCE_BISECTION = "advance_bisection"
    """Take the result of a bisection's run, and send the next one."""
    READ_DEPENDENCY = "read_dependency"
    """Read the pull request that an upstream pull request depends on."""
    ROUTE_NOTICES = "route_notices"
    """Choose the channels of new notices."""
    SEND_NOTICES = "send_notices"
    """Send what waits for one place of a channel."""
    FEED_HISTORY = "feed_history"
    """Copy new rows to ClickHouse."""


class JobState(StrEnum):
    DISPATCHED = "dispatched"
    """No row yet: the delivery was dispatched, and this job has not reported."""
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
    """`completed` without a conclusion; counts as a failure."""


class JobMark(StrEnum):
    """A remark about a job beside its state."""

    LATE = "late"
    DISPUTED = "disputed"
    SUPERSEDED = "superseded"
    UNSIGNED = "unsigned"
    IMPORTED = "imported"


@dataclass(frozen=True, slots=True)
class Binding:
    """The immutable ids behind a downstream's name; `confirmed` when read from GitHub, not from a first caller's token."""

    repository_id: int
    owner_id: int | None
    confirmed: bool


@dataclass(frozen=True, slots=True)
class KnownPull:
    """The known state of one upstream pull request, ordered by GitHub's times, not by arrival."""

    number: int
    head_sha: str
    previous_sha: str | None
    head_at: datetime | None
    """Time of the newest event about the head or its closing; None while only other events have arrived."""
    updated_at: datetime
    """Time of the newest event of any kind, which sets labels, draft state and title."""
    is_open: bool
    draft: bool
    labels: tuple[str, ...]
    base_ref: str
    title: str
    author: str
    author_association: str = "NONE"
    merged: bool = False
    base_at: datetime | None = None
    """GitHub's time of the event that changed the base; None while it has its first known base."""
    base_sha: str | None = None
    """The base branch's commit that the newest webhook about the head names."""
    merge_base: str | None = None
    """The base branch's commit that the head was built on; None until GitHub was asked to compare both."""
    merge_commit_sha: str | None = None
    """The base branch's commit that it became; None until it is merged."""
    opened_at: datetime | None = None
    """When it was opened; None until an event that was received since this is recorded."""
    downstream_note: str | None = None
    """Its paragraph for downstreams while a label announces a breakage, empty where there is none; None without the label."""
    downstream_note_at: datetime | None = None
    """GitHub's time of the event that changed the paragraph."""
