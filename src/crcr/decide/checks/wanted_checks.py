"""Which checks a commit should have now, and what they show.

Computed from recorded facts alone; `publication` computes the requests to GitHub.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.checks.check_run import GATE_NAME, CheckContent, CheckStatus, Tier, WantedCheck
from crcr.decide.checks.commit import BackendResults, CommitFacts, JobResult, MergeSubject
from crcr.decide.checks.gate import HELD_FOR, GateJudgement, GatePolicy, GateState, judge_for_subject
from crcr.decide.checks.publication import HARMLESS, backend_brief, failed_once, gate_brief
from crcr.decide.checks.status import BLOCKED, BackendJudgement, GateStatus, JudgedPart
from crcr.decide.checks.text import check
from crcr.decide.model import Conclusion, DispatchState, JobState, Level

MOST_JOB_CHECKS = 20
"""In a backend with more jobs, only failed jobs get a check of their own."""
MOST_FAILURE_CHECKS = 3
"""How many failing jobs of a backend get a check of their own; the backend's own check lists them all."""
_NAME_CHARACTERS = 200


class JobChecks(StrEnum):
    """Which jobs have their own check beside their backend's."""

    FAILURES = "failures"
    """The first few failing jobs; a job check that exists is updated to its end."""
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPolicy:
    gate: GatePolicy
    gate_on: bool
    label_prefixes: tuple[str, ...]
    l3_fails_red: bool
    show_l3_pending: bool
    l3_pair_neutral: bool = False
    """Whether an L3 backend that fails alone and passes with a pull request of its own is shown as neutral."""
    job_checks: JobChecks
    hud_url: str
    silent: frozenset[str] = frozenset()
    """Keys of L3 backends in silent mode: they have no checks."""


def wanted_checks(
    commit: CommitFacts,
    judgement: GateJudgement | None,
    policy: CheckPolicy,
    now: datetime,
    published: frozenset[str] = frozenset(),
    *,
    tiers: Collection[Tier] = tuple(Tier),
) -> tuple[WantedCheck, ...]:
    """Return the checks of these tiers that the commit should have; none when it is no longer to be merged.

    `published` are the names of the job checks that the commit has: a failure that was shown must also show its fix.
    """
    wanted: list[WantedCheck] = []
    if judgement is not None and Tier.GATE in tiers:
        wanted.append(_gate_check(commit, judgement, policy))
    if not {Tier.BACKEND, Tier.JOB} & set(tiers):
        return tuple(wanted)
    for subject, backend in _visible_backends(commit, policy):
        judged = judge_for_subject(subject, backend, policy.gate, now)
        if Tier.BACKEND in tiers:
            wanted.append(_backend_check(commit, subject, judged, policy))
        if Tier.JOB in tiers:
            wanted += _job_checks(commit, judged, policy, published)
    return tuple(wanted)


def recheck_at(
    commit: CommitFacts, judgement: GateJudgement | None, policy: CheckPolicy, now: datetime
) -> datetime | None:
    """Return when the passing of time may change a check: the gate's, or that of a backend that gates nothing."""
    moments = [judgement.recheck_at] if judgement else []
    for subject, backend in _visible_backends(commit, policy):
        moments.append(judge_for_subject(subject, backend, policy.gate, now).recheck_at)
    return min((at for at in moments if at is not None), default=None)


def shows_any(allowlist: Allowlist, labels: tuple[str, ...], prefixes: tuple[str, ...]) -> bool:
    """Whether any backend of the list can be shown on a pull request with these labels."""
    return bool(allowlist.gating) or any(
        entry.level is Level.L3 and is_labelled(entry, labels, prefixes) for entry in allowlist.entries
    )


def is_labelled(entry: AllowlistEntry, labels: tuple[str, ...], prefixes: tuple[str, ...]) -> bool:
    """Whether a label of the pull request requests the entry's device."""
    if entry.device is None:
        return False
    wanted_labels = {f"{prefix}{entry.device}".casefold() for prefix in prefixes}
    return any(label.casefold() in wanted_labels for label in labels)


