"""Re-runs of a backend: which of its workflow runs are re-run, and when the delivery is dispatched again.

GitHub re-runs its own runs; a run that never started, or that ran in another CI, gets the same delivery once more.
"""

from dataclasses import dataclass

from crcr.decide.checks.commit import BackendResults
from crcr.decide.checks.gate import BackendJudgement
from crcr.decide.checks.status import BLOCKED, GateStatus
from crcr.decide.model import DispatchState, RepoName

_AGAIN = frozenset({DispatchState.SENT, DispatchState.PARKED})
CUT_OFF = frozenset({"left the allowlist", "suspended"})
"""Reasons of a cancelled dispatch that can be sent again: the downstream may have come back."""


@dataclass(frozen=True, slots=True)
class RunRerun:
    run_id: str


@dataclass(frozen=True, slots=True)
class Redispatch:
    """Send the delivery again; the runs that answered it before are replaced by the new ones."""


Rerun = RunRerun | Redispatch


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToRerun:
    """A run to re-run, and where it is."""

    downstream: RepoName
    repository_id: int | None
    installation_id: int | None
    on_github: bool
    attempt: int
    """The attempt to re-run."""


def plan_rerun(backend: BackendResults, *, only_run: str | None = None) -> tuple[Rerun, ...]:
    """Re-run all of a backend, or only the run of one job, while that run counts."""
    if backend.state is DispatchState.CANCELLED and backend.reason in CUT_OFF:
        return (Redispatch(),)
    if backend.state not in _AGAIN:
        return ()  # it has not begun, and starts by itself
    live = backend.live_runs
    runs = [run for run in live if run.run_id == only_run] or live
    if backend.state is DispatchState.PARKED or not runs:
        return (Redispatch(),)
    return tuple(RunRerun(run.run_id) for run in runs)


def has_failed(judged: BackendJudgement) -> bool:
    return judged.standing in BLOCKED


def plan_rerun_of_failed(judged: BackendJudgement) -> tuple[Rerun, ...]:
    """Re-run only the runs in which a job failed; a backend that failed as a whole is re-run as a whole.

    A backend that a pair holds has failed by itself.
    """
    failed = {*BLOCKED, GateStatus.HELD} if judged.is_held_by_pair else BLOCKED
    failing = {part.job.run_id for part in judged.parts if part.job and part.standing in failed}
    if not failing:
        return plan_rerun(judged.backend) if has_failed(judged) else ()
    return tuple(
        again
        for again in plan_rerun(judged.backend)
        if isinstance(again, Redispatch) or again.run_id in failing
    )
