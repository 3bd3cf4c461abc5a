"""A backend's page, its matrix and jobs as view values: complete defaults, changed by keyword."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from crcr.decide.model import Conclusion, DispatchState, JobState, Level, RepoName
from crcr.decide.statistics.figures import Durations, Figures, Part, Tally
from crcr.decide.statistics.window import Span, Window
from crcr.decide.views.backend import (
    BackendPage,
    BackendQuery,
    Column,
    JobDetail,
    JobFigures,
    LevelChange,
    Matrix,
    MatrixRow,
)
from crcr.decide.views.failures import FailedTestView
from crcr.decide.views.overview import BackendSummary, DispatchView, JobView

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
UPSTREAM = RepoName("Torch/torch")
BACKEND = RepoName("Good/Backend")
CI = ".github/workflows/ci.yml"

_JOB = JobView(
    delivery="d-1",
    downstream=BACKEND.full_name,
    workflow=CI,
    workflow_name="CI",
    run_id="10",
    attempt=1,
    job_name="build",
    state=JobState.COMPLETED,
    conclusion=Conclusion.SUCCESS,
    disputed_conclusion=None,
    marks=(),
    event="pull_request",
    number=7,
    head_sha="f" * 40,
    url=None,
    artifact_url=None,
    started_at=NOW - timedelta(hours=2),
    completed_at=NOW - timedelta(hours=1),
    queue_s=30.0,
    execution_s=3_600.0,
    tests_passed=None,
    tests_failed=None,
    tests_skipped=None,
    tests_total=None,
)
_DISPATCH = DispatchView(
    delivery="d-1",
    downstream=BACKEND.full_name,
    level=Level.L2,
    state=DispatchState.SENT,
    reason=None,
    event="pull_request",
    action="synchronize",
    number=7,
    head_sha="f" * 40,
    test=False,
    unsure=False,
    created_at=NOW - timedelta(hours=3),
    sent_at=NOW - timedelta(hours=3),
    superseded_at=None,
)
_ROW = MatrixRow(
    key="d-1",
    event="pull_request",
    action="synchronize",
    number=7,
    head_sha="f" * 40,
    delivery="d-1",
    at=NOW - timedelta(hours=3),
    title="Fuse it",
    author="ada",
    ref=None,
    superseded=False,
    test=False,
    dispatch=_DISPATCH,
    cells=(),
)


def a_job_view(conclusion: str | None = "success", name: str = "build", **facts: Any) -> JobView:
    """Return a completed job, or one that runs when there is no conclusion."""
    running: dict[str, Any] = {"state": JobState.IN_PROGRESS, "completed_at": None, "execution_s": None}
    ended = Conclusion(conclusion) if conclusion else None
    return replace(_JOB, job_name=name, conclusion=ended, **((running if ended is None else {}) | facts))


def a_failure(name: str = "test", *tests: tuple[str, str | None], **facts: Any) -> JobView:
    """Return a failed job with failed tests, each a name and a message."""
    failed = tuple(FailedTestView(test, None, message) for test, message in tests)
    return a_job_view("failure", name, failed_tests=failed, tests_failed=len(failed), **facts)


def a_dispatch(**facts: Any) -> DispatchView:
    return replace(_DISPATCH, **facts)


def a_row(*cells: JobView | None, **facts: Any) -> MatrixRow:
    return replace(_ROW, cells=cells, **facts)


def a_column(name: str = "build", workflow: str = CI, workflow_name: str = "CI") -> Column:
    return Column(workflow, workflow_name, name)


def a_matrix(names: tuple[str, ...], *rows: MatrixRow, **facts: Any) -> Matrix:
    columns = tuple(map(a_column, names))
    return replace(Matrix(columns=columns, rows=rows, searched=len(rows)), **facts)


def figures(*tallies: Tally) -> Figures:
    """The given tallies in the last parts of a fortnight, each job with a minute in the queue and ten at work."""
    starts = Window.of(Span.FORTNIGHT, NOW).starts()
    padded = (Tally(),) * (len(starts) - len(tallies)) + tallies
    return Figures(parts=tuple(map(_part, starts, padded)))


def _part(at: datetime, tally: Tally) -> Part:
    return Part(
        at=at,
        tally=tally,
        queue=Durations.from_seconds([60.0] * tally.decided),
        execution=Durations.from_seconds([600.0] * tally.decided),
        sent=tally.decided,
    )


def a_summary(**facts: Any) -> BackendSummary:
    summary = BackendSummary(
        name=BACKEND,
        level=Level.L2,
        device="npu",
        oncalls=("ada", "grace"),
        hardware="NPU 910B",
        name_only=False,
        figures=figures(Tally(success=3, failure=1, timed_out=1), Tally(success=4)),
        sent=5,
        last_sent_at=NOW - timedelta(hours=3),
    )
    return replace(summary, **facts)


def a_page(matrix: Matrix | None = None, **facts: Any) -> BackendPage:
    query = BackendQuery(upstream=UPSTREAM, downstream=BACKEND)
    page = BackendPage(
        query=query,
        at=NOW,
        cursor=4,
        ingests=False,
        summary=a_summary(),
        matrix=matrix or Matrix(),
        jobs=(JobFigures(column=a_column(), tally=Tally(success=3, failure=1), execution_s=600.0),),
        jobs_left_out=0,
        failures=(),
        levels=(LevelChange(NOW - timedelta(days=9), Level.L2, 1),),
        detail=None,
    )
    return replace(page, **facts)


def a_detail(job: JobView | None = None, **facts: Any) -> JobDetail:
    shown = job or a_job_view()
    detail = JobDetail(
        upstream=UPSTREAM,
        backend=BACKEND,
        job=shown,
        attempts=(shown,),
        environment=None,
        title="Fuse it",
        author="ada",
        ref=None,
        sent_at=NOW - timedelta(hours=3),
        superseded=False,
        test=False,
    )
    return replace(detail, **facts)
