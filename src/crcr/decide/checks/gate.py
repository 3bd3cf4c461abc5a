"""The gate: one pure function from a commit's recorded facts to passed, pending or failed, with every reason.

It says passed only when each L4 backend passed, is not concerned, or was excused or waived; whatever is unclear keeps it
pending until the deadline and fails it afterwards. Computed anew after every change, never adjusted.

A waiver of a backend covers whatever keeps it from passing, a waiver of a job just that job. In a merge group a waiver
counts only if every other pull request of the group passed the same, or has it waived, at its own head: otherwise one
pull request could reach the base branch on another's waiver.

An excuse is a verdict of the rules with high confidence, of a kind that the upstream lets pass. It covers one result: a
job's reported failure that GitHub confirms, on the very commit that is judged. Nothing else excuses: no other confidence,
no person's verdict, no job that timed out, was cancelled, has to run again, failed in ways that its report leaves out or in
tests that the base does not fail in, and no backend without a literal list of `jobs`.

A pair (a pull request of the backend's own that the change depends on) opens nothing: it only turns *failed* into *held*,
which keeps the gate closed as well. The states that pass are the same with and without it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.checks.commit import (
    BackendPair,
    BackendResults,
    CommitFacts,
    GrantedWaiver,
    JobResult,
    MergeSubject,
    Verification,
)
from crcr.decide.checks.completeness import QUIET, nothing_yet, owed_parts
from crcr.decide.checks.status import (
    BLOCKED,
    GATE_OF,
    GATE_STATUSES,
    BackendJudgement,
    GateState,
    GateStatus,
    JudgedPair,
    JudgedPart,
    left_out_words,
)
from crcr.decide.checks.verification import Confirmation, confirm_result
from crcr.decide.failures.verdict import Confidence, VerdictKind
from crcr.decide.model import Conclusion, DispatchState, JobState, RepoName


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnHead:
    """One pull request of a merge group, with the backend's status at the pull request's own head."""

    number: int
    known: bool = False
    """Whether its head is known, and the group was made from it."""
    judged: BackendJudgement | None = None
    """None where the backend does not gate it."""
    waivers: tuple[GrantedWaiver, ...] = ()


def apply_waivers(
    part: JudgedPart,
    backend: BackendResults,
    waivers: tuple[GrantedWaiver, ...],
    own_heads: tuple[OwnHead, ...] = (),
) -> JudgedPart:
    """Return the part, waived if a waiver covers it; otherwise with the reason why a merge group's waiver does not count.

    A waiver need not wait for the backend to fail first: its author answers for the merge.
    """
    if GATE_OF[part.standing] is GateState.PASSED:
        return part
    covering = [waiver for waiver in waivers if _covers(waiver, backend, part)]
    objections: set[str] = set()
    for waiver in covering:
        of_heads = [text for own in own_heads if (text := _objection(own, waiver, backend, part)) is not None]
        if not of_heads:
            return replace(part, standing=GateStatus.WAIVED, waiver=waiver)
        objections.add(f"the waiver of #{waiver.number} does not count here: {', '.join(of_heads)}")
    return replace(part, reason="; ".join((part.reason, *sorted(objections))))


def _covers(waiver: GrantedWaiver, backend: BackendResults, part: JudgedPart) -> bool:
    whole = waiver.job is None
    return waiver.covers(backend, part.name) and (whole or part.standing is not GateStatus.WAITING)


def _objection(own: OwnHead, waiver: GrantedWaiver, backend: BackendResults, part: JudgedPart) -> str | None:
    """Return why a pull request blocks a waiver: it may be the one that breaks the part. None when it does not."""
    if not own.known:
        return f"which head of #{own.number} is in the group is not known"
    if own.number == waiver.number or any(waiver.covers(backend, part.name) for waiver in own.waivers):
        return None
    if own.judged is None:
        return f"#{own.number} has no result of it at its own head"
    named = [
        own_part for own_part in own.judged.parts if part.name is not None and own_part.name == part.name
    ]
    if part.job is not None and not named:
        return f"#{own.number} has no result of that job at its own head"
    if all(map(_is_success, named)) if named else own.judged.standing is GateStatus.PASSED:
        return None
    state = _worst_status(named) if named else own.judged.standing
    return f"it is {state} for #{own.number} at its own head, and must have passed or be waived there"


def _is_success(part: JudgedPart) -> bool:
    """Whether the part passed or is waived; a skipped job proves nothing."""
    if part.standing is GateStatus.WAIVED:
        return True
    skipped = part.job is None or part.job.conclusion in {Conclusion.SKIPPED, Conclusion.NEUTRAL}
    return part.standing is GateStatus.PASSED and not skipped


def _worst_status(parts: Iterable[JudgedPart]) -> str:
    standings = list(GateStatus)
    worst = min((part.standing for part in parts), key=standings.index)
    return "skipped" if worst is GateStatus.PASSED else worst.value


__all__ = [
    "BLOCKED",
    "EXCUSABLE",
    "HELD_FOR",
    "QUIET",
    "BackendJudgement",
    "GateJudgement",
    "GatePolicies",
    "GatePolicy",
    "GateState",
    "GateStatus",
    "JudgedPart",
    "SubjectJudgement",
    "hold_for_pairs",
    "judge_backend",
    "judge_for_subject",
    "judge_gate",
    "time_limit",
]

HELD_FOR = frozenset({"draft", "approval"})
"""Reasons of a held dispatch that only a person can end; every other hold ends by itself."""


EXCUSABLE = (VerdictKind.PRE_EXISTING, VerdictKind.FLAKY)


@dataclass(frozen=True, slots=True)
class GatePolicy:
    gate_timeout: timedelta
    job_timeout: timedelta
    excuses: frozenset[VerdictKind] = frozenset()
    """Kinds of verdicts that do not block, where their confidence is high; `EXCUSABLE` has the possible ones."""


@dataclass(frozen=True, slots=True)
class GatePolicies:
    """The policies of all upstreams' gates."""

    timeouts: GatePolicy
    """The policy of an upstream that excuses nothing."""
    excuses: Mapping[str, frozenset[VerdictKind]] = field(default_factory=dict)
    """By the upstream's key."""

    def find(self, upstream: RepoName) -> GatePolicy:
        return replace(self.timeouts, excuses=self.excuses.get(upstream.key, frozenset()))


