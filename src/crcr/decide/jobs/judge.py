"""What a report leads to: whether its sender may report, which job it refers to, and the job's next state.

Pure, over a proved `Identity`, the parsed `Report` and recorded facts. Nothing in the report names a commit, a pull
request or a level; those are in the recorded dispatch.

A run must be of the repository's default branch (`check_ref`). Everyone who may push a branch can start its workflows
by hand, and the token of such a run signs the same repository, run and workflow file as one of the default branch. Only
`repository_dispatch` and `schedule` always run the default branch's files. `ref_protected` is not read: it is true
under any ruleset, whatever that requires, and false for tags.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.globs import path_glob
from crcr.decide.jobs.lifecycle import LIFECYCLE, Apply, JobEvent, Reject, worse_conclusion
from crcr.decide.jobs.match_job import JobFacts, MatchRefusal, MatrixLeg, find_job
from crcr.decide.jobs.report import Report, ReportStatus
from crcr.decide.model import PAIR_EVENT, Binding, Conclusion, JobState, Level, RepoName
from crcr.decide.oidc.identity import Identity, IssuerKind
from crcr.decide.row_dataclass import row_dataclass
from crcr.errors import DefaultBranchUnknown

DEFAULT_BRANCH_EVENTS = frozenset({"repository_dispatch", "schedule"})
"""Events that GitHub runs from the default branch only."""
BRANCHES = "refs/heads/"


def check_ref(
    identity: Identity, default_branch: str | None, report_refs: Collection[str] = ()
) -> MatchRefusal | None:
    """Return None when the run's ref may report. `report_refs` are globs over further refs, for self-reports."""
    if identity.event_name is None:
        return None  # another CI, whose registration names the branches that may report
    elsewhere = _check_workflow(identity)
    if elsewhere is not None or identity.event_name in DEFAULT_BRANCH_EVENTS:
        return elsewhere
    if identity.ref is None or identity.workflow_from is None:
        missing = "ref" if identity.ref is None else "workflow_ref"
        return _wrong_ref(
            f"the token of a run started by {identity.event_name!r} has no usable claim {missing!r}",
            "start the workflow by repository_dispatch or on a schedule",
        )
    if any(path_glob(glob).matches(identity.ref) for glob in report_refs):
        return None
    if default_branch is None:
        return MatchRefusal(
            DefaultBranchUnknown.code,
            f"the default branch of {identity.repository} is not known yet; GitHub is being asked",
            "send the report again in a few seconds; if this stays, install the relay's App on the repository",
        )
    if identity.ref == BRANCHES + default_branch:
        return None
    return _wrong_ref(
        f"the run is of {_escape_ref(identity.ref)}; a run started by {identity.event_name!r} reports from"
        f" {BRANCHES}{default_branch}, the default branch",
        "start the workflow on the default branch; for nightly and periodic reports of another ref, ask for it in the"
        " allowlist entry's report_refs",
    )


def _check_workflow(identity: Identity) -> MatchRefusal | None:
    """The workflow file must belong to the repository and to the ref that ran: nothing else is under its control."""
    if identity.workflow_from is not None and identity.workflow_from != identity.repository:
        return _wrong_ref(
            f"the workflow file is one of {identity.workflow_from}, the run one of {identity.repository}",
            "report from a workflow file of the repository itself; reusable workflows may be called from it",
        )
    if None in (identity.ref, identity.workflow_at) or identity.ref == identity.workflow_at:
        return None
    return _wrong_ref(
        f"the run is of {_escape_ref(identity.ref)}, its workflow file of {_escape_ref(identity.workflow_at)}",
        "report from a run whose workflow file is of the ref that it runs on",
    )


def _wrong_ref(detail: str, hint: str) -> MatchRefusal:
    return MatchRefusal("wrong_ref", detail, hint)


def _escape_ref(ref: str | None) -> str:
    """Escape and shorten a ref, which is the sender's text, for logs and pages."""
    return ascii(ref)[1:-1][:200]


DISPATCH_EVENT = "repository_dispatch"


@dataclass(frozen=True, slots=True)
class RejectedReport:
    """The report is refused; `dispute` is still recorded."""

    code: str
    detail: str
    hint: str | None = None
    dispute: "DisputeJob | None" = None
    upstream: RepoName | None = None
    """The upstream that refuses it, where the report names one; other upstreams do not show it."""


