"""A check run as we want GitHub to show it: data, with the limits that GitHub sets on it.

What a check says is made in `check_text`, whether it exists in `checks`, how it gets there in `deliver.handlers.publish_checks`.
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
    """What a check shows; `conclusion` stands exactly when it is completed."""

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
    """Looks completed for the sake of merge tools, while its result is still to come."""

    @property
    def is_open(self) -> bool:
        return self.awaited or self.status is not CheckStatus.COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckToPublish:
    """One request to make of GitHub so that a check shows what it should."""

    check_id: int
    """Our own id of it, which goes along as `external_id`."""
    check_run_id: int | None
    maybe_created: bool
    """It was asked for before, and nobody knows whether it came to be."""
    annotated: bool
    """It was completed before, with whatever annotations it had then."""
    ends: bool
    """It is wanted no more: what never came to be need not be made for that."""
    name: str
    head_sha: str
    incarnation: str
    shown: CheckContent
    digest: str
    digest_before: str = ""
    """What was recorded of it when this was worked out; when that has changed, another worker wrote it too."""
    reread_at: int | None = None
    """Set when GitHub is asked first what it shows; names the doubt that this settles."""


class Tier(StrEnum):
    """What is published first when GitHub lets us write little."""

    GATE = "gate"
    BACKEND = "backend"
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCheck:
    name: str
    tier: Tier
    downstream: str | None = None
    incarnation: str
    """Whose result it shows: another attempt or delivery makes another check of the same name."""
    shown: CheckContent
    brief: str | None = None
    """While it is still to change, what must be published at once when it changes; None: everything."""