@dataclass(frozen=True, slots=True)
class SubjectJudgement:
    subject: MergeSubject
    state: GateState
    backends: tuple[BackendJudgement, ...]


@dataclass(frozen=True, slots=True)
class GateJudgement:
    state: GateState
    subjects: tuple[SubjectJudgement, ...]
    recheck_at: datetime | None = None
    """When the passing of time may change it."""


def judge_gate(commit: CommitFacts, policy: GatePolicy, now: datetime) -> GateJudgement:
    """Judge a commit that is to be merged; the worst state of its subjects counts."""
    if not commit.subjects:
        raise ValueError("a commit without a subject has no gate to judge")
    subjects = tuple(_judge_subject(subject, policy, now) for subject in commit.subjects)
    rechecks = [backend.recheck_at for subject in subjects for backend in subject.backends]
    waiving = [head for subject in commit.subjects for head in (subject, *subject.own_heads)]
    rechecks += [waiver.until_at for subject in waiving for waiver in subject.unexpired_waivers(now)]
    return GateJudgement(
        min((subject.state for subject in subjects), key=tuple(GateState).index),
        subjects,
        min((at for at in rechecks if at is not None), default=None),
    )


def _judge_subject(subject: MergeSubject, policy: GatePolicy, now: datetime) -> SubjectJudgement:
    judged = tuple(
        judge_for_subject(subject, backend, policy, now) for backend in subject.backends if backend.gates
    )
    states = {GATE_OF[backend.standing] for backend in judged}
    if subject.reused_from is not None:
        states = {GateState.PASSED}
    if subject.in_doubt:
        states.add(GateState.PENDING)
    state = min(states, key=tuple(GateState).index, default=GateState.PASSED)
    return SubjectJudgement(subject, state, judged)


