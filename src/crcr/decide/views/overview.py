"""What pages and the JSON API show, as values.

Built by the store's read models, rendered by the show room. Text written by a downstream or by a pull request's author
is unescaped here: the renderer must treat it as text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from crcr.decide.allowlist.entries import AllowlistProblem
from crcr.decide.checks.commit import Verification
from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.health.relay import Health
from crcr.decide.levels.standings import Demotion
from crcr.decide.model import Conclusion, DeliveryState, DispatchState, JobState, Level, RepoName
from crcr.decide.row_dataclass import row_dataclass
from crcr.decide.statistics.figures import COUNTED_AS, CountedAs, EndedAs, Figures, LastResult, Tally
from crcr.decide.statistics.window import HistoryState, ResultKind, Span
from crcr.decide.views.attention import Attention
from crcr.decide.views.failures import FailedTestView, VerdictView
from crcr.decide.views.in_tree import InTreeTrend


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectQueue:
    """One upstream's effects of one kind."""

    kind: str
    waiting: int = 0
    claimed: int = 0
    parked: int = 0
    lag_s: float | None = None
    """How long the oldest one has been due; None when none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmFacts:
    """Facts for alarms besides the queues."""

    paused: bool = False
    """Whether an operator has paused dispatching."""
    allowlist_bad: bool = False
    """Whether the newest version of the allowlist has errors, so that an older one is in force."""
    last_delivery_s: float | None = None
    """The age of the newest webhook; None when there was none."""
    gate_overdue_s: float = 0.0
    """How long the most overdue gate has waited for its next judgement; 0 when none is overdue."""


T = TypeVar("T")
ChooseRows = Callable[[Sequence[T]], Sequence[T]]
"""Chooses the backends that are read in full, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSummary:
    name: RepoName
    level: Level
    device: str | None
    oncalls: tuple[str, ...]
    hardware: str | None
    name_only: bool
    """Only its name is shown, by its owners' choice."""
    figures: Figures | None
    """None for backends whose results are not recorded (L1) or not shown."""
    sent: int = 0
    """Dispatches sent in the window, also for backends without figures."""
    waiting: int = 0
    parked: int = 0
    last_sent_at: datetime | None = None
    suspended: bool = False
    silent: bool = False
    never_reported: bool = False
    """It should report, and no report of it has ever arrived."""
    alarm: str | None = None
    demotion: Demotion | None = None
    """By its level standing: in silent mode at L3; alarmed or downgraded at L4."""
    probe: bool = False
    """It tests the relay, not the upstream."""
    hidden: bool = False
    """Shown to administrators only."""

    @property
    def last_result(self) -> LastResult | None:
        return self.figures.last_result if self.figures else None


@dataclass(frozen=True, slots=True)
class Probe:
    """A repository that tests the relay itself."""

    name: RepoName
    last_result: LastResult | None
    stale: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayHealth:
    deliveries: int
    last_delivery_at: datetime | None
    last_result_at: datetime | None
    waiting: int
    parked: int
    lag_s: float | None
    """Age of the oldest due effect; None when nothing is due."""
    paused_at: datetime | None
    probes: tuple[Probe, ...] = ()
    installed: bool = False
    """Whether the App's installation on the upstream is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowlistState:
    """The version in force, and the problems of the newest reading if that is invalid."""

    version: int | None
    source: str | None
    read_at: datetime | None
    newest_is_bad: bool
    problems: tuple[AllowlistProblem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    upstream: RepoName
    span: Span
    kind: ResultKind
    at: datetime
    cursor: int
    """The newest change in this view; live updates continue from here."""
    ingests: bool
    """Whether another relay sends results."""
    health: RelayHealth
    allowlist: AllowlistState
    levels: tuple[tuple[Level, tuple[BackendSummary, ...]], ...]
    """L4 first; a level without backends is left out. Where rows were chosen, the figures here have no parts."""
    rows: tuple[BackendSummary, ...] = ()
    """The chosen backends, in full and in order; all of them where none were chosen."""
    history: HistoryState = HistoryState.OWN
    in_tree: InTreeTrend | None = None
    """The upstream's own CI on its default branch; None where no check was recorded there."""
    attention: Attention = field(default_factory=Attention)

    @property
    def backends(self) -> tuple[BackendSummary, ...]:
        return tuple(backend for _, group in self.levels for backend in group)

    @property
    def tally(self) -> Tally:
        """The total of all backends but the probes, which fail on purpose."""
        counted = (backend.figures for backend in self.backends if backend.figures and not backend.probe)
        return sum((figures.tally for figures in counted), Tally())


@row_dataclass(frozen=True, slots=True, kw_only=True)
class JobCell:
    """A job in a matrix, which may have thousands: its key, and what decides how its cell looks."""

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
    event: str
    head_sha: str | None
    started_at: datetime
    execution_s: float | None
    expected: Conclusion | None = None
    """The conclusion that counts as a pass, where the entry expects one."""

    @property
    def counted(self) -> CountedAs:
        return COUNTED_AS[self.state, self.conclusion, self.expected]


