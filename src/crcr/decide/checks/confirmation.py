"""Whether GitHub agrees with a reported result.

At L4, where its Actions can be read, a result that would let the gate pass counts only once GitHub agrees. A name
that none of GitHub's jobs has can be confirmed by its run only. Elsewhere a result counts as reported.
"""

from enum import StrEnum

from crcr.decide.checks.commit import BackendResults, DispatchRun, JobResult, Verification
from crcr.decide.model import Conclusion, JobState


class Confirmation(StrEnum):
    """What GitHub says of a reported result that would pass."""

    CONFIRMED = "confirmed"
    AS_REPORTED = "as reported"
    """Nobody can ask: the CI is elsewhere, or the App may not read its Actions."""
    OPEN = "open"
    REFUTED = "refuted"
    RUN_DELETED = "run deleted"


def confirm_result(job: JobResult, backend: BackendResults) -> Confirmation:
    if job.verification is Verification.CONFIRMED:
        return Confirmation.CONFIRMED
    if job.verification is Verification.DISPUTED:
        # The worse of both counts already; but no dispute is what an entry expects.
        expected = backend.expected(job.name) is not None
        return Confirmation.REFUTED if expected else Confirmation.CONFIRMED
    if job.verification is Verification.SELF_REPORTED or not backend.gates or backend.readable is False:
        return Confirmation.AS_REPORTED
    if job.verification is Verification.UNCHECKED:
        return Confirmation.OPEN
    return _by_run(job, next((run for run in backend.live_runs if run.run_id == job.run_id), None))


def awaits_github(backend: BackendResults, *, late: bool) -> bool:
    """Whether only GitHub's answer can move a gating backend on, so that a look-up must be under way.

    Past the deadline only how a run ended that is over is still worth a question: the answer is there to be read.
    """
    jobs = backend.counted_jobs
    if any(job.state is JobState.IN_PROGRESS for job in jobs):
        return False  # its own report, or its silence, asks
    unconfirmed = [
        job
        for job in jobs
        if job.state is JobState.COMPLETED and confirm_result(job, backend) is Confirmation.OPEN
    ]
    ended = {run.run_id for run in backend.live_runs if run.over and run.conclusion is None}
    return any(not late or job.run_id in ended for job in unconfirmed)


def _by_run(job: JobResult, run: DispatchRun | None) -> Confirmation:
    """Judge a job that GitHub shows under no such name by how its run ended."""
    if run is None or not run.over or run.conclusion is None:
        return Confirmation.OPEN
    if run.conclusion is Conclusion.NONE:
        return Confirmation.RUN_DELETED
    skipped = job.conclusion in {Conclusion.SKIPPED, Conclusion.NEUTRAL}
    if run.conclusion is job.conclusion or (skipped and run.conclusion is Conclusion.SUCCESS):
        return Confirmation.CONFIRMED
    return Confirmation.REFUTED