def judge_for_subject(
    subject: MergeSubject, backend: BackendResults, policy: GatePolicy, now: datetime
) -> BackendJudgement:
    """Judge a backend for one subject, with the waivers that count there, and the pairs that may hold it."""
    waivers = subject.unexpired_waivers(now)
    if subject.number is not None or not waivers:
        return hold_for_pairs(
            judge_backend(backend, waivers, policy, now), subject.pairs_of(backend), policy, now
        )
    own_heads = tuple(
        _judge_own_head(subject, number, backend, policy, now) for number in subject.numbers or ()
    )
    return judge_backend(backend, waivers, policy, now, own_heads=own_heads)


def hold_for_pairs(
    judged: BackendJudgement, pairs: tuple[BackendPair, ...], policy: GatePolicy, now: datetime
) -> BackendJudgement:
    """Hold a gating backend that fails alone and passes with a pull request of its own that is not merged."""
    if not pairs:
        return judged
    # Neither a waiver nor an excuse makes a pair pass.
    strict = replace(policy, excuses=frozenset())
    alone = [judge_backend(pair.results, (), strict, now) if pair.results else None for pair in pairs]
    rechecks = [judged.recheck_at, *(pair.recheck_at for pair in alone if pair)]
    judged = replace(
        judged,
        pairs=tuple(
            JudgedPair(pair=pair, status=own.standing if own else None)
            for pair, own in zip(pairs, alone, strict=True)
        ),
        recheck_at=min((at for at in rechecks if at is not None), default=None),
    )
    passing = next((pair for pair in judged.pairs if pair.passes), None)
    blocked = {part.standing for part in judged.parts} & BLOCKED
    if passing is None or not judged.backend.gates or blocked != {GateStatus.FAILED}:
        return judged
    parts = tuple(
        replace(part, standing=GateStatus.HELD, reason=passing.sentence)
        if part.standing is GateStatus.FAILED
        else part
        for part in judged.parts
    )
    standing = min((part.standing for part in parts), key=GATE_STATUSES.index)
    return replace(judged, parts=parts, standing=standing)


def _judge_own_head(
    group: MergeSubject, number: int, backend: BackendResults, policy: GatePolicy, now: datetime
) -> OwnHead:
    """Judge the backend at the own head of one of the group's pull requests."""
    own = next(
        (own_head for own_head in group.own_heads if own_head.number == number and not own_head.in_doubt),
        None,
    )
    if own is None:
        return OwnHead(number=number)
    waivers = own.unexpired_waivers(now)
    same = next(
        (own_backend for own_backend in own.backends if own_backend.gates and own_backend.is_same(backend)),
        None,
    )
    judged = judge_backend(same, waivers, policy, now) if same else None
    return OwnHead(number=number, known=True, judged=judged, waivers=waivers)


def judge_backend(
    backend: BackendResults,
    waivers: tuple[GrantedWaiver, ...],
    policy: GatePolicy,
    now: datetime,
    *,
    own_heads: tuple[OwnHead, ...] = (),
) -> BackendJudgement:
    deadline = _deadline(backend, policy)
    late = deadline is not None and now >= deadline
    parts = tuple(_judge_parts(backend, policy, late=late))
    parts = tuple(apply_waivers(part, backend, waivers, own_heads) for part in parts)
    standings = {part.standing for part in parts}
    # A waiting part may become late, which is judged even where another part has failed already.
    waits = GateStatus.WAITING in standings
    return BackendJudgement(
        backend=backend,
        standing=min(standings, key=GATE_STATUSES.index),
        parts=parts,
        since=backend.sent_at or backend.created_at,
        deadline=deadline,
        recheck_at=_recheck_time(backend, deadline, now) if waits else None,
    )


def _deadline(backend: BackendResults, policy: GatePolicy) -> datetime | None:
    """Return the deadline, counted from the dispatch or the newest attempt or re-run; None while it is unsent."""
    if backend.sent_at is None or backend.entry is None:
        return None
    rerun_times = [run.rerun_at for run in backend.runs if run.rerun_at is not None]
    later_attempts = [run.attempt_at for run in backend.live_runs if run.attempt > 1]
    return max((backend.sent_at, *rerun_times, *later_attempts)) + time_limit(backend.entry, policy)


