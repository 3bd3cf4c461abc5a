"""A check run as data, with GitHub's limits on its size.

`checks.text.check` writes its texts, `wanted_checks` decides which checks exist, `deliver.handlers.publish_checks` sends
them.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.model import Conclusion

GATE_NAME = "crcr/gate"
MOST_TEXT = 65_535
MOST_ANNOTATIONS = 50


class CheckStatus(StrEnum):
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class Annotation:
    path: str
    line: int
    title: str
    message: str


@dataclass(frozen=True, slots=True)
class Button:
    label: str
    description: str
    identifier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContent:
    """The content of a check run; `conclusion` is set exactly when it is completed."""

    status: CheckStatus
    conclusion: Conclusion | None = None
    title: str
    summary: str
    text: str | None = None
    annotations: tuple[Annotation, ...] = ()
    buttons: tuple[Button, ...] = ()
    details_url: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    awaited: bool = False
    """Shown as completed because of merge tools, while its result is still to come."""

    @property
    def is_open(self) -> bool:
        return self.awaited or self.status is not CheckStatus.COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckToPublish:
    """One request to GitHub that creates or updates a check run."""

    check_id: int
    """Its id in our store, sent as `external_id`."""
    check_run_id: int | None
    maybe_created: bool
    """An earlier request had no answer: the check run may exist."""
    annotated: bool
    """It was completed before, with the annotations of that time."""
    ends: bool
    """It is no longer wanted: a check run that was never created need not be created to end it."""
    name: str
    head_sha: str
    incarnation: str
    shown: CheckContent
    digest: str
    digest_before: str = ""
    """The recorded digest when this was computed; if it has changed, another worker wrote the check too."""
    reread_at: int | None = None
    """Set when the check run must be read from GitHub first; the doubt that this settles."""


class Tier(StrEnum):
    """The order of publication when GitHub's limits leave few requests."""

    GATE = "gate"
    BACKEND = "backend"
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCheck:
    name: str
    tier: Tier
    downstream: str | None = None
    incarnation: str
    """The attempt or delivery whose result it shows; a different one makes a new check of the same name."""
    shown: CheckContent
    brief: str | None = None
    """For an undecided check, the part whose change is published at once; None: every change is."""
