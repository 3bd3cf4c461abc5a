"""The JSON API's answers as pydantic models, made from the views: what all of them share, and the numbers.

Field names are the words of the glossary. Rates are exact and null where nothing was decided. Links that are not
http(s) are left out; all other text is as it was sent, and is to be treated as text.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, computed_field

from crcr.decide.checks.commit import Verification
from crcr.decide.github.commit_origin import CommitStanding
from crcr.decide.health.relay import HealthState, ReasonCode
from crcr.decide.health.texts import EffectClass
from crcr.decide.model import Conclusion, DispatchState, JobState, Level
from crcr.decide.statistics.figures import CountedAs, EndedAs
from crcr.decide.statistics.window import HistoryState, ResultKind, Span
from crcr.decide.views.backend import JobKey
from crcr.decide.views.overview import DispatchAnswer
from crcr.show.api.models import examples
from crcr.show.render.safe_text import safe_link
from crcr.show.urls.job_tokens import encode_job_token


def _level_name(level: object) -> object:
    return level.name if isinstance(level, Level) else level


Link = Annotated[str | None, BeforeValidator(safe_link)]
Name = Annotated[str, BeforeValidator(str)]
LevelName = Annotated[Literal["L1", "L2", "L3", "L4"], BeforeValidator(_level_name)]
Next = Annotated[str | None, Field(description="The cursor of the following page; null on the last one.")]


History = Annotated[
    Literal["database", "clickhouse"],
    BeforeValidator(lambda state: state.source if isinstance(state, HistoryState) else state),
    Field(description="Where the history was read from; the numbers are the same."),
]


class Model(BaseModel):
    model_config = ConfigDict(from_attributes=True, frozen=True)


class ErrorDetail(Model):
    code: str = Field(description="Stable; the protocol's table of errors says what each means.")
    detail: str
    hint: str | None = None
    request_id: str | None = None


class ErrorBody(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [examples.ERROR]})

    ok: bool = False
    error: ErrorDetail


class Problem(Model):
    line: int
    severity: str
    message: str
    hint: str | None


class AllowlistState(Model):
    """The version in force; `problems` are those of the newest reading if that one was not taken."""

    version: int | None
    source: str | None
    read_at: datetime | None
    newest_is_bad: bool
    problems: list[Problem]


class LastResult(Model):
    state: JobState
    conclusion: Conclusion | None
    job_name: str
    at: datetime
    counted: CountedAs


class Probe(Model):
    """A repository that is there to try the relay itself; `stale` when it has stopped to."""

    name: Name
    last_result: LastResult | None
    stale: bool


class HealthReason(Model):
    """Why the relay is not green, in one sentence; what does not apply to its code is null."""

    code: ReasonCode
    state: HealthState
    text: str
    effects: EffectClass | None
    number: int | None
    since: datetime | None
    until: datetime | None = Field(description="When the limit that holds them back ends.")


class Health(Model):
    state: HealthState = Field(
        HealthState.GREEN,
        description="Amber: something waits or needs attention. Red: gates cannot be published, or nothing is delivered.",
    )
    reasons: list[HealthReason] = Field([], description="The most serious first; empty when green.")
    deliveries: int
    last_delivery_at: datetime | None
    last_result_at: datetime | None
    waiting: int
    parked: int
    lag_s: float | None = Field(description="Age of the oldest effect that is due and not done.")
    paused_at: datetime | None
    probes: list[Probe]


class Tally(Model):
    """`pass_rate` is success / decided, and null where nothing was decided; failures include `timed_out`."""

    pass_rate: float | None
    success: int
    failure: int
    timed_out: int
    running: int
    other: int
    decided: int
    total: int


class LeftOut(Model):
    """Results of the same window that no rate counts: of superseded commits or runs, of earlier attempts."""

    superseded: int
    earlier: int


class Times(Model):
    """Seconds, over the `known` jobs whose time is known; P50 and P95 of fewer than 20 are exact, else to their bucket."""

    known: int
    average_s: float | None
    p50_s: float | None
    p95_s: float | None


class StripPart(Model):
    """One part of the window, from `at` on."""

    at: datetime
    tally: Tally


class Part(StripPart):
    queue: Times
    execution: Times
    sent: int
    average_delay_s: float | None


class Figures(Model):
    """The numbers of a window; `sent` are dispatches, `average_delay_s` is from arrival to sending."""

    tally: Tally
    left_out: LeftOut
    queue: Times
    execution: Times
    sent: int
    average_delay_s: float | None
    last_result: LastResult | None
    parts: list[StripPart] = Field(description="Oldest first.")


class Trend(Figures):
    """The numbers of a window, and all of them for each of its parts."""

    parts: list[Part] = Field(description="Oldest first.")  # type: ignore[assignment]  # each tells more


class Backend(Model):
    """`figures` is null where results are not recorded (L1) or not shown (`name_only`)."""

    name: Name
    level: LevelName
    device: str | None
    oncalls: list[str]
    hardware: str | None
    name_only: bool
    probe: bool = Field(description="Its results say how the relay does, and count in no total.")
    hidden: bool = Field(description="Shown to administrators only.")
    figures: Figures | None
    sent: int
    waiting: int
    parked: int
    last_sent_at: datetime | None
    suspended: bool
    silent: bool
    alarm: str | None


class Summary(Model):
    """`tally` is of all backends shown but the probes; `cursor` is where live updates go on."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.SUMMARY]})

    upstream: Name
    span: Span
    kind: ResultKind
    at: datetime
    cursor: int
    ingests: bool = Field(description="Whether another relay tells results.")
    history: History
    health: Health
    allowlist: AllowlistState
    tally: Tally
    backends: list[Backend]
    matching: int = Field(0, description="How many backends the filters leave, on all pages.")
    next: Next = None