def time_limit(entry: AllowlistEntry, policy: GatePolicy) -> timedelta:
    """Return how long the gate waits for a backend."""
    gate_s = entry.gate_timeout_s or policy.gate_timeout.total_seconds()
    job_s = entry.job_timeout_s or policy.job_timeout.total_seconds()
    return timedelta(seconds=max(gate_s, job_s))


def _recheck_time(backend: BackendResults, deadline: datetime | None, now: datetime) -> datetime | None:
    quiet = [run.first_seen_at + QUIET for run in backend.live_runs]
    return min((at for at in (deadline, *quiet) if at is not None and at > now), default=None)


# The parts of a backend


def _judge_parts(backend: BackendResults, policy: GatePolicy, *, late: bool) -> Iterable[JudgedPart]:
    if backend.possible_renames:
        yield _rename_part(backend)
        return
    unsent = _UNSENT.get(backend.state)
    if unsent is not None:
        yield unsent(backend)
        return
    jobs = backend.counted_jobs
    parts = [_judge_job(job, backend, policy, late=late) for job in jobs]
    yield from parts
    if any(part.standing is GateStatus.WAITING for part in parts):
        return
    owed = tuple(owed_parts(backend, jobs, late=late))
    yield from owed
    if not owed:
        yield from _declined_part(backend, parts) if parts else (nothing_yet(late=late),)


def _rename_part(backend: BackendResults) -> JudgedPart:
    names = ", ".join(map(str, backend.possible_renames))
    reason = f"checking for a rename: it left L4, and whether it is {names} now is not known yet"
    return JudgedPart(standing=GateStatus.WAITING, name=None, reason=reason)


def _unsent_part(_backend: BackendResults) -> JudgedPart:
    return JudgedPart(standing=GateStatus.WAITING, name=None, reason="the dispatch waits to be sent")


def _held_part(backend: BackendResults) -> JudgedPart:
    reason = backend.reason or "a reason that is not recorded"
    standing = GateStatus.HELD if reason in HELD_FOR else GateStatus.WAITING
    return JudgedPart(standing=standing, name=None, reason=reason)


def _left_out_part(backend: BackendResults) -> JudgedPart:
    return JudgedPart(standing=GateStatus.NOT_CONCERNED, name=None, reason=left_out_words(backend.reason))


def _undelivered_part(backend: BackendResults) -> JudgedPart:
    reason = f"the dispatch could not be delivered: {backend.reason or backend.state}"
    return JudgedPart(standing=GateStatus.MISSING, name=None, reason=reason)


_UNSENT: dict[DispatchState, Callable[[BackendResults], JudgedPart]] = {
    DispatchState.WAITING: _unsent_part,
    DispatchState.HELD: _held_part,
    DispatchState.LEFT_OUT: _left_out_part,
    DispatchState.PARKED: _undelivered_part,
    DispatchState.CANCELLED: _undelivered_part,
}

_STATUS_BY_CONCLUSION = {
    Conclusion.SUCCESS: GateStatus.PASSED,
    Conclusion.SKIPPED: GateStatus.PASSED,
    Conclusion.NEUTRAL: GateStatus.PASSED,
    Conclusion.FAILURE: GateStatus.FAILED,
    Conclusion.ACTION_REQUIRED: GateStatus.FAILED,
    Conclusion.NONE: GateStatus.FAILED,
    Conclusion.CANCELLED: GateStatus.ERRORED,
    Conclusion.TIMED_OUT: GateStatus.ERRORED,
}
_SKIPPED = frozenset({Conclusion.SKIPPED, Conclusion.NEUTRAL})


