"""The JSON API's models of one backend, one job, the badge and the metrics."""

from typing import Any

from crcr.decide.jobs.log_excerpt import LogExcerpt
from crcr.decide.levels import standings
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views import backend as views
from crcr.decide.views.overview import JobCell
from crcr.show.api.models import examples
from crcr.show.api.models.derive import Model, Name, Next, derive_model
from crcr.show.api.models.shared import BACKEND, FAILED_JOB, JOB, TREND, WithJobToken

_PLACE = "Of a nightly run: whether its commit belongs to the upstream."
BACKEND_TREND = derive_model(
    views.BackendMetrics, "BackendTrend", base=BACKEND, only=("figures",), types={"figures": TREND | None}
)
COLUMN = derive_model(views.Column, "Column")
ROW = derive_model(
    views.MatrixRow,
    "Row",
    "One event of the upstream as the backend tested it; its cells follow the columns, null without a report.",
    types={"cells": list[JOB | None]},  # type: ignore[valid-type]
    described={
        "key": "Stable when the list is read again.",
        "dispatch": "Null for a run that was not dispatched.",
        "place": _PLACE,
    },
)
JOB_FIGURES = derive_model(
    views.JobFigures,
    "JobFigures",
    "One job over the window, by name; `execution_s` is the average of those known.",
)
LEVEL_CHANGE = derive_model(
    views.LevelChange,
    "LevelChange",
    "A change of the backend's level; null when it was not listed.",
    described={"version": "Of the allowlist."},
)
derive_model(
    standings.CriterionView,
    "LevelCriterion",
    "One criterion of L3: its target and the figure over the window to come to L3, and those of the window to leave it.",
    described={
        "value": "The figure in the unit of the target; null where nothing was measured.",
        "met": "`too few`: not enough results to say so.",
        "met_since": "The first evaluation since which it is met without a break.",
        "leaves": "The threshold to leave L3; null where there is none.",
        "broken": "Whether it is beyond that threshold.",
    },
)
derive_model(standings.EvaluatedDay, "EvaluatedDay", "The last evaluation of a day.")
derive_model(
    standings.LevelOverride, "LevelOverride", "A maintainer's decision that a demotion has no effect."
)
LEVEL_EXAMPLE: dict[str, object] = {
    "name": "org/backend",
    "level": "L3",
    "oncalls": ["ada"],
    "probe": False,
    "level_since": "2025-11-02T09:00:00Z",
    "standing": "fails",
    "since": "2026-03-01T04:00:00Z",
    "demotion": "silent",
    "reason": "jobs passed: 71.0% of 320 jobs (< 85%)",
    "override": {"who": "grace", "reason": "new machines", "until": "2026-02-20T00:00:00Z"},
    "evaluated_at": "2026-03-02T04:00:00Z",
    "left_out": 12,
    "waivers": 0,
    "days": [{"at": "2026-03-02T04:00:00Z", "level": "L3", "standing": "fails", "observation": "breaks"}],
    "eligible": False,
    "proposed_level": "L2",
    "lacking": ["jobs passed ≥ 90%: 80.2% of 610 jobs"],
    "summary": "in silent mode: dispatched and shown here, without checks on pull requests",
    "criteria": [
        {
            "name": "pass_rate",
            "title": "jobs passed",
            "target": "≥ 90%",
            "measured": "80.2% of 610 jobs",
            "value": 80.2,
            "met": "not met",
            "met_since": "2026-02-20T04:00:00Z",
            "leaves": "< 85%",
            "leave_measured": "71.0% of 320 jobs",
            "broken": True,
        }
    ],
}
derive_model(
    standings.BackendLevel,
    "BackendLevel",
    "A backend's level, and its standing by its last evaluation.",
    properties=("eligible", "proposed_level", "lacking", "summary"),
    described={
        "level_since": "Null where it was listed before the relay recorded levels.",
        "standing": "Null before the first evaluation at this level, and where there is none: at L1, and for probes.",
        "since": "When it came into or out of order.",
        "demotion": "The demotion in force.",
        "left_out": "Failures that the upstream caused, which the pass rate leaves out.",
        "proposed_level": "Null where it stays; L4 is never proposed.",
        "days": "Oldest first, the last 30.",
    },
)
FAILURE_CAUSE = derive_model(
    views.FailureCause,
    "FailureCause",
    "Failures of the rows with one cause: `line` is the first line of their message, `newest` the newest of their jobs.",
    types={"newest": FAILED_JOB},
    described={"fingerprint": "For `/failures/{fingerprint}`; null where the job listed no failed test."},
)
JOB_RESULT = derive_model(JobCell, "JobResult", base=WithJobToken, properties=("counted",))
BACKEND_PAGE = derive_model(
    views.BackendPage,
    "BackendPage",
    "`rows` and `columns` are the matrix; `jobs` the whole window by job, worst first; `levels` newest first.",
    without=("query", "summary", "matrix", "detail", "refusals", "lines"),
    types={
        "upstream": Name,
        "span": Span,
        "kind": ResultKind,
        "backend": BACKEND_TREND,
        "columns": list[COLUMN],  # type: ignore[valid-type]
        "columns_left_out": int,
        "rows": list[ROW],  # type: ignore[valid-type]
        "searched": int,
        "next": Next,
        "failures": list[FAILED_JOB],  # type: ignore[valid-type]
    },
    described={
        "cursor": "The position for live updates; not a cursor of the list.",
        "searched": "How many events were searched for these rows.",
    },
    example={**examples.BACKEND, "readiness": LEVEL_EXAMPLE},
)
LOG_EXCERPT = derive_model(
    LogExcerpt,
    "LogExcerpt",
    "Untrusted text of the job's log, at most 8 KiB, without what looks like a secret.",
)
JOB_DETAIL = derive_model(
    views.JobDetail,
    "JobDetail",
    "All details of one job; `attempts` are those of the same job, newest first.",
    types={"job": FAILED_JOB},
    described={
        "environment": "As the job reported it: JSON text.",
        "log_excerpt": "Null where the report has none, and for a job that passed.",
        "place": _PLACE,
        "recent": "The newest results of this job on events of the same kind, newest first.",
        "on_base": "Its newest results on the base branch `base_ref`, newest first.",
    },
)
BACKEND_METRICS = derive_model(views.BackendMetrics, "BackendMetrics", types={"figures": TREND})
METRICS = derive_model(
    views.MetricsView,
    "Metrics",
    "`total` covers all backends shown except the probes.",
    without=("rows",),
    types={
        "total": TREND,
        "backends": list[BACKEND_METRICS],  # type: ignore[valid-type]
        "next": (Next, None),
    },
)
BADGE = derive_model(
    views.BadgeView,
    "Badge",
    "`state` is that of the newest event with finished results, null without any; `stale` when the backend went silent.",
    example=examples.BADGE,
)
_PAGE_FIELDS = (
    "at",
    "cursor",
    "ingests",
    "history",
    "jobs",
    "jobs_left_out",
    "failures",
    "causes",
    "levels",
    "readiness",
)
_MATRIX_FIELDS = ("columns", "columns_left_out", "rows", "searched", "next")


def describe_backend(page: views.BackendPage) -> Model:
    """Return the page with its query and its matrix on one level."""
    values: dict[str, Any] = {name: getattr(page, name) for name in _PAGE_FIELDS}
    values |= {name: getattr(page.matrix, name) for name in _MATRIX_FIELDS}
    values |= {name: getattr(page.query, name) for name in ("upstream", "span", "kind")}
    return BACKEND_PAGE.model_validate({**values, "backend": page.summary}, from_attributes=True)
