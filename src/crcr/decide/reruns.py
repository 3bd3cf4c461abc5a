"""What running again means for a backend: which of its runs, and where only a fresh dispatch helps.

GitHub re-runs its own runs; whatever never started, or ran in another CI, gets the same delivery once more.
"""

from dataclasses import dataclass

from crcr.decide.commit import Backend
from crcr.decide.gate import BackendJudgement, Standing, live_runs
from crcr.decide.model import DispatchState

_FAILING = frozenset({Standing.FAILED, Standing.ERRORED, Standing.MISSING, Standing.DECLINED})
_AGAIN = frozenset({DispatchState.SENT, DispatchState.PARKED})


@dataclass(frozen=True, slots=True)
class RerunRun:
    run_id: str


@dataclass(frozen=True, slots=True)
class Redispatch:
    """Send the delivery again; runs that answered it wait for the new one."""


Again = RerunRun | Redispatch


def run_again(backend: Backend, *, only_run: str | None = None) -> tuple[Again, ...]:
    """Everything of a backend once more, or just the run that a job belongs to."""
    if backend.state not in _AGAIN:
        return ()  # it has not begun: whatever it waits for brings it about
    runs = [run for run in live_runs(backend) if only_run in (None, run.run_id)]
    if backend.state is DispatchState.PARKED or not runs:
        return (Redispatch(),)
    return tuple(RerunRun(run.run_id) for run in runs)


def fails(judged: BackendJudgement) -> bool:
    return judged.standing in _FAILING


def run_failed_again(judged: BackendJudgement) -> tuple[Again, ...]:
    """Only the runs in which something failed; a backend that failed as a whole runs as a whole."""
    failing = {part.job.run_id for part in judged.parts if part.job and part.standing in _FAILING}
    if not failing:
        return run_again(judged.backend) if fails(judged) else ()
    return tuple(
        again
        for again in run_again(judged.backend)
        if isinstance(again, Redispatch) or again.run_id in failing
    )
