"""What a backend's own page and a job's details show, as values; what stays text is said in `views`."""

from dataclasses import dataclass
from datetime import datetime

from crcr.decide.github.commit_origin import CommitPlace
from crcr.decide.model import Level, RepoName
from crcr.decide.statistics.figures import CountedAs, Figures, Tally
from crcr.decide.statistics.window import HistoryState, ResultKind, Span
from crcr.decide.views.joining import RefusalView
from crcr.decide.views.overview import BackendSummary, DispatchView, JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """What tells one job's attempt from all others of a backend."""

    delivery: str
    workflow: str
    run_id: str
    attempt: int
    job_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendQuery:
    upstream: RepoName
    downstream: RepoName
    span: Span = Span.FORTNIGHT
    kind: ResultKind = ResultKind.PULLS
    job: str | None = None
    """Only columns whose job or workflow holds this text."""
    author: str | None = None
    result: CountedAs | None = None
    """Only rows with such a job."""
    text: str | None = None
    """Only rows whose number, commit, branch, title or author holds this text."""
    older: bool = False
    """Superseded commits and closings too."""
    after: tuple[str | int, ...] | None = None
    limit: int = 30
    detail: JobKey | None = None
    """The job whose details are open."""


@dataclass(frozen=True, slots=True)
class Column:
    workflow: str
    workflow_name: str
    job_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """One event of the upstream as the backend tested it: a dispatch, a nightly run, or another relay's delivery."""

    key: str
    """Stays its own when the page is read anew."""
    event: str
    action: str | None
    number: int | None
    head_sha: str | None
    delivery: str
    at: datetime
    title: str | None
    author: str | None
    ref: str | None
    superseded: bool
    test: bool
    dispatch: DispatchView | None
    """None for what nobody dispatched."""
    cells: tuple[JobView | None, ...]
    place: CommitPlace | None = None
    """Of a nightly run: where its commit stands in the upstream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    columns: tuple[Column, ...] = ()
    columns_left_out: int = 0
    rows: tuple[MatrixRow, ...] = ()
    searched: int = 0
    """How many events were looked through for these rows."""
    next: tuple[str | int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """One job of a backend over the window, by name: `execution_s` is the average of those known."""

    column: Column
    tally: Tally
    execution_s: float | None


@dataclass(frozen=True, slots=True)
class LevelChange:
    """Since when a backend stands at a level; None when it was not listed."""

    at: datetime
    level: Level | None
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """Everything known of one job: all attempts, newest first, the asked one with its failed tests."""

    upstream: RepoName
    backend: RepoName
    job: JobView
    attempts: tuple[JobView, ...]
    environment: str | None
    title: str | None
    """Of the pull request."""
    author: str | None
    ref: str | None
    sent_at: datetime | None
    superseded: bool
    """Of a commit that a newer one took the place of."""
    test: bool
    place: CommitPlace | None = None
    """Of a nightly run: where its commit stands in the upstream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendPage:
    query: BackendQuery
    at: datetime
    cursor: int
    ingests: bool
    summary: BackendSummary
    matrix: Matrix
    jobs: tuple[JobFigures, ...]
    """Worst first."""
    jobs_left_out: int
    failures: tuple[JobView, ...]
    levels: tuple[LevelChange, ...]
    """Newest first."""
    detail: JobDetail | None
    """None when none was asked for, or the asked one is not there."""
    refusals: tuple[RefusalView, ...] = ()
    """Of the last two weeks, newest first."""
    history: HistoryState = HistoryState.OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendMetrics:
    name: RepoName
    level: Level
    probe: bool
    figures: Figures
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsView:
    upstream: RepoName
    span: Span
    kind: ResultKind
    at: datetime
    cursor: int
    ingests: bool
    total: Figures
    """Of all backends shown but the probes."""
    backends: tuple[BackendMetrics, ...]
    """All of them. Where some were chosen, only the time of the last result is known here."""
    rows: tuple[BackendMetrics, ...] = ()
    """The backends that were chosen, in full and in their order; all of them where nothing was."""
    history: HistoryState = HistoryState.OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class BadgeView:
    """A backend's state and pass rate; `state` is of the newest event that has ended results, None without any."""

    name: RepoName
    kind: ResultKind
    span: Span
    state: CountedAs | None
    tally: Tally
    stale: bool
    """It should have reported and does not."""
