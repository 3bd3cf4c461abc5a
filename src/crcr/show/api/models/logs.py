"""The JSON API's answers about the relay's own logs, the allowlist and the search, made from the views."""

from datetime import datetime

from pydantic import ConfigDict, Field

from crcr.decide.health.relay import HealthState
from crcr.decide.health.texts import EffectClass
from crcr.decide.model import DeliveryState
from crcr.decide.outbox.effect import EffectFault
from crcr.decide.views.logs import EffectView, HitKind
from crcr.errors import HeldBy
from crcr.show.api.models import examples
from crcr.show.api.models.core import (
    AllowlistState,
    Dispatch,
    HealthReason,
    Job,
    LevelName,
    Model,
    Name,
    Next,
)
from crcr.show.render.status import waiting_reason


class DispatchWithJobs(Dispatch):
    jobs: list[Job]


class Delivery(Model):
    guid: str
    event: str
    action: str | None
    state: DeliveryState
    reason: str | None
    source: str
    number: int | None
    head_sha: str | None
    ref: str | None
    received_at: datetime
    body_bytes: int
    dispatches: list[Dispatch]


class DeliveryWithJobs(Delivery):
    dispatches: list[DispatchWithJobs]  # type: ignore[assignment]  # the same list, each with its jobs


class Jobs(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [examples.JOBS]})

    jobs: list[Job]
    next: Next


class Deliveries(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [examples.DELIVERIES]})

    deliveries: list[Delivery]
    next: Next


class EffectCount(Model):
    kind: str
    state: str
    number: int


class ParkedEffect(Model):
    effect_id: int
    kind: str
    target: str
    delivery: str | None
    attempts: int
    unsure: bool
    created_at: datetime
    parked_at: datetime | None
    last_error: str | None


class Effects(Model):
    """Counts of what is open and parked, and of what ended in the last hour; the newest parked ones."""

    counts: list[EffectCount]
    lag_s: float | None
    parked: list[ParkedEffect]


class Effect(Model):
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
    last_error: str | None = Field(description="For administrators; null for everybody else.")

    held_by: HeldBy | None = Field(description="Which of GitHub's limits holds it back until `due_at`.")
    fault: EffectFault | None = Field(description="Why the service outside did nothing for it.")
    fault_since: datetime | None
    waiting_reason: str | None = Field(
        None, description="Why it waits, in words; null while it waits for its turn."
    )

    @classmethod
    def of(cls, view: EffectView, now: datetime) -> "Effect":
        return cls.model_validate(view).model_copy(update={"waits_for": waiting_reason(view, now)})


class HeldClass(Model):
    """Effects of one class that GitHub's limits hold back, however shortly."""

    effects: EffectClass
    number: int
    held_by: HeldBy | None
    until: datetime
    text: str


class RelayHealth(Model):
    """The relay's health for one upstream; `reasons` are sentences, the most serious first."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.HEALTH]})

    upstream: Name
    at: datetime
    state: HealthState
    reasons: list[HealthReason]
    held: list[HeldClass]


class EffectList(Model):
    effects: list[Effect]
    next: Next


class Act(Model):
    audit_id: int
    at: datetime
    who: str
    act: str
    subject: str
    detail: dict[str, str]


class Audit(Model):
    acts: list[Act]
    next: Next


class Hit(Model):
    """One thing found; which fields are set depends on its kind."""

    kind: HitKind
    title: str
    detail: str | None
    number: int | None
    head_sha: str | None
    delivery: str | None
    backend: Name | None
    job: str | None
    at: datetime | None = Field(description="When it last changed, arrived or began.")


class Search(Model):
    """`exact` is the one thing that was meant, where there is no doubt; `next` is where an author's pull requests go on."""

    text: str
    hits: list[Hit]
    exact: Hit | None
    next: str | None = None


class ListedBackend(Model):
    name: Name
    level: LevelName
    device: str | None
    oncalls: list[str]
    hardware: str | None
    events: list[str]
    hidden: bool = Field(description="Shown to administrators only.")


class Allowlist(Model):
    state: AllowlistState
    backends: list[ListedBackend]