class FailedTest(Model):
    name: str
    file: str | None
    message: str | None


class Job(Model):
    """`counted` is what it counts as; `ended` where the sums have it, null while it runs and for a test."""

    delivery: str
    downstream: str
    workflow: str
    workflow_name: str
    run_id: str
    attempt: int
    job_name: str
    state: JobState
    conclusion: Conclusion | None
    expected: Conclusion | None = Field(
        description="The outcome that counts as a pass, where one is expected."
    )
    counted: CountedAs
    ended: EndedAs | None
    disputed_conclusion: Conclusion | None
    marks: list[str]
    event: str
    number: int | None
    head_sha: str | None
    url: Link
    artifact_url: Link
    started_at: datetime
    completed_at: datetime | None
    queue_s: float | None
    execution_s: float | None
    tests_passed: int | None
    tests_failed: int | None
    tests_skipped: int | None
    tests_total: int | None
    verification: Verification
    github_conclusion: str | None

    @computed_field(
        description="For `/backends/{org}/{repo}/jobs/{token}`; null for names too long to ask by."
    )
    def token(self) -> str | None:
        key = JobKey(
            delivery=self.delivery,
            workflow=self.workflow,
            run_id=self.run_id,
            attempt=self.attempt,
            job_name=self.job_name,
        )
        return encode_job_token(key) or None


class FailedJob(Job):
    failed_tests: list[FailedTest]
    failed_tests_more: int = Field(description="Failed tests beyond the ones listed.")


class CommitPlace(Model):
    """Where a commit stands in the upstream; `branch` is the first of its branches that has it."""

    standing: CommitStanding
    branch: str | None


class Dispatch(Model):
    downstream: str
    level: LevelName
    state: DispatchState
    reason: str | None
    test: bool
    unsure: bool
    created_at: datetime
    sent_at: datetime | None
    superseded_at: datetime | None
    answer: DispatchAnswer | None
    trimmed: list[str] = Field(
        description="What was cut from the payload because it was too large, as in `relay.trimmed`."
    )