@row_dataclass(frozen=True, slots=True, kw_only=True)
class JobView(JobCell):
    marks: tuple[str, ...]
    number: int | None
    url: str | None
    artifact_url: str | None
    completed_at: datetime | None
    queue_s: float | None
    tests_passed: int | None
    tests_failed: int | None
    tests_skipped: int | None
    tests_total: int | None
    verification: Verification = Verification.UNCHECKED
    ended: EndedAs | None = None
    """Its category in the sums; None while it runs, and for a test."""
    github_conclusion: str | None = None
    """Its conclusion on GitHub, where that was looked up."""
    swept_at: datetime | None = None
    """When it was timed out as silent."""
    failed_tests: tuple[FailedTestView, ...] = ()
    failed_tests_more: int = 0
    """Failed tests beyond the ones listed."""
    first_error: str | None = None
    """The first error line of its log, where its report has an excerpt; read with the failed tests."""
    verdict: VerdictView | None = None
    """What its failure means; None for a job that did not fail, and where verdicts were not read."""


class DispatchAnswer(StrEnum):
    """The result of looking up an unreported dispatch in GitHub Actions."""

    RUNNING = "running"
    NEVER_STARTED = "never_started"
    """No run has started since."""
    UNANSWERED = "unanswered"
    """Runs have started since, but none of them names the delivery."""
    UNREPORTED = "unreported"
    """Its runs have ended."""
    NOT_LISTENING = "not_listening"
    """Such events have not been answered for two weeks, so no look-up was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchView:
    delivery: str
    downstream: str
    level: Level
    state: DispatchState
    reason: str | None
    event: str
    action: str | None
    number: int | None
    head_sha: str | None
    test: bool
    unsure: bool
    created_at: datetime
    sent_at: datetime | None
    superseded_at: datetime | None
    answer: DispatchAnswer | None = None
    trimmed: tuple[str, ...] = ()
    """The parts that were cut from the payload to fit GitHub's limit, as in `relay.trimmed`."""
    jobs: tuple[JobView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryView:
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
    dispatches: tuple[DispatchView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    upstream: RepoName
    downstream: RepoName | None = None
    delivery: str | None = None
    number: int | None = None
    state: JobState | None = None
    verdict: VerdictKind | None = None
    """Only failed jobs to which the rules give this verdict."""
    after: tuple[str | int, ...] | None = None
    """The cursor: the key of the last job of the page before."""
    limit: int = 50


@dataclass(frozen=True, slots=True)
class JobPage:
    jobs: tuple[JobView, ...]
    next: tuple[str | int, ...] | None


@dataclass(frozen=True, slots=True)
class OutboxState:
    """The open effects of all backends; since when dispatching is paused, if it is."""

    waiting: int = 0
    claimed: int = 0
    parked: int = 0
    oldest_due_at: datetime | None = None
    paused_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    deliveries: tuple[DeliveryView, ...]
    next: tuple[str | int, ...] | None
    cursor: int = 0
    outbox: OutboxState = OutboxState()


@dataclass(frozen=True, slots=True)
class EffectCount:
    kind: str
    state: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedEffect:
    effect_id: int
    kind: str
    target: str
    delivery: str | None
    attempts: int
    unsure: bool
    created_at: datetime
    parked_at: datetime | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class EffectsView:
    counts: tuple[EffectCount, ...]
    lag_s: float | None
    parked: tuple[ParkedEffect, ...]


@dataclass(frozen=True, slots=True)
class ListedBackend:
    name: RepoName
    level: Level
    device: str | None
    oncalls: tuple[str, ...]
    hardware: str | None
    events: tuple[str, ...]
    hidden: bool = False
    """Listed for administrators only."""


@dataclass(frozen=True, slots=True)
class AllowlistView:
    state: AllowlistState
    backends: tuple[ListedBackend, ...]


@dataclass(frozen=True, slots=True)
class Change:
    change_id: int
    kind: str
    upstream: str
    downstream: str | None
    delivery: str | None
    number: int | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes after an id: `upto` is the last one read, visible or hidden; the store has `oldest` to `newest`."""

    items: tuple[Change, ...]
    upto: int
    oldest: int
    newest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """Metrics of one upstream: whether it has an allowlist, and how far its outbox is behind."""

    upstream: RepoName
    has_allowlist: bool
    waiting: int
    parked: int
    lag_s: float | None
    open_gates: tuple[tuple[str, int], ...] = ()
    """The number of open pull requests' heads with a failed, pending or passed gate."""
    queues: tuple[EffectQueue, ...] = ()
    """Only the kinds with an open effect."""
    watched: AlarmFacts = field(default_factory=AlarmFacts)
    health: Health | None = None
    """None while it is unknown."""
    contradicted: int = 0
    """How many verdicts people contradicted in the last 30 days."""
    history_unfed: int = 0
    """The number of rows not copied to ClickHouse yet; counted up to 100,000."""
    history_lag_s: float | None = None
    """How long the oldest result has waited for ClickHouse; None where that is not used."""
