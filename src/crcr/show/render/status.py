"""Words for states: a letter, a word and a tone for each, so that colour is never the only sign."""

from dataclasses import dataclass
from datetime import UTC, datetime

from crcr.decide.bisection.search import BisectionOutcome, CommitFinding, RunResult
from crcr.decide.checks.commit import Verification
from crcr.decide.checks.status import GateStatus
from crcr.decide.github.commit_origin import CommitStanding
from crcr.decide.health.relay import HealthState
from crcr.decide.health.texts import called_service, effect_class, waiting_words
from crcr.decide.levels.criteria import Met
from crcr.decide.levels.standings import BackendLevel, LevelChangeKind
from crcr.decide.model import Conclusion, DeliveryState, DispatchState, EffectState, JobState, Level
from crcr.decide.notices.notice import NoticeKind
from crcr.decide.statistics.figures import CountedAs, LastResult, count_as
from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.attention import AttentionKind
from crcr.decide.views.commit import BackendState, GateShown, PullState, WaiverState
from crcr.decide.views.logs import EffectView
from crcr.decide.views.operator import EffectLine
from crcr.decide.views.overview import DispatchAnswer, DispatchView, JobCell, JobView, Probe


@dataclass(frozen=True, slots=True)
class Status:
    letter: str
    word: str
    tone: str


SUCCESS = Status("O", "success", "ok")
RUNNING = Status("?", "running", "run")
SILENT = Status("T", "went silent", "bad")

_COMPLETED = {
    Conclusion.SUCCESS: SUCCESS,
    Conclusion.FAILURE: Status("X", "failure", "bad"),
    Conclusion.TIMED_OUT: Status("T", "timed out", "bad"),
    Conclusion.ACTION_REQUIRED: Status("A", "action required", "bad"),
    Conclusion.NONE: Status("X", "no conclusion", "bad"),
    Conclusion.CANCELLED: Status("C", "cancelled", "off"),
    Conclusion.SKIPPED: Status("S", "skipped", "off"),
    Conclusion.NEUTRAL: Status("N", "neutral", "off"),
}

DISPATCHES = {
    DispatchState.HELD: Status("H", "held", "wait"),
    DispatchState.WAITING: Status("Q", "waiting", "wait"),
    DispatchState.SENT: Status("→", "sent", "ok"),
    DispatchState.PARKED: Status("!", "undelivered", "bad"),
    DispatchState.CANCELLED: Status("C", "cancelled", "off"),
    DispatchState.LEFT_OUT: Status("—", "not affected", "off"),
}

DELIVERIES = {
    DeliveryState.ACCEPTED: Status("O", "accepted", "off"),
    DeliveryState.IN_DOUBT: Status("?", "in doubt", "wait"),
    DeliveryState.SUPERSEDED: Status("—", "superseded", "off"),
}

EFFECTS = {
    EffectState.PARKED: Status("!", "undelivered", "bad"),
    EffectState.WAITING: Status("Q", "waiting", "wait"),
    EffectState.CLAIMED: Status("?", "in progress", "run"),
    EffectState.DONE: Status("O", "done", "ok"),
    EffectState.CANCELLED: Status("C", "cancelled", "off"),
}

_EFFECT_WORDS = {
    "look_up": "check run status",
    "ask_files": "list changed files",
    "feed_history": "update ClickHouse",
    "route_notices": "choose channels of notices",
}

ANSWERS = {
    DispatchAnswer.RUNNING: "GitHub shows a run; no report yet",
    DispatchAnswer.NEVER_STARTED: "never started: GitHub lists no run since the dispatch",
    DispatchAnswer.UNANSWERED: "unanswered: runs started since, and none of them names this delivery",
    DispatchAnswer.UNREPORTED: "its runs ended without a report",
    DispatchAnswer.NOT_LISTENING: "not listening: it has not answered such events for two weeks",
}

GATES = {
    GateShown.FAILED: Status("X", "failed", "bad"),
    GateShown.PENDING: Status("?", "pending", "run"),
    GateShown.PASSED: Status("O", "passed", "ok"),
    GateShown.OVER: Status("C", "ended undecided", "off"),
    GateShown.NONE: Status("—", "no gate", "off"),
}