def _visible_backends(commit: CommitFacts, policy: CheckPolicy) -> list[tuple[MergeSubject, BackendResults]]:
    """Return each backend that has a check on the commit once, as of its newest delivery."""
    newest: dict[str, tuple[MergeSubject, BackendResults]] = {}
    for subject in sorted(commit.subjects, key=lambda subject: (subject.received_at, subject.delivery)):
        if subject.reused_from is not None:
            continue
        for backend in subject.backends:
            if _is_visible(subject, backend, policy):
                newest[backend.name.key] = (subject, backend)
    return [newest[key] for key in sorted(newest)]


def _is_visible(subject: MergeSubject, backend: BackendResults, policy: CheckPolicy) -> bool:
    if backend.entry is None or backend.state in {DispatchState.LEFT_OUT, DispatchState.CANCELLED}:
        return False
    if backend.state is DispatchState.HELD and backend.reason not in HELD_FOR:
        return False  # whether it is concerned is not known yet
    if min(backend.level, backend.entry.level) < Level.L3:
        return False
    if backend.entry.level is Level.L3 and backend.entry.name.key in policy.silent:
        return False
    return backend.entry.level is Level.L4 or is_labelled(
        backend.entry, subject.labels, policy.label_prefixes
    )


# The gate

_GATE_RESULTS = {
    GateState.PENDING: (CheckStatus.IN_PROGRESS, None),
    GateState.FAILED: (CheckStatus.COMPLETED, Conclusion.FAILURE),
    GateState.PASSED: (CheckStatus.COMPLETED, Conclusion.SUCCESS),
}


def _gate_check(commit: CommitFacts, judgement: GateJudgement, policy: CheckPolicy) -> WantedCheck:
    newest = max(commit.subjects, key=lambda subject: (subject.received_at, subject.delivery))
    status, conclusion = _GATE_RESULTS[judgement.state]
    brief = gate_brief(judgement, newest.delivery)
    live_url = _live_url(policy, commit, newest)
    pages = check.HudPages(policy.hud_url, commit.upstream)
    words = check.gate_words(judgement, commit.head_sha, live_url if brief is not None else None, pages)
    shown = CheckContent(
        status=status,
        conclusion=conclusion,
        title=words.title,
        summary=words.summary,
        buttons=words.buttons,
        details_url=live_url,
        started_at=newest.received_at,
    )
    return WantedCheck(name=GATE_NAME, tier=Tier.GATE, incarnation=newest.delivery, shown=shown, brief=brief)


def _live_url(policy: CheckPolicy, commit: CommitFacts, subject: MergeSubject) -> str:
    path = f"pr/{subject.number}" if subject.number is not None else f"commit/{commit.head_sha}"
    return f"{policy.hud_url}/crcr/{path}?upstream={commit.upstream}"


# Backends and their jobs

_OPEN = frozenset({GateStatus.WAITING, GateStatus.HELD})


def _is_informational(backend: BackendResults) -> bool:
    return not backend.gates


def _backend_check(
    commit: CommitFacts, subject: MergeSubject, judged: BackendJudgement, policy: CheckPolicy
) -> WantedCheck:
    backend, brief = judged.backend, backend_brief(judged)
    live_url = _live_url(policy, commit, subject) if brief is not None else None
    progress = _Progress(
        open_status=_open_status(judged),
        conclusion=_backend_conclusion(judged.standing),
        started_at=judged.since,
    )
    shown = _make_content(
        backend,
        policy,
        progress,
        words=check.backend_words(judged, check.HudPages(policy.hud_url, commit.upstream), live_url),
        details_url=f"{policy.hud_url}/crcr/{backend.name}",
    )
    passing = next((pair for pair in judged.pairs if pair.passes), None)
    may_soften = policy.l3_pair_neutral and _is_informational(backend) and not shown.is_open
    if passing is not None and may_soften and judged.standing is GateStatus.FAILED:
        title = f"{check.one_line(passing.sentence)} (non-blocking)"
        shown = replace(shown, conclusion=Conclusion.NEUTRAL, title=title)
    name = f"crcr/{backend.name}"
    return WantedCheck(
        name=name,
        tier=Tier.BACKEND,
        downstream=backend.name.key,
        incarnation=_backend_incarnation(subject, backend),
        shown=shown,
        brief=brief,
    )