@dataclass(frozen=True, slots=True)
class IgnoredReport:
    """Authentic and harmless, but results of this level are not recorded."""

    reason: str
    hint: str


@row_dataclass(frozen=True, slots=True)
class AdmittedCaller:
    entry: AllowlistEntry


@row_dataclass(frozen=True, slots=True)
class CallerStanding:
    """A caller's recorded state at the upstream of its delivery."""

    upstream: RepoName
    entry: AllowlistEntry | None
    binding: Binding | None
    suspended: bool
    default_branch: str | None = None
    """The default branch of the caller's repository, as last read from GitHub."""
    dispatched_as: RepoName | None = None
    """The name under which the delivery was dispatched, where the caller's repository has been renamed since."""


@row_dataclass(frozen=True, slots=True)
class OpenJob:
    job_name: str
    queue_s: float | None
    late: bool
    unsigned: bool
    superseded: bool
    supersedes: tuple[str, ...]
    """Older runs of the same workflow for this delivery, which no longer count."""
    silent_at: datetime
    warning: str | None


@row_dataclass(frozen=True, slots=True)
class CloseJob:
    job_name: str
    conclusion: Conclusion
    queue_s: float | None
    """As measured when it began."""
    execution_s: float | None
    late: bool


@dataclass(frozen=True, slots=True)
class DisputeJob:
    job_name: str
    counts: Conclusion
    claimed: Conclusion


@dataclass(frozen=True, slots=True)
class RepeatedReport:
    job_name: str


ReportOutcome = OpenJob | CloseJob | RepeatedReport | RejectedReport


@row_dataclass(frozen=True, slots=True)
class DispatchFacts:
    event: str
    level: Level
    attempted_at: datetime | None
    """When the newest attempt to send it began; None before the first."""
    may_have_arrived: bool
    """Sent, being sent, or of unknown outcome: a report for it can be genuine."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    run_id: str
    superseded: bool


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """For tokens that sign a build and not the run: the first run that the build reported for, and the run's first build."""

    run_id: str | None
    build: str | None


@row_dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    dispatch: DispatchFacts | None
    run_delivery: str | None
    """The delivery that this run has already reported for, if any."""
    named_delivery: str | None = None
    """The only delivery sent to the repository that the run's name contains, where GitHub showed the run before it reported."""
    sibling_runs: tuple[RunFacts, ...]
    """Other runs of the same workflow for this delivery."""
    jobs: tuple[JobFacts, ...]
    """The jobs of this run attempt with the reported name, and its possible matrix legs."""
    default_branch: str | None = None
    """The default branch of the caller's repository, as last read from GitHub."""
    run_superseded: bool = False
    """Whether this run was recorded before and no longer counts."""
    build: BuildFacts | None = None
    run_kind: IssuerKind | None = None
    """The run's CI, if it is known: two CIs may use the same run ids."""
    rerun_asked_at: datetime | None = None
    """When the relay requested this attempt, if it did."""
    opened_others: bool
    """Whether the signed check run id has opened jobs of other names in this run attempt."""


def admit_caller(
    identity: Identity, standing: CallerStanding
) -> AdmittedCaller | RejectedReport | IgnoredReport:
    """Layers 1 (immutable id) and 2 (allowlist)."""
    binding, entry = standing.binding, standing.entry
    if binding is not None and identity.repository_id not in (None, binding.repository_id):
        return RejectedReport(
            "identity_changed",
            f"{identity.repository} is bound to repository id {binding.repository_id}, the token says {identity.repository_id}",
            "if the repository was re-created on purpose, an operator accepts it with `crcr repos rebind`",
        )
    if entry is None:
        return RejectedReport(
            "not_allowlisted",
            f"{identity.repository} is not on the allowlist for this delivery's upstream",
            "ask the upstream's maintainers for an allowlist entry",
        )
    if standing.suspended:
        return RejectedReport(
            "suspended", f"{identity.repository} is suspended", "ask the relay's operators why"
        )
    if entry.level < Level.L2:
        return IgnoredReport(
            "L1 downstreams are notified; their results are not recorded",
            "ask for level L2 to report results",
        )
    return AdmittedCaller(entry)