GATE_STATUSES = {
    GateStatus.FAILED: Status("X", "failed", "bad"),
    GateStatus.ERRORED: Status("E", "errored", "bad"),
    GateStatus.MISSING: Status("M", "missing", "bad"),
    GateStatus.DECLINED: Status("D", "declined", "bad"),
    GateStatus.WAITING: Status("Q", "waiting", "wait"),
    GateStatus.HELD: Status("H", "held", "wait"),
    GateStatus.WAIVED: Status("W", "waived", "off"),
    GateStatus.EXCUSED: Status("~", "excused", "off"),
    GateStatus.NOT_CONCERNED: Status("—", "not affected", "off"),
    GateStatus.PASSED: Status("O", "passed", "ok"),
}

_BAD = (
    (BackendState.FAILED, "X"),
    (BackendState.NEVER_STARTED, "M"),
    (BackendState.UNANSWERED, "M"),
    (BackendState.UNREPORTED, "M"),
    (BackendState.PARKED, "!"),
)
_WAITING = ((BackendState.NO_REPORT, "Q"), (BackendState.WAITING, "Q"), (BackendState.HELD, "H"))
_ASIDE = (
    (BackendState.INCONCLUSIVE, "N"),
    (BackendState.NOT_LISTENING, "—"),
    (BackendState.CANCELLED, "C"),
    (BackendState.NOT_CONCERNED, "—"),
    (BackendState.NOTIFIED, "→"),
)
_WORDS = {BackendState.NOT_CONCERNED: "not affected", BackendState.NOTIFIED: "notified only"}
BACKENDS = {
    BackendState.PASSED: Status("O", BackendState.PASSED, "ok"),
    **{state: Status("?", state, "run") for state in (BackendState.RUNNING, BackendState.STARTED)},
    **{state: Status(letter, state, "bad") for state, letter in _BAD},
    **{state: Status(letter, state, "wait") for state, letter in _WAITING},
    **{state: Status(letter, _WORDS.get(state, state), "off") for state, letter in _ASIDE},
}


@dataclass(frozen=True, slots=True)
class Legend:
    """The meaning of all letters and colours of a matrix."""

    jobs: tuple[Status, ...]
    events: tuple[Status, ...]
    """Those of an event's result that no job has."""
    colours: tuple[tuple[str, str], ...]


LEGEND = Legend(
    jobs=(
        SUCCESS,
        Status("X", "failed or no conclusion", "bad"),
        Status("T", "timed out or silent", "bad"),
        _COMPLETED[Conclusion.ACTION_REQUIRED],
        RUNNING,
        _COMPLETED[Conclusion.CANCELLED],
        _COMPLETED[Conclusion.SKIPPED],
        _COMPLETED[Conclusion.NEUTRAL],
    ),
    events=(
        Status("Q", "waiting, or no report yet", "wait"),
        Status("H", "held", "wait"),
        Status("M", "missing: never started, unanswered or unreported", "bad"),
        Status("!", "undelivered", "bad"),
        Status("→", "notified only", "off"),
        Status("—", "not affected, not listening, or no jobs", "off"),
    ),
    colours=(
        ("ok", "passed"),
        ("expected", "failed, as expected"),
        ("bad", "failed"),
        ("run", "running"),
        ("wait", "waiting"),
        ("off", "does not count, or some shards did not report"),
    ),
)

FOLDED = (BackendState.PASSED, BackendState.NOTIFIED, BackendState.NOT_CONCERNED)
"""Backends that need no attention: the page of a commit folds them into one line."""

PULLS = {
    PullState.OPEN: Status("○", "open", "ok"),
    PullState.MERGED: Status("●", "merged", "wait"),
    PullState.CLOSED: Status("C", "closed", "off"),
}

WAIVERS = {
    WaiverState.IN_FORCE: Status("W", "in force", "warn"),
    WaiverState.TAKEN_BACK: Status("C", "revoked", "off"),
    WaiverState.RUN_OUT: Status("—", "expired", "off"),
    WaiverState.OTHER_COMMIT: Status("—", "for another commit", "off"),
    WaiverState.OTHER_BASE: Status("—", "for another base", "off"),
    WaiverState.OVER: Status("—", "ended", "off"),
}

