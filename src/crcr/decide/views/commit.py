"""The pages of a pull request and of a commit, as values.

`gate_view` shows a judged gate without the backends that the reader may not see. The check on GitHub says the same in
Markdown (`checks.text.gate`); here it is plain text, with commands in backquotes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from crcr.decide.checks.commit import BackendResults
from crcr.decide.checks.gate import BackendJudgement, GateJudgement, GateState, SubjectJudgement
from crcr.decide.checks.status import GateStatus, JudgedPart
from crcr.decide.checks.text.gate import gate_title, head_named
from crcr.decide.checks.text.parts import advice_for, doubt_words, sort_worst_first
from crcr.decide.checks.text.verdict import part_verdict, verdict_text
from crcr.decide.github.commit_origin import CommitPlace
from crcr.decide.health.texts import GatePublication
from crcr.decide.model import DeliveryState, DispatchState, Level, RepoName
from crcr.decide.notices.announcements import AnnouncementAnswer, AnnouncementState
from crcr.decide.pairs.depends_on import PullReference
from crcr.decide.pairs.pair import DependencyState, Refusal, pair_sentence
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.views.bisections import CulpritBisection
from crcr.decide.views.failures import CommitGroup, VerdictView
from crcr.decide.views.in_tree import InTreeView
from crcr.decide.views.overview import DispatchAnswer, DispatchView, JobView


class PullState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    MERGED = "merged"


class GateShown(StrEnum):
    """The state of a commit's gate on pages."""

    FAILED = "failed"
    PENDING = "pending"
    PASSED = "passed"
    OVER = "over"
    """The commit is no longer to be merged, and the gate was never decided."""
    NONE = "none"
    """The upstream has no gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePart:
    """One job, or an expected job that has not reported, with its status and reason."""

    name: str | None
    standing: GateStatus
    reason: str
    doubt: str | None = None
    waived_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRow:
    backend: RepoName
    level: Level
    standing: GateStatus
    parts: tuple[GatePart, ...]
    """Worst first, without those that passed."""
    parts_left_out: int
    passed: int
    since: datetime
    deadline: datetime | None
    advice: str | None
    oncalls: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSubject:
    """A pull request, or a merge group (`number` is None), that would merge the commit."""

    number: int | None
    numbers: tuple[int, ...] | None
    state: GateState
    in_doubt: bool
    reused_from: str | None
    rows: tuple[GateRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    state: GateShown
    title: str | None
    """None when it would name a hidden backend."""
    judged_at: datetime
    whole: bool = True
    """Whether every gating backend is shown."""
    subjects: tuple[GateSubject, ...] = ()
    unpublished: GatePublication | None = None
    """Why it is not published yet; None when it is."""
    decided_at: datetime | None = None
    """When it came to this state; None where that is not recorded."""


class BackendState(StrEnum):
    """The state of a commit's backend on pages; states that need a person come first."""

    FAILED = "failed"
    PARKED = "not delivered"
    NEVER_STARTED = "never started"
    UNANSWERED = "unanswered"
    UNREPORTED = "ran and did not report"
    RUNNING = "running"
    STARTED = "started, no report yet"
    NO_REPORT = "no report yet"
    WAITING = "waiting to be sent"
    HELD = "held"
    PASSED = "passed"
    INCONCLUSIVE = "inconclusive"
    """All reported jobs were cancelled, skipped or neutral."""
    NOTIFIED = "notified"
    NOT_LISTENING = "not listening"
    CANCELLED = "cancelled"
    NOT_CONCERNED = "not concerned"


_UNSENT = {
    DispatchState.HELD: BackendState.HELD,
    DispatchState.WAITING: BackendState.WAITING,
    DispatchState.PARKED: BackendState.PARKED,
    DispatchState.CANCELLED: BackendState.CANCELLED,
    DispatchState.LEFT_OUT: BackendState.NOT_CONCERNED,
}
_UNREPORTED = {
    None: BackendState.NO_REPORT,
    DispatchAnswer.RUNNING: BackendState.STARTED,
    DispatchAnswer.NEVER_STARTED: BackendState.NEVER_STARTED,
    DispatchAnswer.UNANSWERED: BackendState.UNANSWERED,
    DispatchAnswer.UNREPORTED: BackendState.UNREPORTED,
    DispatchAnswer.NOT_LISTENING: BackendState.NOT_LISTENING,
}
_OF_JOBS = (
    (CountedAs.FAILURE, BackendState.FAILED),
    (CountedAs.RUNNING, BackendState.RUNNING),
    (CountedAs.SUCCESS, BackendState.PASSED),
)