def workflow_key(identity: Identity, report: Report) -> str:
    """Return the key of a workflow in its repository: the signed path, else the reported name."""
    return identity.workflow_path or report.workflow_name


def judge_report(
    report: Report,
    identity: Identity,
    entry: AllowlistEntry,
    facts: ReportFacts,
    *,
    now: datetime,
    job_timeout: timedelta,
) -> ReportOutcome:
    """Layer 4: check that this is the dispatched run's own report, and decide the job's next state."""
    refusal = _refuse_claims(report, identity, entry, facts)
    if refusal is not None:
        return refusal
    matched = find_job(report, identity.check_run_id, facts.jobs, opened_others=facts.opened_others)
    if isinstance(matched, MatchRefusal):
        return RejectedReport(matched.code, matched.detail, matched.hint)
    leg = matched if isinstance(matched, MatrixLeg) else None
    job = matched if isinstance(matched, JobFacts) else None
    verdict = LIFECYCLE[job.state if job else JobState.DISPATCHED, _job_event(report, job)]
    if isinstance(verdict, Reject):
        return _reject_transition(verdict, report, job)
    if not isinstance(verdict, Apply):
        return RepeatedReport(job.job_name if job else report.job_name)
    if job is None:
        return _open_job(report, identity, facts, leg, now=now, silent_at=now + job_timeout)
    return _close_job(report, job, now=now, late=verdict.mark is not None)


def _refuse_claims(
    report: Report, identity: Identity, entry: AllowlistEntry, facts: ReportFacts
) -> RejectedReport | None:
    if facts.dispatch is None or not facts.dispatch.may_have_arrived:
        return RejectedReport(
            "unknown_delivery",
            f"delivery {report.delivery_id} was not dispatched to {identity.repository}",
            "send back the delivery_id of the dispatch's client_payload",
        )
    mismatch = refuse_run(report, identity, facts.build)
    if mismatch is not None:
        return mismatch
    if report.event_type == PAIR_EVENT != facts.dispatch.event:
        # A run that tested the backend's other pull request must not report for a dispatch without it.
        return _claim_mismatch(f"the run is of a {PAIR_EVENT}, the delivery of a {facts.dispatch.event}")
    if facts.run_kind not in (None, identity.kind):
        return _claim_mismatch(
            f"run {report.run_id} is one of {facts.run_kind}, the token is of {identity.kind}"
        )
    if identity.event_name is not None and identity.event_name not in {DISPATCH_EVENT, *entry.allow_events}:
        return RejectedReport(
            "wrong_event",
            f"the run was started by {identity.event_name!r}, not by {DISPATCH_EVENT}",
            "list the event in the allowlist entry's allow_events if the workflow has two steps",
        )
    wrong_ref = check_ref(identity, facts.default_branch)
    if wrong_ref is not None:
        return RejectedReport(wrong_ref.code, wrong_ref.detail, wrong_ref.hint)
    if facts.run_delivery not in (None, report.delivery_id):
        return RejectedReport(
            "run_bound_elsewhere",
            f"run {report.run_id} already answers delivery {facts.run_delivery}",
            "a run reports for the one delivery that started it",
        )
    if facts.named_delivery not in (None, report.delivery_id):
        return RejectedReport(
            "run_bound_elsewhere",
            f"the name of run {report.run_id} holds delivery {facts.named_delivery}, and not {report.delivery_id}",
            "report for the delivery of the dispatch that started the run; have only its delivery_id in run-name",
        )
    return None