_NOTICE_SIGNS = {
    **dict.fromkeys((NoticeKind.RED, NoticeKind.GATE_FAILED), ("X", "bad")),
    **dict.fromkeys(
        (NoticeKind.SILENT, NoticeKind.DEMOTED, NoticeKind.SETUP_BROKEN, NoticeKind.BREAKING), ("!", "warn")
    ),
    **dict.fromkeys(
        (NoticeKind.ELIGIBLE, NoticeKind.BISECTED, NoticeKind.NOT_ELIGIBLE, NoticeKind.TEST), ("~", "off")
    ),
}
NOTICES = {
    kind: Status(sign, kind.value.replace("_", " "), tone)
    for kind, (sign, tone) in ((kind, _NOTICE_SIGNS.get(kind, ("O", "ok"))) for kind in NoticeKind)
}
"""What is not bad news is good news."""
NOTICE_MESSAGES = {
    "waiting": Status("?", "waiting", "run"),
    "sent": Status("O", "sent", "ok"),
    "dropped": Status("—", "not sent", "off"),
}

BISECTIONS = {
    None: Status("?", "running", "run"),
    BisectionOutcome.FOUND: Status("O", "found", "ok"),
    BisectionOutcome.NARROWED: Status("~", "narrowed", "warn"),
    BisectionOutcome.NOT_REPRODUCED: Status("~", "not reproduced", "warn"),
    BisectionOutcome.DOWNSTREAM_CHANGED: Status("~", "downstream changed", "warn"),
    BisectionOutcome.NO_ANSWER: Status("T", "no answer", "bad"),
    BisectionOutcome.BUDGET_SPENT: Status("—", "budget spent", "off"),
    BisectionOutcome.STOPPED: Status("C", "stopped", "off"),
    BisectionOutcome.WITHDRAWN: Status("C", "withdrawn", "off"),
}
"""By outcome; a running one has none."""

FINDINGS = {
    CommitFinding.GOOD: Status("O", "good", "ok"),
    CommitFinding.BAD: Status("X", "bad", "bad"),
    CommitFinding.UNCLEAR: Status("~", "unclear", "warn"),
    CommitFinding.OPEN: Status("?", "awaited", "run"),
    None: Status("·", "not tested", "none"),
}
"""What the runs of a bisection say about a commit."""

RUN_RESULTS = {
    RunResult.PASSED: Status("O", "passed", "ok"),
    RunResult.FAILED: Status("X", "failed", "bad"),
    RunResult.FAILED_OTHERWISE: Status("~", "failed otherwise", "warn"),
    RunResult.NO_RESULT: Status("—", "no result", "off"),
    None: RUNNING,
}
NOT_AWAITED = Status("—", "not awaited", "off")
"""A run without a result when its bisection ended."""

DOUBTS = {
    Verification.DISPUTED: "GitHub shows another result, and the worse of both counts",
    Verification.NOT_VERIFIABLE: "GitHub shows no such job",
    Verification.SELF_REPORTED: "only its owner can query this CI",
}

PLACES = {
    CommitStanding.UNCHECKED: (
        "being checked",
        "GitHub has not confirmed yet whether this commit belongs to the upstream",
    ),
    CommitStanding.UNANSWERED: (
        "not checked",
        "For two weeks GitHub could not say whether this commit belongs to the upstream",
    ),
    CommitStanding.BASE: ("in the upstream's history", "A branch of the upstream has this commit"),
    CommitStanding.ELSEWHERE: (
        "not in the upstream's history",
        "Neither the default branch nor nightly nor a release branch has this commit: it may come from a fork",
    ),
    CommitStanding.UNKNOWN: (
        "commit unknown",
        "The report named no commit, or one that GitHub does not know; it counts in the backend's own numbers only",
    ),
}
"""Whether the commit of a nightly run belongs to the upstream: a short label, and its explanation."""

HEALTH = {
    HealthState.GREEN: Status("O", "relay: green", "ok"),
    HealthState.AMBER: Status("!", "relay: amber", "warn"),
    HealthState.RED: Status("X", "relay: red", "bad"),
}

