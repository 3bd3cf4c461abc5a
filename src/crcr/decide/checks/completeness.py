"""Whether a backend is complete: the expected jobs that have not reported yet.

Decided by the names in its `jobs` and, where its Actions can be read, by the end of its runs on GitHub: a glob that one
shard matches, or a name that two workflows share, proves nothing while a run is going.
"""

from collections.abc import Iterable
from datetime import timedelta

from crcr.decide.checks.commit import BackendResults, DispatchRun, JobResult
from crcr.decide.checks.status import GateStatus, JudgedPart
from crcr.decide.globs import name_glob
from crcr.decide.model import Conclusion, JobState

QUIET = timedelta(minutes=2)
"""For this long no new run may appear before the ended runs count as all of them."""
_HARMLESS = frozenset({Conclusion.SUCCESS, Conclusion.SKIPPED, Conclusion.NEUTRAL})


def owed_parts(backend: BackendResults, jobs: tuple[JobResult, ...], *, late: bool) -> Iterable[JudgedPart]:
    """Yield a part for each expected job or run that is missing before the backend is complete."""
    unclear = why_names_needed(backend)
    if unclear is not None:
        yield JudgedPart(standing=GateStatus.ERRORED, name=None, reason=unclear)
        return
    required_jobs = backend.entry.jobs if backend.entry is not None else None
    unnamed = tuple(_owed_by_name(required_jobs or (), jobs, late=late))
    yield from unnamed
    if backend.readable is False or (required_jobs is not None and not backend.gates):
        return  # only names decide, and for a backend that gates nothing its reported jobs are enough
    yield from _owed_by_failed_runs(backend, jobs, late=late)
    if required_jobs is not None:
        # Once it is late, a missing name already explains why a run has not ended.
        if not known_runs_are_over(backend) and not (late and unnamed):
            yield _owed_by_runs(backend, jobs, late=late)
    elif not runs_are_over(backend):
        yield _owed_by_runs(backend, jobs, late=late)
    elif not jobs:
        standing = GateStatus.MISSING if late else GateStatus.WAITING
        yield JudgedPart(standing=standing, name=None, reason="its runs are over, and no report has arrived")


def _owed_by_name(
    required_jobs: tuple[str, ...], jobs: tuple[JobResult, ...], *, late: bool
) -> Iterable[JudgedPart]:
    standing = GateStatus.MISSING if late else GateStatus.WAITING
    for glob in required_jobs:
        if not any(job.name == glob or name_glob(glob).matches(job.name) for job in jobs):
            reason = "nothing arrived in time" if late else "has not reported yet"
            yield JudgedPart(standing=standing, name=glob, reason=reason)


def _owed_by_runs(backend: BackendResults, jobs: tuple[JobResult, ...], *, late: bool) -> JudgedPart:
    if not backend.live_runs:
        return nothing_yet(late=late)
    if late:
        standing = GateStatus.ERRORED if jobs else GateStatus.MISSING
        reason = "GitHub has not confirmed in time that its runs are over"
    else:
        standing, reason = GateStatus.WAITING, "GitHub has not confirmed yet that its runs are over"
        if all(run.over for run in backend.live_runs):
            reason = "its runs are over; another may still appear within 2 minutes"
    return JudgedPart(standing=standing, name=None, reason=reason)


def _owed_by_failed_runs(
    backend: BackendResults, jobs: tuple[JobResult, ...], *, late: bool
) -> Iterable[JudgedPart]:
    """Yield a part for each run that failed on GitHub without a reported failure: a job ended before it could report."""
    for run in backend.live_runs if backend.gates else ():
        if not _failed_unreported(run, backend, [job for job in jobs if job.run_id == run.run_id]):
            continue
        ending = f"attempt {run.attempt} of run {run.run_id} ended as {run.conclusion} on GitHub"
        if run.rerun_from is not None and run.rerun_from >= run.attempt and not late:
            yield JudgedPart(standing=GateStatus.WAITING, name=None, reason=f"runs again after: {ending}")
        else:
            reason = f"{ending}, and no job has reported a failure from it: run it again"
            yield JudgedPart(standing=GateStatus.ERRORED, name=None, reason=reason)


def _failed_unreported(run: DispatchRun, backend: BackendResults, jobs: list[JobResult]) -> bool:
    """Whether no reported job explains the failure of a run that has reported.

    An entry with literal `jobs` says which jobs count: another one may fail, unless the run was re-run and nothing of
    the new attempt is known.
    """
    if not jobs or not run.over or run.conclusion in {None, Conclusion.NONE, *_HARMLESS}:
        return False
    newest = max(job.attempt for job in jobs)
    if newest == run.attempt and backend.entry is not None and backend.entry.names_jobs:
        return False
    return all(job.conclusion in _HARMLESS for job in jobs if job.attempt == newest)


def nothing_yet(*, late: bool) -> JudgedPart:
    if late:
        return JudgedPart(standing=GateStatus.MISSING, name=None, reason="no run has answered in time")
    return JudgedPart(standing=GateStatus.WAITING, name=None, reason="no run has answered yet")


def why_names_needed(backend: BackendResults) -> str | None:
    """Return why a gating backend needs a literal list of `jobs` and has none; None when it needs none."""
    if not backend.gates or (backend.entry is not None and backend.entry.names_jobs):
        return None
    if backend.readable is False:
        return "its Actions cannot be read: name its `jobs` literally, or grant Actions: read"
    if any(not run.on_github for run in backend.live_runs):
        return "its CI is not GitHub Actions: name its `jobs` literally"
    return None


def known_runs_are_over(backend: BackendResults) -> bool:
    """Whether every known run has ended on GitHub; runs of another CI cannot be looked up and are skipped."""
    return all(run.over for run in backend.live_runs if run.on_github)


def awaits_end(backend: BackendResults) -> bool:
    """Whether all reported jobs have ended and a run goes on: its webhook may be lost, so it must be looked up."""
    jobs = backend.counted_jobs
    ended = bool(jobs) and all(job.state is not JobState.IN_PROGRESS for job in jobs)
    return ended and backend.readable is not False and not known_runs_are_over(backend)


def runs_are_over(backend: BackendResults) -> bool:
    """Whether every known run has ended on GitHub, and none appeared for a while after the newest began."""
    runs = backend.live_runs
    listed_at = backend.listed_at
    return (
        bool(runs)
        and all(run.over for run in runs)
        and listed_at is not None
        and listed_at >= max(run.first_seen_at for run in runs) + QUIET
    )
