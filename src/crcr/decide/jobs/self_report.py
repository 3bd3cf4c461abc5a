"""Nightly and periodic self-reports: which upstream they belong to, whether they are allowed, and what they record.

There is no dispatch, so the upstream is one that lists the sender, and the commit stays a claim until GitHub has
answered. A self-report is sent once, when its job has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.jobs.judge import (
    DISPATCH_EVENT,
    AdmittedCaller,
    BuildFacts,
    CallerStanding,
    IgnoredReport,
    RejectedReport,
    RepeatedReport,
    admit_caller,
    check_ref,
    dispute_result,
    refuse_run,
)
from crcr.decide.jobs.lifecycle import LIFECYCLE, JobEvent, Reject
from crcr.decide.jobs.match_job import JobFacts, MatrixLeg, find_self_reported_job
from crcr.decide.jobs.report import Report
from crcr.decide.model import Conclusion
from crcr.decide.oidc.identity import Identity
from crcr.errors import BadReport

SELF_REPORT_TRIGGERS = frozenset({DISPATCH_EVENT, "schedule", "workflow_dispatch", "push"})
"""Events whose runs may send self-reports. A pull request of the downstream's own is not among them."""


@dataclass(frozen=True, slots=True)
class SelfReportedJob:
    """A job that is recorded as completed at once."""

    job_name: str
    conclusion: Conclusion
    unsigned: bool
    warning: str | None


SelfReportOutcome = SelfReportedJob | RepeatedReport | RejectedReport
Admission = AdmittedCaller | IgnoredReport | RejectedReport


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfReportFacts:
    jobs: tuple[JobFacts, ...]
    """The jobs of this run attempt and commit with the reported name, and its possible matrix legs."""
    build: BuildFacts | None = None
    default_branch: str | None = None
    """The default branch of the sender's repository, as last read from GitHub."""


def choose_upstream(
    report: Report, identity: Identity, standings: Sequence[CallerStanding]
) -> CallerStanding | RejectedReport:
    """Return the upstream of the report: the one it names, else the only one that lists its sender.

    Raises `BadReport` when several list it and it names none of them.
    """
    listing = [standing for standing in standings if standing.entry is not None]
    named = [
        standing for standing in listing if standing.upstream.key == (report.said_upstream or "").lower()
    ]
    if not listing:
        return RejectedReport(
            "not_allowlisted",
            f"{identity.repository} is on no allowlist",
            "ask the upstream's maintainers for an allowlist entry",
        )
    if len(listing) == 1 or named:
        return (named or listing)[0]
    # The text does not name them: a listing may be hidden, and the text appears in the sender's log and on pages.
    raise BadReport(
        f"payload.repository.full_name names no upstream that lists {identity.repository}",
        hint="send the tested repository's full name there, as GitHub's own events do",
    )


def admit_self_report(report: Report, identity: Identity, standing: CallerStanding) -> Admission:
    """Layers 1 and 2, for the chosen upstream and for this event."""
    verdict = admit_caller(identity, standing)
    if isinstance(verdict, AdmittedCaller) and report.event_type not in verdict.entry.events:
        return RejectedReport(
            "not_allowlisted",
            f"{identity.repository} is on the allowlist of {standing.upstream}, but not for {report.event_type} reports",
            f"have {report.event_type} added to the events of its entry",
        )
    return verdict


def judge_self_report(
    report: Report, identity: Identity, entry: AllowlistEntry, facts: SelfReportFacts
) -> SelfReportOutcome:
    """Layer 4: check that it is the run's own report, and decide its job's state."""
    refusal = refuse_run(report, identity, facts.build) or _refuse_event(identity, entry)
    if refusal is not None:
        return refusal
    wrong_ref = check_ref(identity, facts.default_branch, entry.report_refs)
    if wrong_ref is not None:
        return RejectedReport(wrong_ref.code, wrong_ref.detail, wrong_ref.hint)
    matched = find_self_reported_job(report, identity.check_run_id, facts.jobs)
    conclusion = report.conclusion or Conclusion.NONE
    if isinstance(matched, JobFacts):
        same = matched.first_conclusion in (None, conclusion)
        verdict = LIFECYCLE[matched.state, JobEvent.FINISHED if same else JobEvent.FINISHED_OTHERWISE]
        if isinstance(verdict, Reject):
            return dispute_result(matched, conclusion, verdict.code)
        return RepeatedReport(matched.job_name)
    return SelfReportedJob(
        job_name=matched.job_name if isinstance(matched, MatrixLeg) else report.job_name,
        conclusion=conclusion,
        unsigned=identity.run_id is None and identity.build is None,
        warning=matched.warning if isinstance(matched, MatrixLeg) else None,
    )


def _refuse_event(identity: Identity, entry: AllowlistEntry) -> RejectedReport | None:
    if identity.event_name is None or identity.event_name in SELF_REPORT_TRIGGERS | entry.allow_events:
        return None
    return RejectedReport(
        "wrong_event",
        f"the run was started by {identity.event_name!r}; self-reports come from {', '.join(sorted(SELF_REPORT_TRIGGERS))}",
        "report from the scheduled run, or list the event in the allowlist entry's allow_events",
    )