RELAY = {
    HealthState.GREEN: Status("O", "relay green", "ok"),
    HealthState.AMBER: Status("!", "relay amber", "warn"),
    HealthState.RED: Status("X", "relay red", "bad"),
    None: Status("?", "relay unknown", "warn"),
}
"""The chip of the front page; None while the health cannot be read."""

ATTENTION = {
    AttentionKind.BACKEND_RED: Status("X", "turned red", "bad"),
    AttentionKind.BACKEND_SILENT: Status("!", "silent", "warn"),
    AttentionKind.PULL_BLOCKED: Status("X", "blocked", "bad"),
    AttentionKind.IN_TREE_RED: Status("X", "base red", "bad"),
    AttentionKind.BASE_RED: Status("X", "base red", "bad"),
    AttentionKind.BACKEND_SUSPENDED: Status("C", "suspended", "off"),
    AttentionKind.BACKEND_DEMOTED: Status("!", "demoted", "warn"),
}

_LEVEL_STATUSES = {
    "silent": Status("!", "silent mode", "warn"),
    "alarmed": Status("X", "alarmed", "bad"),
    "downgraded": Status("!", "downgraded", "warn"),
    "overridden": Status("!", "overridden", "warn"),
    "unevaluated": Status("?", "not evaluated", "off"),
    "probe": Status("?", "probe", "off"),
    "l1": Status("N", "notified", "off"),
    "eligible": Status("✓", "eligible", "ok"),
    "lacks": Status("-", "not yet", "off"),
    "in order": Status("O", "in order", "ok"),
}
"""By the key of a backend's summary on the page of levels."""
MET = {
    Met.MET: Status("✓", "met", "ok"),
    Met.NOT_MET: Status("✗", "not met", "bad"),
    Met.TOO_FEW: Status("?", "too few", "warn"),
}
LEVEL_CHANGES = {
    LevelChangeKind.ELIGIBLE: "is eligible for L3",
    LevelChangeKind.NOT_ELIGIBLE: "is no longer eligible for L3",
    LevelChangeKind.DEMOTED: "is demoted: no checks",
    LevelChangeKind.ALARMED: "is alarmed at L4",
    LevelChangeKind.RECOVERED: "has recovered",
}


def level_status(backend: BackendLevel) -> Status:
    return _LEVEL_STATUSES[backend.summary_key]


FINDING_SIGNS = {
    "ok": Status("✓", "done", "ok"),
    "warning": Status("!", "check", "warn"),
    "problem": Status("✗", "to do", "bad"),
    "unknown": Status("?", "not known", "warn"),
}
"""Of a finding about the set-up, by its state."""

PROBE_OK = Status("O", "ok", "ok")
PROBE_OFF = Status("X", "not as expected", "bad")
PROBE_STALE = Status("!", "stale", "warn")

KINDS = {
    ResultKind.PULLS: "Pull requests",
    ResultKind.PUSH: "Push",
    ResultKind.NIGHTLY: "Nightly",
    ResultKind.INGESTED: "Other relays",
}

LEVELS = {
    Level.L4: "gate",
    Level.L3: "signal",
    Level.L2: "report",
    Level.L1: "notify",
}


def job_status(job: JobCell | LastResult) -> Status:
    if job.state is JobState.COMPLETED:
        status = _COMPLETED[job.conclusion or Conclusion.NONE]
        return _compare_with_expected(job, status) if _is_measured(job) else status
    return SILENT if job.state is JobState.TIMED_OUT else RUNNING


def _is_measured(job: JobCell | LastResult) -> bool:
    """Whether an outcome was expected. A last result stores only what it counts as, so that is compared."""
    if isinstance(job, JobCell):
        return job.expected is not None
    return job.counted is not count_as(job.state, job.conclusion)


def _compare_with_expected(job: JobCell | LastResult, status: Status) -> Status:
    """An expected failure of a probe is a pass; an unexpected success is not.

    Where what happened and what it counts as differ, the letter and the tone are neither a plain failure's nor a success's.
    """
    passed = status.tone == SUCCESS.tone
    if job.counted is CountedAs.SUCCESS:
        word = f"{status.word}, as expected"
        return Status(status.letter, word, "ok") if passed else Status(f"{status.letter}=", word, "expected")
    word = f"{status.word}, not as expected"
    return Status(f"{status.letter}≠" if passed else status.letter, word, "bad")


