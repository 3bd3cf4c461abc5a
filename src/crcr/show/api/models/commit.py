"""The JSON API's answers about pull requests, commits and waivers, made from the views."""

from dataclasses import fields
from datetime import datetime
from typing import Any

from pydantic import Field

from crcr.decide.checks.gate import GateState
from crcr.decide.checks.status import GateStatus
from crcr.decide.model import DeliveryState, DispatchState
from crcr.decide.outbox.effect import EffectFault
from crcr.decide.statistics.similar_failures import Alike, group_similar_failures
from crcr.decide.views.commit import (
    BackendState,
    CommitView,
    GateShown,
    MomentKind,
    PullState,
    PullView,
    WaiverState,
)
from crcr.errors import HeldBy
from crcr.show.api.models.core import CommitPlace, Dispatch, FailedJob, LevelName, Model, Name, Next


class GatePart(Model):
    name: str | None
    standing: GateStatus
    reason: str
    doubt: str | None
    waived_by: str | None


class GateRow(Model):
    """One backend that counts; `parts` are its jobs that did not pass, worst first."""

    backend: Name
    level: LevelName
    standing: GateStatus
    parts: list[GatePart]
    parts_left_out: int
    passed: int
    since: datetime
    deadline: datetime | None
    advice: str | None
    oncalls: list[str]


class GateSubject(Model):
    """A pull request, or with `number` null a merge group of `numbers`, that wants the commit merged."""

    number: int | None
    numbers: list[int] | None
    state: GateState
    in_doubt: bool
    reused_from: str | None
    rows: list[GateRow]


class UnpublishedGate(Model):
    """A gate that GitHub does not show as it was decided: `text` says since when and why."""

    text: str
    decided_at: datetime | None = Field(description="When the facts that decide it were recorded.")
    due_at: datetime | None = Field(description="When publishing it is tried next.")
    held_by: HeldBy | None
    fault: EffectFault | None
    fault_since: datetime | None
    parked: bool = Field(description="Publishing it was given up until somebody retries it.")


class Gate(Model):
    """`whole` is false, and `title` null, when backends count that are not shown."""

    state: GateShown
    title: str | None
    judged_at: datetime
    whole: bool
    subjects: list[GateSubject]
    unpublished: UnpublishedGate | None = Field(description="Null when GitHub shows the gate so.")


class Spell(Model):
    """When a backend's jobs ran; `ended_at` is null while one of them does."""

    started_at: datetime | None
    failed_at: datetime | None = Field(description="When the first of them failed.")
    ended_at: datetime | None


class CommitBackend(Model):
    """`level` is that of the dispatch; `jobs` are those that count, failed first."""

    name: Name
    level: LevelName
    level_now: LevelName
    device: str | None
    oncalls: list[str]
    state: BackendState
    delivery: str
    event: str
    dispatch: Dispatch | None = Field(
        description="Null for what nobody dispatched, such as a nightly run; `delivery` is then the commit."
    )
    spell: Spell
    jobs: list[FailedJob]
    jobs_left_out: int


class LikeJob(Model):
    """One of the jobs that failed alike; it stands with its details under its backend."""

    downstream: str
    workflow: str
    run_id: str
    attempt: int
    job_name: str


class LikeFailures(Model):
    """Jobs that failed in the same test (`test`) or with the same first line (`message`)."""

    alike: Alike
    what: str
    sample: str | None = Field(description="What the first of them said.")
    jobs: list[LikeJob]


class Waiver(Model):
    waiver_id: int
    number: int
    head_sha: str
    downstream: str
    job: str | None
    who: str
    reason: str
    state: WaiverState
    created_at: datetime
    until_at: datetime | None
    ended_at: datetime | None
    ended_by: str | None
    used_at: datetime | None


class Waivers(Model):
    waivers: list[Waiver]
    next: Next


class Check(Model):
    name: str
    round: int
    status: str
    conclusion: str | None
    title: str | None
    published_at: datetime | None


class StateCount(Model):
    state: DispatchState
    number: int


class Arrival(Model):
    """A delivery on the timeline, with how many dispatches of each state came of it."""

    guid: str
    event: str
    action: str | None
    state: DeliveryState
    reason: str | None
    head_sha: str | None
    superseded: bool
    received_at: datetime
    dispatches: list[StateCount]


class Moment(Model):
    """One line of the timeline; what does not apply to its kind is null."""

    kind: MomentKind
    at: datetime
    subject: str | None = Field(description="The backend.")
    job: str | None
    event: str | None
    number: int | None = Field(description="How many dispatches were sent.")
    result: BackendState | None
    gate: GateShown | None
    who: str | None
    head_sha: str | None
    superseded: bool = Field(description="Of an older commit.")
    arrival: Arrival | None


class MergeGroup(Model):
    head_sha: str
    head_ref: str
    base_ref: str
    numbers: list[int] | None
    reused_from: str | None
    gate: GateShown | None
    created_at: datetime
    destroyed_at: datetime | None
    unpublished: UnpublishedGate | None = Field(description="Null when GitHub shows its gate so.")


class PullRequest(Model):
    """`gate` is null while the head was not looked at."""

    upstream: Name
    number: int
    at: datetime
    cursor: int
    title: str
    author: str
    state: PullState
    draft: bool
    labels: list[str]
    base_ref: str
    head_sha: str
    gate: Gate | None
    like_failures: list[LikeFailures] = Field(description="The biggest group first.")
    backends: list[CommitBackend]
    after_closing: list[CommitBackend]
    waivers: list[Waiver]
    checks: list[Check]
    timeline: list[Moment] = Field(description="From the webhook to the results, newest first.")
    timeline_left_out: int
    groups: list[MergeGroup]

    @classmethod
    def of(cls, view: PullView) -> "PullRequest":
        return cls.model_validate(_with_alike(view))


class Commit(Model):
    upstream: Name
    head_sha: str
    at: datetime
    cursor: int
    event: str
    ref: str | None
    place: CommitPlace | None = Field(
        description="Where it stands in the upstream, once somebody has tested it on their own."
    )
    numbers: list[int]
    group: MergeGroup | None
    gate: Gate | None
    like_failures: list[LikeFailures] = Field(description="The biggest group first.")
    backends: list[CommitBackend]
    waivers: list[Waiver]
    checks: list[Check]
    timeline: list[Moment] = Field(description="From the webhook to the results, newest first.")
    timeline_left_out: int

    @classmethod
    def of(cls, view: CommitView) -> "Commit":
        return cls.model_validate(_with_alike(view))


def _with_alike(view: PullView | CommitView) -> dict[str, Any]:
    """The view's fields, and what its failed jobs have in common."""
    told = {each.name: getattr(view, each.name) for each in fields(view)}
    jobs = (job for backend in view.backends for job in backend.jobs)
    return {**told, "like_failures": group_similar_failures(jobs)}