def backend_state(dispatch: DispatchView, jobs: Sequence[JobView], *, reports: bool) -> BackendState:
    """Return the worst state of its jobs; without any, the state of the dispatch."""
    counted = {job.counted for job in jobs}
    return state_of_dispatch(dispatch.state, dispatch.answer, counted, reports=reports)


def state_of_dispatch(
    dispatch: DispatchState, answer: DispatchAnswer | None, counted: Collection[CountedAs], *, reports: bool
) -> BackendState:
    """Like `backend_state`; `counted` is what its jobs count as, which lists have in place of the jobs."""
    if not reports:
        return _UNSENT.get(dispatch, BackendState.NOTIFIED)
    return state_of_counted(counted) if counted else _UNSENT.get(dispatch) or _UNREPORTED[answer]


def state_of_jobs(jobs: Sequence[JobView]) -> BackendState:
    return state_of_counted({job.counted for job in jobs})


def state_of_counted(counted: Collection[CountedAs]) -> BackendState:
    return next((state for counted_as, state in _OF_JOBS if counted_as in counted), BackendState.INCONCLUSIVE)


_JOBS_FIRST = (CountedAs.FAILURE, CountedAs.RUNNING, CountedAs.OTHER, CountedAs.SUCCESS)
_RANKS = {counted: rank for rank, counted in enumerate(_JOBS_FIRST)}


def job_sort_key(job: JobView) -> tuple[int, str, str, str]:
    return _RANKS[job.counted], job.workflow_name.lower(), job.job_name.lower(), job.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """When a backend's jobs ran; silent jobs ended when they were timed out."""

    started_at: datetime | None = None
    failed_at: datetime | None = None
    """When the first of them failed."""
    ended_at: datetime | None = None
    """None while one of them runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBackend:
    """One backend's results for a delivery, or its self-reports about a commit."""

    name: RepoName
    level: Level
    """When the delivery was recorded."""
    level_now: Level
    device: str | None
    oncalls: tuple[str, ...]
    state: BackendState
    delivery: str
    """The key of its jobs; for self-reports the commit's SHA."""
    event: str
    dispatch: DispatchView | None
    """None for results without a dispatch, such as a nightly run."""
    spell: Spell
    jobs: tuple[JobView, ...]
    """Failed first; only the attempts and runs that count."""
    jobs_left_out: int
    verdict: VerdictView | None = None
    """`missing` where an expected result has not come in its time."""


def backend_sort_key(backend: CommitBackend) -> tuple[int, int, RepoName]:
    """Sort by level, the highest first, then by state, those that need a person first."""
    return -backend.level, tuple(BackendState).index(backend.state), backend.name


class WaiverState(StrEnum):
    IN_FORCE = "in force"
    TAKEN_BACK = "taken back"
    RUN_OUT = "run out"
    OTHER_COMMIT = "of another commit"
    OTHER_BASE = "of another base"
    OVER = "over"
    """Its pull request is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaiverView:
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


@dataclass(frozen=True, slots=True)
class WaiverPage:
    waivers: tuple[WaiverView, ...]
    next: tuple[str | int, ...] | None
    cursor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckView:
    name: str
    round: int
    status: str
    conclusion: str | None
    title: str | None
    published_at: datetime | None


@dataclass(frozen=True, slots=True)
class StateCount:
    state: DispatchState
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A delivery on a timeline, with the number of its dispatches in each state."""

    guid: str
    event: str
    action: str | None
    state: DeliveryState
    reason: str | None
    head_sha: str | None
    superseded: bool
    received_at: datetime
    dispatches: tuple[StateCount, ...]