def _backend_incarnation(subject: MergeSubject, backend: BackendResults) -> str:
    attempts = max((max(run.attempt, (run.rerun_from or 0) + 1) for run in backend.runs), default=1)
    return f"{subject.delivery} {backend.sent_at.isoformat() if backend.sent_at else ''} {attempts}"


def _open_status(judged: BackendJudgement) -> CheckStatus | None:
    """Return the status of an open check: it is open while any part waits, even if another has failed already."""
    if not any(part.standing in _OPEN for part in judged.parts):
        return None
    return CheckStatus.QUEUED if judged.standing is GateStatus.HELD else CheckStatus.IN_PROGRESS


def _backend_conclusion(standing: GateStatus) -> Conclusion:
    if standing in BLOCKED:
        return Conclusion.FAILURE
    return Conclusion.SUCCESS if standing is GateStatus.PASSED else Conclusion.NEUTRAL


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """How far a check is: open with a status, or ended with its conclusion."""

    open_status: CheckStatus | None
    conclusion: Conclusion
    """Of an open check, the conclusion that it would have now."""
    started_at: datetime
    completed_at: datetime | None = None


def _make_content(
    backend: BackendResults,
    policy: CheckPolicy,
    progress: _Progress,
    *,
    words: check.Words,
    details_url: str | None,
) -> CheckContent:
    """Build a check's content for its level: a backend that gates nothing must never look like a blocker."""
    informational = _is_informational(backend)
    open_status, conclusion = progress.open_status, progress.conclusion
    title = words.title
    awaited = informational and open_status is not None and not policy.show_l3_pending
    if awaited:
        title = "running" if title == check.WAITING_TITLE else title
        open_status, conclusion, title = None, Conclusion.NEUTRAL, f"{title} (non-blocking)"
    elif informational and open_status is None and conclusion not in HARMLESS:
        title = f"{title} (non-blocking)"
        conclusion = conclusion if policy.l3_fails_red else Conclusion.NEUTRAL
    return CheckContent(
        status=open_status or CheckStatus.COMPLETED,
        conclusion=None if open_status else conclusion,
        title=title,
        summary=words.summary,
        # Sent once, with the result: GitHub adds the annotations of every update to the existing ones.
        annotations=() if open_status or awaited else words.annotations,
        details_url=details_url,
        started_at=progress.started_at,
        completed_at=None if open_status or awaited else progress.completed_at,
        awaited=awaited,
    )


def _job_checks(
    commit: CommitFacts, judged: BackendJudgement, policy: CheckPolicy, published: frozenset[str]
) -> list[WantedCheck]:
    if policy.job_checks is JobChecks.NONE:
        return []
    backend = judged.backend
    parts = [(part, part.job) for part in judged.parts if part.job is not None]
    # Named before any is dropped, so that no check changes its name when another job fails.
    names = _check_names(backend, [job for _, job in parts])
    named = [_NamedJob(part, job, name) for (part, job), name in zip(parts, names, strict=True)]
    if policy.job_checks is JobChecks.FAILURES:
        named = _first_failures(named, published)
    elif len(named) > MOST_JOB_CHECKS:
        failed = failed_once(backend)
        named = [
            job for job in named if job.part.standing in BLOCKED or (job.job.workflow, job.job.name) in failed
        ]
    return [_job_check(commit, backend, job, policy) for job in named]


@dataclass(frozen=True, slots=True)
class _NamedJob:
    part: JudgedPart
    job: JobResult
    name: str

    @property
    def fails(self) -> bool:
        return self.part.standing in _AT_FAULT and self.job.state is not JobState.IN_PROGRESS