def refuse_run(report: Report, identity: Identity, bound: BuildFacts | None) -> RejectedReport | None:
    """Fault 28: the run that the token proves, and the attempt where it is signed, must be the reported one."""
    attempt = identity.run_attempt
    if identity.run_id not in (None, report.run_id) or attempt not in (None, report.run_attempt):
        of_attempt = "" if attempt is None else f" attempt {attempt}"
        return _claim_mismatch(
            f"the token is for run {identity.run_id}{of_attempt}, "
            f"the report for run {report.run_id} attempt {report.run_attempt}"
        )
    if identity.run_id is None and report.run_id.isdigit() and report.run_id != identity.build:
        # Plain numbers are run ids that their issuer signs: a sender that chooses its own id must not choose such a number.
        return RejectedReport(
            "claim_mismatch",
            f"the token does not prove that run {report.run_id} is its own",
            "report the CI's own id of the build, which is no plain number, or its signed number",
        )
    if bound is None or (bound.run_id in (None, report.run_id) and bound.build in (None, identity.build)):
        return None
    return RejectedReport(
        "claim_mismatch",
        f"build {identity.build} reports for run {report.run_id}; "
        + (
            f"it spoke for run {bound.run_id} before"
            if bound.run_id not in (None, report.run_id)
            else f"build {bound.build} spoke for that run before"
        ),
        "report with the id of the build itself, the same in every report",
    )


def _claim_mismatch(detail: str) -> RejectedReport:
    hint = "report from the run that did the work, with its own run_id and run_attempt"
    return RejectedReport("claim_mismatch", detail, hint)


def _job_event(report: Report, job: JobFacts | None) -> JobEvent:
    if report.status is ReportStatus.IN_PROGRESS:
        return JobEvent.STARTED
    if job is not None and job.first_conclusion not in (None, report.conclusion):
        return JobEvent.FINISHED_OTHERWISE
    return JobEvent.FINISHED


def _reject_transition(verdict: Reject, report: Report, job: JobFacts | None) -> RejectedReport:
    if job is None or job.conclusion is None or report.conclusion is None:
        return RejectedReport(
            verdict.code,
            f"no in_progress was recorded for job {report.job_name!r} of run {report.run_id} attempt {report.run_attempt}",
            'send in_progress with "late": true for this job, then this report again',
        )
    return dispute_result(job, report.conclusion, verdict.code)


def dispute_result(job: JobFacts, claimed: Conclusion, code: str = "conflicting_result") -> RejectedReport:
    """Refuse a second, different result, and record it as a dispute."""
    counts = worse_conclusion(job.conclusion or Conclusion.NONE, claimed)
    return RejectedReport(
        code,
        f"job {job.job_name!r} already completed as {job.first_conclusion}; {claimed} is recorded as a dispute, {counts} counts",
        "re-run the job to report a new result",
        DisputeJob(job.job_name, counts, claimed),
    )


def _open_job(
    report: Report,
    identity: Identity,
    facts: ReportFacts,
    leg: MatrixLeg | None,
    *,
    now: datetime,
    silent_at: datetime,
) -> OpenJob:
    newer = tuple(run for run in facts.sibling_runs if _is_newer(run.run_id, report.run_id))
    older = tuple(run.run_id for run in facts.sibling_runs if run not in newer and not run.superseded)
    return OpenJob(
        job_name=leg.job_name if leg else report.job_name,
        queue_s=_queue_s(report, facts, now),
        late=report.late,
        unsigned=identity.run_id is None and identity.build is None,
        superseded=bool(newer) or facts.run_superseded,
        supersedes=older,
        silent_at=silent_at,
        warning=leg.warning if leg else None,
    )


def _close_job(report: Report, job: JobFacts, *, now: datetime, late: bool) -> CloseJob:
    took = None if job.late_start else _elapsed_s(job.in_progress_at, now)
    return CloseJob(job.job_name, report.conclusion or Conclusion.NONE, job.queue_s, took, late)


def _queue_s(report: Report, facts: ReportFacts, now: datetime) -> float | None:
    """Return the queue time: from the dispatch for first attempts, from the request for re-runs, if that is known."""
    dispatch = facts.dispatch.attempted_at if facts.dispatch else None
    since = dispatch if report.run_attempt == 1 else facts.rerun_asked_at
    return None if report.late or since is None else _elapsed_s(since, now)


def _elapsed_s(since: datetime, now: datetime) -> float | None:
    """Return the elapsed time; None when it would be negative, because the clocks of two machines may differ."""
    return (now - since).total_seconds() if now >= since else None


def _is_newer(other: str, than: str) -> bool:
    """Whether `other` is newer: GitHub's run ids grow; without numeric ids the run that reports later is newer."""
    return other.isdigit() and than.isdigit() and int(other) > int(than)