class MomentKind(StrEnum):
    """Kinds of moments between a webhook and its results, in their usual order."""

    ARRIVED = "arrived"
    FIRST_SENT = "first dispatch sent"
    SENT = "dispatch sent"
    """The only one."""
    LAST_SENT = "last dispatch sent"
    STARTED = "first job started"
    FAILING = "first job failed"
    """Of a backend that still runs."""
    ENDED = "backend ended"
    WAIVED = "waiver given"
    TAKEN_BACK = "waiver taken back"
    JUDGED = "gate last judged"
    PUBLISHED = "gate published"
    USED = "waiver used"
    QUEUED = "merge group formed"
    UNQUEUED = "merge group ended"
    CLOSED = "closed"
    MERGED = "merged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One line of a timeline; what does not apply to its kind is None."""

    kind: MomentKind
    at: datetime
    subject: str | None = None
    """The backend."""
    job: str | None = None
    event: str | None = None
    number: int | None = None
    """How many dispatches were sent."""
    result: BackendState | None = None
    gate: GateShown | None = None
    who: str | None = None
    head_sha: str | None = None
    superseded: bool = False
    """Of an older commit."""
    arrival: Arrival | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A merge group; `numbers` is None while its pull requests are unknown."""

    head_sha: str
    head_ref: str
    base_ref: str
    numbers: tuple[int, ...] | None
    reused_from: str | None
    gate: GateShown | None
    created_at: datetime
    destroyed_at: datetime | None
    unpublished: GatePublication | None = None
    """Why its gate is not published yet; None when it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedBackend:
    """A backend that an announced breakage concerns, or concerned."""

    name: RepoName
    oncalls: tuple[str, ...]
    notified_at: datetime | None
    """None until its people are told, within a minute, and where no channel takes it."""
    ended_at: datetime | None
    """When the announcement ended for it."""
    has_channel: bool | None
    """Whether a channel takes its notices; None until that is looked up, within a minute."""
    answers: tuple[AnnouncementAnswer, ...]
    """Oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncementView:
    """A breakage that a label announces."""

    state: AnnouncementState
    note: str
    """The paragraph for downstreams; empty where it is missing."""
    changed_at: datetime | None
    """When the paragraph was last changed."""
    backends: tuple[AnnouncedBackend, ...]
    """Those without an answer first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairView:
    """A pull request of the upstream, with one of a backend that it depends on; its results count nowhere."""

    number: int
    """Of the upstream's pull request."""
    title: str
    """Of the same."""
    backend: RepoName
    dependency: int
    """The number of the backend's pull request."""
    state: DependencyState
    refusal: Refusal | None
    """Why it is not tested."""
    sentence: str
    head_sha: str | None
    """Of the backend's pull request, where it counts."""
    approved_by: str | None
    requested_by: str | None
    """Who requested it by a comment."""
    status: BackendState | None = None
    """How the backend does with both; None while there is no dispatch for their present heads."""
    result: CommitBackend | None = None
    """The same with its jobs."""


_PAIR_WORDS = {
    BackendState.PASSED: "passed",
    BackendState.FAILED: "failed",
    **dict.fromkeys(
        (BackendState.RUNNING, BackendState.STARTED, BackendState.NO_REPORT, BackendState.WAITING), "waiting"
    ),
}


def describe_pair(
    reference: PullReference, state: DependencyState, refusal: Refusal | None, status: BackendState | None
) -> str:
    word = _PAIR_WORDS.get(status, status.value) if status else None
    sentence = pair_sentence(reference, state, refusal, word)
    return sentence[:1].upper() + sentence[1:] if not sentence.startswith(str(reference)) else sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class PullView:
    upstream: RepoName
    number: int
    at: datetime
    cursor: int
    title: str
    author: str
    state: PullState
    draft: bool
    labels: tuple[str, ...]
    base_ref: str
    head_sha: str
    gate: GateView | None
    """None before the head is judged."""
    backends: tuple[CommitBackend, ...]
    """As of the newest delivery of the head."""
    after_closing: tuple[CommitBackend, ...]
    waivers: tuple[WaiverView, ...]
    checks: tuple[CheckView, ...]
    timeline: tuple[Moment, ...]
    """Newest first."""
    timeline_left_out: int
    merge_groups: tuple[GroupView, ...]
    groups: tuple[CommitGroup, ...] = ()
    """The failures of its backends by fingerprint, those of the most backends first."""
    in_tree: InTreeView | None = None
    """The upstream's own CI on its head; None where no check was recorded."""
    bisections: tuple[CulpritBisection, ...] = ()
    """Those that found the commit that it became to have broken a job."""
    announcement: AnnouncementView | None = None
    """The breakage that it announces to backends; None where its label is not set."""
    pairs: tuple[PairView, ...] = ()
    """The pull requests of backends that it depends on, in the order in which they count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitView:
    upstream: RepoName
    head_sha: str
    at: datetime
    cursor: int
    event: str
    ref: str | None
    place: CommitPlace | None
    """Its place in the upstream's history, once a self-report names it."""
    numbers: tuple[int, ...]
    """The pull requests that have it, or had it, as their head."""
    group: GroupView | None
    gate: GateView | None
    backends: tuple[CommitBackend, ...]
    waivers: tuple[WaiverView, ...]
    checks: tuple[CheckView, ...]
    timeline: tuple[Moment, ...]
    timeline_left_out: int
    groups: tuple[CommitGroup, ...] = ()
    in_tree: InTreeView | None = None
    bisections: tuple[CulpritBisection, ...] = ()
    """Those that found this commit to have broken a job."""


