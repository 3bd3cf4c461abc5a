"""What the command line shows an operator, as values: deliveries, effects, repositories, audit entries; nothing is hidden.

Text written by a downstream or by a pull request's author is unescaped here: the printer must treat it as text.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crcr.decide.outbox.effect import EffectFault
from crcr.errors import HeldBy


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLine:
    upstream: str
    guid: str
    event: str
    action: str | None
    state: str
    reason: str | None
    source: str
    number: int | None
    head_sha: str | None
    ref: str | None
    received_at: datetime
    body_bytes: int
    body_kept: bool
    dispatches: dict[str, int]
    """The number of its dispatches in each state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectLine:
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
    held_by: HeldBy | None
    fault: EffectFault | None
    fault_since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    workflow: str
    run_id: str
    attempt: int
    job_name: str
    state: str
    conclusion: str | None
    marks: tuple[str, ...]
    started_at: datetime
    completed_at: datetime | None
    queue_s: float | None
    execution_s: float | None
    url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLine:
    downstream: str
    level: str
    state: str
    reason: str | None
    test: bool
    unsure: bool
    created_at: datetime
    sent_at: datetime | None
    superseded_at: datetime | None
    answer: str | None
    """The result of its look-up, where nothing was reported: never_started, unreported, unanswered, running, not_listening."""
    trimmed: tuple[str, ...]
    """The parts that were cut from its payload."""
    effects: tuple[EffectLine, ...]
    """The effects that send it, oldest first: attempts and last error."""
    jobs: tuple[JobLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryDetail:
    delivery: DeliveryLine
    dispatches: tuple[DispatchLine, ...]
    effects: tuple[EffectLine, ...]
    """The delivery's other effects, such as a request for the pull request's head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryLine:
    name: str
    level: str | None
    """None when it is not, or no longer, on the allowlist."""
    repository_id: int | None
    confirmed: bool
    bound_at: datetime | None
    installation_id: int | None
    suspended_at: datetime | None
    alarm: str | None


@dataclass(frozen=True, slots=True)
class AuditLine:
    at: datetime
    who: str
    act: str
    subject: str
    detail: dict[str, Any]