_AT_FAULT = BLOCKED | {GateStatus.EXCUSED, GateStatus.WAIVED}


def _first_failures(jobs: list[_NamedJob], published: frozenset[str]) -> list[_NamedJob]:
    """Return the jobs that have a check already, and as many further failing ones as fit, the earliest first."""
    shown = [job for job in jobs if job.name in published]
    room = max(MOST_FAILURE_CHECKS - sum(job.fails for job in shown), 0)
    others = [job for job in jobs if job.name not in published and job.fails]
    others.sort(key=lambda job: (job.job.ended_at or job.job.began_at, job.name))
    return [*shown, *others[:room]]


def _check_names(backend: BackendResults, jobs: list[JobResult]) -> list[str]:
    """Return a name for each job: with its workflow's name, with the file where that is shared, else with a digest."""
    names = [_check_name(backend, job.workflow_name, job) for job in jobs]
    count = Counter(names)
    names = [
        name if count[name] == 1 else _check_name(backend, job.workflow, job)
        for name, job in zip(names, jobs, strict=True)
    ]
    count = Counter(names)
    return [
        name if count[name] == 1 else f"{name[: _NAME_CHARACTERS - 9]} {_digest(job)}"
        for name, job in zip(names, jobs, strict=True)
    ]


def _check_name(backend: BackendResults, workflow: str, job: JobResult) -> str:
    name = f"crcr/{backend.name}/{check.one_line(workflow)}/{check.one_line(job.name)}"
    return name[:_NAME_CHARACTERS]


def _digest(job: JobResult) -> str:
    return sha256(f"{job.workflow}\0{job.name}\0{job.run_id}".encode()).hexdigest()[:8]


def _job_check(
    commit: CommitFacts, backend: BackendResults, named: _NamedJob, policy: CheckPolicy
) -> WantedCheck:
    part, job = named.part, named.job
    again = backend.runs_again(job) and part.standing is GateStatus.WAITING
    if part.standing is GateStatus.WAITING and job.state is JobState.COMPLETED and not again:
        # Until GitHub confirms it, its check is not updated: the backend's check says more, and each write costs a request.
        job = replace(job, state=JobState.IN_PROGRESS, conclusion=None, ended_at=None)
        part = replace(part, job=job, reason="running")
    open_status = CheckStatus.QUEUED if again else None
    if job.state is JobState.IN_PROGRESS:
        open_status = CheckStatus.IN_PROGRESS
    progress = _Progress(
        open_status=open_status,
        conclusion=_job_conclusion(part, job),
        started_at=job.began_at,
        completed_at=job.ended_at,
    )
    shown = _make_content(
        backend,
        policy,
        progress,
        words=check.job_words(backend, part, job, check.HudPages(policy.hud_url, commit.upstream)),
        details_url=job.url if check.is_link(job.url) else f"{policy.hud_url}/crcr/{backend.name}",
    )
    return WantedCheck(
        name=named.name,
        tier=Tier.JOB,
        downstream=backend.name.key,
        incarnation=f"{job.run_id} {job.attempt + again}",
        shown=shown,
        brief=shown.title if shown.is_open else None,
    )


def _job_conclusion(part: JudgedPart, job: JobResult) -> Conclusion:
    if part.standing in {GateStatus.WAIVED, GateStatus.EXCUSED}:
        return Conclusion.NEUTRAL
    harmless = job.conclusion in HARMLESS
    if part.standing is GateStatus.PASSED and not harmless:
        return Conclusion.SUCCESS  # a probe's expected failure
    if job.state is JobState.TIMED_OUT:
        return Conclusion.TIMED_OUT
    if job.conclusion is None or job.conclusion is Conclusion.NONE:
        return Conclusion.FAILURE
    if part.standing in {GateStatus.FAILED, GateStatus.ERRORED} and harmless:
        return Conclusion.FAILURE  # a probe's unexpected success, or one that GitHub did not confirm
    return job.conclusion