_MOST_PARTS = 10
_BY_SEVERITY = tuple(GateStatus)


def gate_view(
    judgement: GateJudgement, public: Collection[str], judged_at: datetime, head_sha: str
) -> GateView:
    """Return the gate's view; `public` are the keys of the visible backends."""
    counted = [backend.backend for judged in judgement.subjects for backend in judged.backends]
    whole = all(_is_visible(backend, public) for backend in counted)
    return GateView(
        state=GateShown(judgement.state.value),
        title=gate_title(judgement) if whole else None,
        judged_at=judged_at,
        whole=whole,
        subjects=tuple(_subject_view(judged, public, head_sha) for judged in judgement.subjects),
    )


def _is_visible(backend: BackendResults, public: Collection[str]) -> bool:
    return backend.name.key in public


def _subject_view(judged: SubjectJudgement, public: Collection[str], head_sha: str) -> GateSubject:
    head = head_named(judged.subject, head_sha)
    reused = judged.subject.reused_from
    shown = [
        backend for backend in judged.backends if reused is None and _is_visible(backend.backend, public)
    ]
    return GateSubject(
        number=judged.subject.number,
        numbers=judged.subject.numbers,
        state=judged.state,
        in_doubt=judged.subject.in_doubt,
        reused_from=reused,
        rows=tuple(
            _gate_row(_without_hidden(backend, public), head) for backend in sorted(shown, key=_severity)
        ),
    )


def _severity(judged: BackendJudgement) -> tuple[int, str]:
    return _BY_SEVERITY.index(judged.standing), judged.backend.name.key


def _without_hidden(judged: BackendJudgement, public: Collection[str]) -> BackendJudgement:
    """Leave out the names of hidden entries that a backend may have been renamed to."""
    backend = judged.backend
    names = tuple(name for name in backend.possible_renames if name.key in public)
    if names == backend.possible_renames:
        return judged
    parts = tuple(replace(part, reason="checking for a rename") for part in judged.parts)
    return replace(judged, backend=replace(backend, possible_renames=names), parts=parts)


def _gate_row(judged: BackendJudgement, head: str | None) -> GateRow:
    backend = judged.backend
    deciding_parts = [
        part for part in sort_worst_first(judged.parts) if part.standing is not GateStatus.PASSED
    ]
    return GateRow(
        backend=_listed_name(backend),
        level=backend.level,
        standing=judged.standing,
        parts=tuple(_part_view(part) for part in deciding_parts[:_MOST_PARTS]),
        parts_left_out=max(0, len(deciding_parts) - _MOST_PARTS),
        passed=len(judged.parts) - len(deciding_parts),
        since=judged.since,
        deadline=judged.deadline if judged.standing is GateStatus.WAITING else None,
        advice=advice_for(judged, head, "`{}`".format),
        oncalls=backend.entry.oncalls if backend.entry else (),
    )


def _listed_name(backend: BackendResults) -> RepoName:
    """Return the name as the allowlist writes it."""
    return backend.entry.name if backend.entry else backend.name


def _part_view(part: JudgedPart) -> GatePart:
    return GatePart(
        name=part.name,
        standing=part.standing,
        reason=_reason_with_excuse(part),
        doubt=(doubt_words(part.job) or None) if part.job else None,
        waived_by=part.waiver.who if part.waiver else None,
    )


def _reason_with_excuse(part: JudgedPart) -> str:
    verdict = part_verdict(part) if part.standing is GateStatus.EXCUSED else None
    return f"{part.reason}, {verdict_text(verdict)}" if verdict else part.reason
