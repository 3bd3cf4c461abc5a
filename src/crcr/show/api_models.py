"""The JSON API's answers as pydantic models, made from the views.

Field names are the words of the glossary. Links that are not http(s) are left out; all other text is as it
was sent, and is to be treated as text.
"""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from crcr.decide import views
from crcr.decide.commit import Verification
from crcr.decide.model import Conclusion, DeliveryState, DispatchState, JobState
from crcr.show.text import safe_link

Link = Annotated[str | None, BeforeValidator(safe_link)]
Name = Annotated[str, BeforeValidator(str)]
LevelName = Annotated[str, BeforeValidator(lambda level: level if isinstance(level, str) else level.name)]


class Model(BaseModel):
    model_config = ConfigDict(from_attributes=True, frozen=True)


class ErrorDetail(Model):
    code: str
    detail: str
    hint: str | None = None
    request_id: str | None = None


class ErrorBody(Model):
    ok: bool = False
    error: ErrorDetail


class Problem(Model):
    line: int
    severity: str
    message: str
    hint: str | None


class AllowlistState(Model):
    version: int | None
    source: str | None
    read_at: datetime | None
    newest_is_bad: bool
    problems: list[Problem]


class Health(Model):
    deliveries: int
    last_delivery_at: datetime | None
    last_result_at: datetime | None
    waiting: int
    parked: int
    lag_s: float | None
    paused_at: datetime | None


class LastResult(Model):
    state: JobState
    conclusion: Conclusion | None
    job_name: str
    at: datetime


class Tally(Model):
    pass_rate: float | None
    success: int
    failure: int
    running: int
    other: int
    total: int


class Figures(Model):
    tally: Tally
    queue_avg_s: float | None
    execution_avg_s: float | None
    strip: list[Tally]
    last_result: LastResult | None

    @classmethod
    def of(cls, figures: views.Figures) -> "Figures":
        return cls(
            tally=Tally.model_validate(figures.tally),
            queue_avg_s=figures.queue.average_s,
            execution_avg_s=figures.execution.average_s,
            strip=[Tally.model_validate(each) for each in figures.strip],
            last_result=LastResult.model_validate(figures.last_result) if figures.last_result else None,
        )


class Backend(Model):
    """`figures` is null where results are not recorded (L1) or not shown (`name_only`)."""

    name: Name
    level: LevelName
    device: str | None
    oncalls: list[str]
    hardware: str | None
    name_only: bool
    figures: Annotated[
        Figures | None, BeforeValidator(lambda f: Figures.of(f) if isinstance(f, views.Figures) else f)
    ]
    dispatched: int
    waiting: int
    parked: int
    last_sent_at: datetime | None
    suspended: bool
    silent: bool
    alarm: str | None


class Summary(Model):
    upstream: Name
    span: views.Span
    at: datetime
    cursor: int
    health: Health
    allowlist: AllowlistState
    tally: Tally
    backends: list[Backend]


class FailedTest(Model):
    name: str
    file: str | None
    message: str | None


class Job(Model):
    delivery: str
    downstream: str
    workflow: str
    workflow_name: str
    run_id: str
    attempt: int
    job_name: str
    state: JobState
    conclusion: Conclusion | None
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


class FailedJob(Job):
    failed_tests: list[FailedTest]
    failed_tests_more: int


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
    answer: views.Answer | None


class DispatchWithJobs(Dispatch):
    jobs: list[Job]


class Row(Model):
    """One dispatch on the backend's page; its cells follow the columns, null where nothing was reported."""

    delivery: str
    event: str
    action: str | None
    number: int | None
    head_sha: str | None
    title: str | None
    author: str | None
    ref: str | None
    dispatch: Dispatch
    cells: list[Job | None]

    @classmethod
    def of(cls, row: views.MatrixRow) -> "Row":
        sent = row.dispatch
        return cls(
            delivery=sent.delivery,
            event=sent.event,
            action=sent.action,
            number=sent.number,
            head_sha=sent.head_sha,
            title=row.title,
            author=row.author,
            ref=row.ref,
            dispatch=Dispatch.model_validate(sent),
            cells=[Job.model_validate(cell) if cell else None for cell in row.cells],
        )


class Column(Model):
    workflow: str
    workflow_name: str
    job_name: str


class BackendPage(Model):
    upstream: Name
    span: views.Span
    at: datetime
    cursor: int
    backend: Backend
    columns: list[Column]
    columns_left_out: int
    rows: list[Row]
    failures: list[FailedJob]

    @classmethod
    def of(cls, page: views.BackendPage) -> "BackendPage":
        return cls(
            upstream=str(page.upstream),
            span=page.span,
            at=page.at,
            cursor=page.cursor,
            backend=Backend.model_validate(page.summary),
            columns=[Column.model_validate(each) for each in page.columns],
            columns_left_out=page.columns_left_out,
            rows=[Row.of(each) for each in page.rows],
            failures=[FailedJob.model_validate(each) for each in page.failures],
        )


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
    """`next` is the cursor of the following page; null on the last one."""

    jobs: list[Job]
    next: str | None


class Deliveries(Model):
    """`next` is the cursor of the following page; null on the last one."""

    deliveries: list[Delivery]
    next: str | None


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
    """Counts of what is open and parked, and of what ended in the last 24 hours; the newest parked ones."""

    counts: list[EffectCount]
    lag_s: float | None
    parked: list[ParkedEffect]


class ListedBackend(Model):
    name: Name
    level: LevelName
    device: str | None
    oncalls: list[str]
    hardware: str | None
    events: list[str]


class Allowlist(Model):
    state: AllowlistState
    backends: list[ListedBackend]
