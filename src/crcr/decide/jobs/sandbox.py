"""Sandbox reports: judged by the same lifecycle table as real ones, and by nothing else.

No dispatch, allowlist entry or other job is needed, so any delivery and any event is accepted. The report must still be
of the run that its token proves.
"""

from dataclasses import dataclass

from crcr.decide.jobs.judge import RejectedReport, RepeatedReport, refuse_run
from crcr.decide.jobs.lifecycle import LIFECYCLE, Apply, JobEvent, Reject
from crcr.decide.jobs.report import SELF_REPORTS, Report, ReportStatus
from crcr.decide.model import Conclusion, JobState
from crcr.decide.oidc.identity import Identity


@dataclass(frozen=True, slots=True)
class KnownSandboxJob:
    """The recorded state of the job that a sandbox report names."""

    state: JobState
    conclusion: Conclusion | None


SandboxOutcome = JobState | RepeatedReport | RejectedReport
"""A state is the job's new state."""


def judge_sandbox_report(report: Report, identity: Identity, known: KnownSandboxJob | None) -> SandboxOutcome:
    mismatch = refuse_run(report, identity, None)
    if mismatch is not None:
        return mismatch
    verdict = LIFECYCLE[_current_state(report, known), _job_event(report, known)]
    if isinstance(verdict, Reject):
        return _reject_transition(verdict.code, report, known)
    return verdict.state if isinstance(verdict, Apply) else RepeatedReport(report.job_name)


def _current_state(report: Report, known: KnownSandboxJob | None) -> JobState:
    if known is not None:
        return known.state
    return JobState.IN_PROGRESS if report.event_type in SELF_REPORTS else JobState.DISPATCHED


def _job_event(report: Report, known: KnownSandboxJob | None) -> JobEvent:
    if report.status is ReportStatus.IN_PROGRESS:
        return JobEvent.STARTED
    if known is not None and known.conclusion not in (None, report.conclusion):
        return JobEvent.FINISHED_OTHERWISE
    return JobEvent.FINISHED


def _reject_transition(code: str, report: Report, known: KnownSandboxJob | None) -> RejectedReport:
    if known is None or known.conclusion is None:
        return RejectedReport(
            code,
            f"sandbox: no in_progress was reported for job {report.job_name!r} of run {report.run_id} "
            f"attempt {report.run_attempt}",
            'send in_progress with "late": true for this job, then this report again',
        )
    return RejectedReport(
        code,
        f"sandbox: job {report.job_name!r} already completed as {known.conclusion}, and {report.conclusion} is not taken",
        "re-run the job to report a new result; from an allowlisted repository it would be recorded as a dispute, "
        "and the worse result would count",
    )
