"""A backend's page and a job's details, as values; `views.overview` says how to treat their text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.github.commit_origin import CommitPlace
from crcr.decide.jobs.imported import DELIVERY_PREFIX
from crcr.decide.jobs.log_excerpt import LogExcerpt
from crcr.decide.jobs.short_address import JobKeyParts
from crcr.decide.levels.standings import BackendLevel
from crcr.decide.model import Level, RepoName
from crcr.decide.statistics.figures import CountedAs, Figures, Tally
from crcr.decide.statistics.window import HistoryState, ResultKind, Span
from crcr.decide.views.joining import RefusalView
from crcr.decide.views.overview import BackendSummary, DispatchView, JobCell, JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """The key of one job's attempt within a backend."""

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
    """Only columns whose job or workflow contains this text."""
    author: str | None = None
    result: CountedAs | None = None
    """Only rows with a job of this result."""
    verdict: VerdictKind | None = None
    """Only rows with a failed job of this verdict of the rules."""
    text: str | None = None
    """Only rows whose number, commit, branch, title or author contains this text."""
    older: bool = False
    """Include superseded commits and closings."""
    day: date | None = None
    """Only events of this day (UTC), whatever the range of the figures."""
    only_failing: bool = False
    """Only columns with a failed job among the rows."""
    after: tuple[str | int, ...] | None = None
    limit: int = 30
    whole_jobs: bool = True
    """Whether the cells have all facts of their jobs; a page draws their results only."""
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
    """Stable across reloads of the page."""
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
    """None for results without a dispatch."""
    cells: tuple[JobCell | None, ...]
    """`JobView`s where the query asks for whole jobs."""
    place: CommitPlace | None = None
    """For a nightly run: the origin of its commit."""

    @property
    def is_imported(self) -> bool:
        """Whether another relay dispatched it: only GitHub has pages of its pull request and its commit."""
        return self.delivery.startswith(DELIVERY_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    columns: tuple[Column, ...] = ()
    columns_left_out: int = 0
    rows: tuple[MatrixRow, ...] = ()
    searched: int = 0
    """How many events were searched for these rows."""
    next: tuple[str | int, ...] | None = None


@dataclass(frozen=True, slots=True)
class FailureLine:
    """What a failed job says about its cause; a job that listed no failed test has neither."""

    fingerprint: str | None
    line: str | None
    """The first line of the failure's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCause:
    """The failures of a matrix that have one cause: a fingerprint, or without one the same job."""

    fingerprint: str | None
    line: str | None
    count: int
    newest: JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """One job of a backend over the window, by name; `execution_s` is the average of the known times."""

    column: Column
    tally: Tally
    execution_s: float | None


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of a backend's level; None when it was no longer listed."""

    at: datetime
    level: Level | None
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """Everything known of one job: all attempts, newest first, the requested one with its failed tests."""

    upstream: RepoName
    backend: RepoName
    job: JobView
    attempts: tuple[JobView, ...]
    environment: str | None
    log_excerpt: LogExcerpt | None = None
    """As the job reported it, masked again."""
    title: str | None
    """Of the pull request."""
    author: str | None
    ref: str | None
    sent_at: datetime | None
    superseded: bool
    """Whether a newer commit has replaced its commit."""
    test: bool
    place: CommitPlace | None = None
    """For a nightly run: the origin of its commit."""

    ingested: bool = False
    """Whether another relay sent it."""
    oncalls: tuple[str, ...] = ()
    recent: tuple[JobCell, ...] = ()
    """The newest results of the same job on events of the same kind, newest first."""
    on_base: tuple[JobCell, ...] = ()
    """Its newest results on the base branch, newest first."""
    base_ref: str | None = None
    """The branch that `on_base` is about; None where it is not known."""


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
    readiness: BackendLevel | None = None
    """Its level by evidence; None where it shows its name only."""
    levels: tuple[LevelChange, ...]
    """Newest first."""
    detail: JobDetail | None
    """None when none was requested, or the requested one does not exist."""
    refusals: tuple[RefusalView, ...] = ()
    """Of the last two weeks, newest first."""
    history: HistoryState = HistoryState.OWN
    causes: tuple[FailureCause, ...] = ()
    """The newest failures of the matrix by cause, the newest first."""
    lines: Mapping[JobKeyParts, FailureLine] = field(default_factory=dict)
    """The causes of the failed jobs of the matrix."""


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
    """The total of all shown backends but the probes."""
    backends: tuple[BackendMetrics, ...]
    """All of them. Where rows were chosen, only the time of the last result is set here."""
    rows: tuple[BackendMetrics, ...] = ()
    """The chosen backends, in full and in order; all of them where none were chosen."""
    history: HistoryState = HistoryState.OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class BadgeView:
    """A backend's state and pass rate; `state` is that of the newest event with ended results, None without any."""

    name: RepoName
    kind: ResultKind
    span: Span
    state: CountedAs | None
    tally: Tally
    stale: bool
    """It should have reported, and did not."""
