"""The JSON API's answers about one backend, one job, the badge and the metrics, made from the views."""

from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from crcr.decide.statistics.figures import CountedAs
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views import backend as views
from crcr.show.api.models import examples
from crcr.show.api.models.core import (
    Backend,
    CommitPlace,
    Dispatch,
    FailedJob,
    History,
    Job,
    LevelName,
    Model,
    Name,
    Next,
    Tally,
    Trend,
)
from crcr.show.urls import cursors


class BackendTrend(Backend):
    figures: Trend | None


class Column(Model):
    workflow: str
    workflow_name: str
    job_name: str


class Row(Model):
    """One event of the upstream as the backend tested it; its cells follow the columns, null without a report."""

    key: str = Field(description="Stays its own when the list is read anew.")
    delivery: str
    event: str
    action: str | None
    number: int | None
    head_sha: str | None
    at: datetime
    title: str | None
    author: str | None
    ref: str | None
    superseded: bool
    test: bool
    dispatch: Dispatch | None = Field(description="Null for what nobody dispatched.")
    place: CommitPlace | None = Field(description="Of a nightly run: where its commit stands.")
    cells: list[Job | None]


class JobFigures(Model):
    """One job over the window, by name; `execution_s` is the average of those known."""

    column: Column
    tally: Tally
    execution_s: float | None


class LevelChange(Model):
    """Since when the backend stands at a level; null when it was not listed."""

    at: datetime
    level: LevelName | None
    version: int = Field(description="Of the allowlist.")


class BackendPage(Model):
    """`rows` and `columns` are the matrix; `jobs` the whole window by job, worst first; `levels` newest first."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.BACKEND]})

    upstream: Name
    span: Span
    kind: ResultKind
    at: datetime
    cursor: int = Field(description="Where live updates go on; not a place in the list.")
    ingests: bool
    history: History
    backend: BackendTrend
    columns: list[Column]
    columns_left_out: int
    rows: list[Row]
    searched: int = Field(description="How many events were looked through for these rows.")
    next: Next
    jobs: list[JobFigures]
    jobs_left_out: int
    failures: list[FailedJob]
    levels: list[LevelChange]

    @classmethod
    def of(cls, page: views.BackendPage) -> "BackendPage":
        shared: dict[str, Any] = {
            name: getattr(page, name)
            for name in ("at", "cursor", "ingests", "history", "jobs", "jobs_left_out", "failures", "levels")
        }
        matrix = page.matrix
        return cls.model_validate(
            {
                **shared,
                "upstream": page.query.upstream,
                "span": page.query.span,
                "kind": page.query.kind,
                "backend": page.summary,
                "columns": matrix.columns,
                "columns_left_out": matrix.columns_left_out,
                "rows": matrix.rows,
                "searched": matrix.searched,
                "next": cursors.encode(matrix.next),
            },
            from_attributes=True,
        )


class JobDetail(Model):
    """All that is known of one job; `attempts` are those of the same job, newest first."""

    upstream: Name
    backend: Name
    job: FailedJob
    attempts: list[Job]
    environment: str | None = Field(description="As the job told it: JSON text.")
    title: str | None
    author: str | None
    ref: str | None
    sent_at: datetime | None
    superseded: bool
    test: bool
    place: CommitPlace | None = Field(description="Of a nightly run: where its commit stands.")


class BackendMetrics(Model):
    name: Name
    level: LevelName
    probe: bool
    silent: bool
    figures: Trend


class Metrics(Model):
    """`total` is of all backends shown but the probes."""

    upstream: Name
    span: Span
    kind: ResultKind
    at: datetime
    cursor: int
    ingests: bool
    history: History
    total: Trend
    backends: list[BackendMetrics]
    next: Next = None


class Badge(Model):
    """`state` is of the newest event that has ended results, null without any; `stale` when it went silent."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.BADGE]})

    name: Name
    kind: ResultKind
    span: Span
    state: CountedAs | None
    stale: bool
    tally: Tally