def _judge_job(job: JobResult, backend: BackendResults, policy: GatePolicy, *, late: bool) -> JudgedPart:
    if job.state is JobState.IN_PROGRESS:
        if late:
            return _make_part(GateStatus.ERRORED, job, "still running past the gate's time-out")
        return _make_part(GateStatus.WAITING, job, "running")
    if job.state is JobState.TIMED_OUT:
        standing, reason = GateStatus.ERRORED, "went silent"
    else:
        standing, reason = _status_by_conclusion(job, backend)
    if standing is GateStatus.PASSED:
        standing, reason = _confirm_with_github(job, backend, reason, late=late)
    if standing in {GateStatus.PASSED, GateStatus.WAITING}:
        return _make_part(standing, job, reason)
    if backend.runs_again(job):
        if late:
            return _make_part(GateStatus.ERRORED, job, "was to run again, and did not report")
        return _make_part(GateStatus.WAITING, job, f"runs again after: {reason}")
    if standing is GateStatus.FAILED and _is_excusable(job, backend, policy):
        confirmation = confirm_result(job, backend)
        if confirmation is Confirmation.OPEN and not late:
            return _make_part(GateStatus.WAITING, job, f"reported {reason}, GitHub has not confirmed")
        if confirmation in {Confirmation.CONFIRMED, Confirmation.AS_REPORTED}:
            standing = GateStatus.EXCUSED
    return _make_part(standing, job, reason)


def _is_excusable(job: JobResult, backend: BackendResults, policy: GatePolicy) -> bool:
    """Whether the policy lets this failure pass once GitHub confirms it.

    A verdict rests on the reported failures: a report that is disputed, or that leaves failures out, may hide a new one.
    It compares messages, and a change may make another test fail with the message of one that fails on the base.
    Without a literal list of `jobs`, the excused failure might be all that explains why its run failed on GitHub, where
    another job failed too and could not report.
    """
    verdict = job.verdict
    return (
        verdict is not None
        and backend.entry is not None
        and backend.entry.names_jobs
        and verdict.kind in policy.excuses
        and verdict.kind in EXCUSABLE
        and verdict.confidence is Confidence.HIGH
        and job.conclusion is Conclusion.FAILURE
        and job.verification is not Verification.DISPUTED
        and not job.unlisted_failures
        and not job.unseen_failures
        and backend.expected(job.name) is None
    )


def _confirm_with_github(
    job: JobResult, backend: BackendResults, reason: str, *, late: bool
) -> tuple[GateStatus, str]:
    """Return the status and reason of a passing result, depending on GitHub's view of it."""
    answer = confirm_result(job, backend)
    if answer is Confirmation.OPEN:
        if late:
            return GateStatus.ERRORED, f"reported {reason}, and GitHub has not confirmed it in time"
        return GateStatus.WAITING, f"reported {reason}, GitHub has not confirmed"
    if answer is Confirmation.REFUTED:
        return GateStatus.FAILED, f"reported {reason}, and GitHub does not agree"
    if answer is Confirmation.RUN_DELETED:
        return GateStatus.ERRORED, f"reported {reason}, and its run was deleted before GitHub confirmed it"
    return GateStatus.PASSED, reason


def _make_part(standing: GateStatus, job: JobResult, reason: str) -> JudgedPart:
    return JudgedPart(standing=standing, name=job.name, reason=reason, job=job)


def _status_by_conclusion(job: JobResult, backend: BackendResults) -> tuple[GateStatus, str]:
    conclusion = job.conclusion or Conclusion.NONE
    reason = "completed without a conclusion" if conclusion is Conclusion.NONE else conclusion.value
    expected = backend.expected(job.name)
    if expected is None:
        standing = _STATUS_BY_CONCLUSION[conclusion]
        sick = job.verdict is not None and job.verdict.kind is VerdictKind.INFRASTRUCTURE
        if standing is GateStatus.FAILED and sick:
            return GateStatus.ERRORED, reason
        return standing, reason
    if conclusion is expected:
        return GateStatus.PASSED, f"{reason}, as expected"
    return GateStatus.FAILED, f"{reason}, where {expected.value} is expected"


def _declined_part(backend: BackendResults, parts: list[JudgedPart]) -> Iterable[JudgedPart]:
    """Yield a declined part when every job was skipped, unless the entry may skip."""
    if backend.entry is not None and backend.entry.may_skip:
        return
    if parts and all(part.job and _was_skipped(part.job, backend) for part in parts):
        yield JudgedPart(standing=GateStatus.DECLINED, name=None, reason="every job was skipped or neutral")


def _was_skipped(job: JobResult, backend: BackendResults) -> bool:
    return job.conclusion in _SKIPPED and backend.expected(job.name) is None