def probe_status(probe: Probe) -> Status:
    """A probe that stopped reporting is never shown as ok."""
    if probe.stale or probe.last_result is None:
        return PROBE_STALE
    return PROBE_OK if probe.last_result.counted is CountedAs.SUCCESS else PROBE_OFF


def job_details(job: JobView) -> str:
    """One line for a cell's title: all that matters about a job."""
    parts = [
        job.job_name,
        job_status(job).word,
        f"attempt {job.attempt}",
        f"queued {duration(job.queue_s)}" if job.queue_s is not None else "",
        f"ran {duration(job.execution_s)}" if job.execution_s is not None else "",
        f"{job.tests_failed:,} of {job.tests_total:,} tests failed"
        if job.tests_failed and job.tests_total
        else "",
        f"disputed: {job.disputed_conclusion} was reported too" if job.disputed_conclusion else "",
        *(mark for mark in job.marks if mark != "disputed"),
        f"{job.verification}: {DOUBTS[job.verification]}" if job.verification in DOUBTS else "",
    ]
    return " · ".join(part for part in parts if part)


def dispatch_details(dispatch: DispatchView) -> str:
    parts = [
        DISPATCHES[dispatch.state].word,
        dispatch.reason or "",
        ANSWERS[dispatch.answer] if dispatch.answer else "",
        f"sent {stamp(dispatch.sent_at)}" if dispatch.sent_at else "",
        "an earlier attempt may have been delivered too" if dispatch.unsure else "",
    ]
    return " · ".join(part for part in parts if part)


def effect_word(kind: str) -> str:
    """Return the kind of an outgoing call in words."""
    return _EFFECT_WORDS.get(kind, kind.replace("_", " "))


def stamp(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def day(at: datetime, now: datetime) -> str:
    """Format the day, with its year if it is not the current one."""
    utc = at.astimezone(UTC)
    year = "" if utc.year == now.astimezone(UTC).year else f", {utc.year}"
    return f"{utc:%b} {utc.day}{year}"


LATE_S = 300.0
"""An outbox whose oldest due effect has waited for longer than this is behind."""


def is_late(lag_s: float | None) -> bool:
    return lag_s is not None and lag_s > LATE_S


def duration(seconds: float | None) -> str:
    """A duration in its two largest units; a dash when it is not known."""
    if seconds is None:
        return "—"
    whole = round(seconds)
    for size, big, small_size, small in _UNITS:
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size}{big} {rest:02d}{small}" if rest else f"{whole // size}{big}"
    return f"{whole}s" if seconds >= 1 or seconds == 0 else "<1s"


def fine_duration(seconds: float | None) -> str:
    """A duration that may be milliseconds."""
    return f"{seconds * 1000:.0f} ms" if seconds is not None and seconds < 1 else duration(seconds)


_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def waiting_reason(effect: EffectView | EffectLine, now: datetime) -> str | None:
    """Return the limit or the fault that an effect waits for; None while it waits for its turn."""
    service = called_service(effect_class(effect.kind, effect.target))
    return waiting_words(effect, now, service)


MEANINGS = {
    "ambiguous_job": "Two jobs could be meant",
    "bad_report": "The report could not be understood",
    "bad_request": "The request could not be understood",
    "claim_mismatch": "The token belongs to another run than the report",
    "conflicting_result": "The job had ended with another result",
    "identity_changed": "Another repository of this name reported",
    "no_in_progress": "The job's start was never reported",
    "not_allowlisted": "The delivery's upstream does not list this repository",
    "not_authentic": "The token was not accepted",
    "not_registered": "The pipeline is not registered",
    "rate_limited": "Too many reports in a minute",
    "run_bound_elsewhere": "The run answers another delivery",
    "suspended": "This backend is suspended",
    "too_large": "The report is too large",
    "unknown_delivery": "No such delivery was dispatched to it",
    "wrong_event": "The run was started by an event that does not count",
    "wrong_ref": "The run is on a branch or tag that does not count",
}


SETTLED = "settled: the result was accepted"
"""For a refusal whose job was reported successfully afterwards."""


def refusal_meaning(code: str) -> str:
    return MEANINGS.get(code, "The report was refused")
