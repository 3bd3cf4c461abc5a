"""Reported results against GitHub's own view of the jobs.

The worse of the two counts. A reported job is compared with GitHub's jobs of the same name, so that no job can vouch
for another. Only a job that has ended on GitHub counts: a report is sent from inside a job that is still running.

At L4, where the App can read the downstream's Actions, a passing result counts for the gate only once GitHub agrees.
A name that none of GitHub's jobs has can be confirmed by its run only. Elsewhere a result counts as reported.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from crcr.decide.checks.commit import BackendResults, DispatchRun, JobResult, Verification
from crcr.decide.github.requests_and_answers import ActionsJob
from crcr.decide.jobs.lifecycle import badness, worse_conclusion
from crcr.decide.model import Conclusion, JobState


class Confirmation(StrEnum):
    """Whether GitHub confirms a reported result that would pass."""

    CONFIRMED = "confirmed"
    AS_REPORTED = "as reported"
    """Cannot be checked: the CI is not GitHub Actions, or the App may not read its Actions."""
    OPEN = "open"
    REFUTED = "refuted"
    RUN_DELETED = "run deleted"


def confirm_result(job: JobResult, backend: BackendResults) -> Confirmation:
    if job.verification is Verification.CONFIRMED:
        return Confirmation.CONFIRMED
    if job.verification is Verification.DISPUTED:
        # The worse of the two counts already; but a disputed result never is the expected one.
        expected = backend.expected(job.name) is not None
        return Confirmation.REFUTED if expected else Confirmation.CONFIRMED
    if job.verification is Verification.SELF_REPORTED or not backend.gates or backend.readable is False:
        return Confirmation.AS_REPORTED
    if job.verification is Verification.UNCHECKED:
        return Confirmation.OPEN
    return _confirm_by_run(job, next((run for run in backend.live_runs if run.run_id == job.run_id), None))


def awaits_github(backend: BackendResults, *, late: bool) -> bool:
    """Whether a gating backend waits only for GitHub's answer, so that a look-up must be queued.

    After the deadline only the conclusion of an ended run is still looked up: it can be read at once.
    """
    jobs = backend.counted_jobs
    if any(job.state is JobState.IN_PROGRESS for job in jobs):
        return False  # its report, or its time-out, queues the look-up
    unconfirmed = [
        job
        for job in jobs
        if job.state is JobState.COMPLETED and confirm_result(job, backend) is Confirmation.OPEN
    ]
    ended = {run.run_id for run in backend.live_runs if run.over and run.conclusion is None}
    return any(not late or job.run_id in ended for job in unconfirmed)


def _confirm_by_run(job: JobResult, run: DispatchRun | None) -> Confirmation:
    """Confirm a job whose name GitHub does not know by the conclusion of its run."""
    if run is None or not run.over or run.conclusion is None:
        return Confirmation.OPEN
    if run.conclusion is Conclusion.NONE:
        return Confirmation.RUN_DELETED
    skipped = job.conclusion in {Conclusion.SKIPPED, Conclusion.NEUTRAL}
    if run.conclusion is job.conclusion or (skipped and run.conclusion is Conclusion.SUCCESS):
        return Confirmation.CONFIRMED
    return Confirmation.REFUTED


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedJob:
    job_name: str
    reported_name: str
    state: JobState
    conclusion: Conclusion | None
    opened_by: str | None
    closed_by: str | None


@dataclass(frozen=True, slots=True)
class JobVerification:
    """The result of comparing a reported job with GitHub's view."""

    verification: Verification
    conclusion: Conclusion | None
    """The conclusion that counts now; None leaves it unchanged."""
    github: Conclusion | None


_HARMLESS = frozenset({Conclusion.SUCCESS, Conclusion.SKIPPED, Conclusion.NEUTRAL})


def match_github_jobs(
    job: ReportedJob, reported: Iterable[ReportedJob], github_jobs: Iterable[ActionsJob]
) -> tuple[ActionsJob, ...]:
    """Return the GitHub jobs that a row is compared with: those with its reported name.

    `reported` are all rows of the run's attempt. Where several jobs have the name, the signed check run id tells them
    apart: a row is not compared with a job that belongs to another row of that name.
    """
    reported = tuple(reported)
    named = tuple(candidate for candidate in github_jobs if candidate.name == job.reported_name)
    own_id = _own_id(job, reported)
    if own_id is None or all(candidate.check_run_id != own_id for candidate in named):
        return named
    others = {
        _own_id(row, reported)
        for row in reported
        if row.job_name != job.job_name and row.reported_name == job.reported_name
    }
    return tuple(
        candidate
        for candidate in named
        if candidate.check_run_id == own_id or candidate.check_run_id not in others
    )


def _own_id(job: ReportedJob, reported: Iterable[ReportedJob]) -> str | None:
    """Return the signed id that opened and closed the row, unless it has reported under another name as well."""
    own_id = job.opened_by
    if own_id is None or job.closed_by not in {None, own_id}:
        return None
    names = {row.reported_name for row in reported if own_id in {row.opened_by, row.closed_by}}
    return own_id if names <= {job.reported_name} else None


def compare_with_github(
    job: ReportedJob, github_jobs: tuple[ActionsJob, ...], *, whole: bool, run_over: bool
) -> JobVerification | None:
    """Return what to record about a completed job; None while that is not known.

    Without the `whole` list only a failure counts: another job of the name may be missing from `seen`.
    """
    github = _worst_conclusion(github_jobs)
    if github is None or not all(candidate.is_over for candidate in github_jobs) or not whole:
        if github is not None and github not in _HARMLESS:
            return _compare_conclusions(job, github)
        none_can_come = whole and run_over and not github_jobs
        return JobVerification(Verification.NOT_VERIFIABLE, None, None) if none_can_come else None
    return _compare_conclusions(job, github)


def _worst_conclusion(github_jobs: tuple[ActionsJob, ...]) -> Conclusion | None:
    ended = [job.conclusion or Conclusion.NONE for job in github_jobs if job.is_over]
    return max(ended, key=badness, default=None)


def _compare_conclusions(job: ReportedJob, github: Conclusion) -> JobVerification:
    reported = job.conclusion or Conclusion.NONE
    if reported is Conclusion.NONE:
        return JobVerification(Verification.CONFIRMED, github, github)
    if github is reported:
        return JobVerification(Verification.CONFIRMED, None, github)
    return JobVerification(Verification.DISPUTED, worse_conclusion(reported, github), github)


@dataclass(frozen=True, slots=True)
class SilentEnd:
    """How a silent job ends; without a conclusion it timed out, unreported."""

    conclusion: Conclusion | None
    github: Conclusion | None


def compare_silent_with_github(github_jobs: tuple[ActionsJob, ...], *, whole: bool) -> SilentEnd | None:
    """Return how a silent job ended on GitHub; None while it has not ended there."""
    github = _worst_conclusion(github_jobs)
    if github is not None and github not in _HARMLESS:
        return SilentEnd(github, github)
    if not whole or not all(job.is_over for job in github_jobs):
        return None
    return SilentEnd(None, github)
