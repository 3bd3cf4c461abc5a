"""What running again means for a backend: which of its runs, and where only a fresh dispatch helps.

GitHub re-runs its own runs; whatever never started, or ran in another CI, gets the same delivery once more.
"""

from dataclasses import dataclass

from crcr.decide.checks.commit import BackendResults
from crcr.decide.checks.gate import BackendJudgement
from crcr.decide.checks.status import BLOCKED
from crcr.decide.model import DispatchState, RepoName

_AGAIN = frozenset({DispatchState.SENT, DispatchState.PARKED})
CUT_OFF = frozenset({"left the allowlist", "suspended"})
"""Why a dispatch was cancelled that may be wanted again: whoever came back can be asked."""


@dataclass(frozen=True, slots=True)
class RunRerun:
    run_id: str


@dataclass(frozen=True, slots=True)
class Redispatch:
    """Send the delivery again; runs that answered it wait for the new one."""


Rerun = RunRerun | Redispatch


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToRerun:
    """A run that is to run again, and where it is."""

    downstream: RepoName
    repository_id: int | None
    installation_id: int | None
    on_github: bool
    attempt: int
    """The one after which it is to run again."""


def plan_rerun(backend: BackendResults, *, only_run: str | None = None) -> tuple[Rerun, ...]:
    """Everything of a backend once more, or just the run that a job belongs to, while that counts."""
    if backend.state is DispatchState.CANCELLED and backend.reason in CUT_OFF:
        return (Redispatch(),)
    if backend.state not in _AGAIN:
        return ()  # it has not begun: whatever it waits for brings it about
    live = backend.live_runs
    runs = [run for run in live if run.run_id == only_run] or live
    if backend.state is DispatchState.PARKED or not runs:
        return (Redispatch(),)
    return tuple(RunRerun(run.run_id) for run in runs)


def has_failed(judged: BackendJudgement) -> bool:
    return judged.standing in BLOCKED


def plan_rerun_of_failed(judged: BackendJudgement) -> tuple[Rerun, ...]:
    """Only the runs in which something failed; a backend that failed as a whole runs as a whole."""
    failing = {part.job.run_id for part in judged.parts if part.job and part.standing in BLOCKED}
    if not failing:
        return plan_rerun(judged.backend) if has_failed(judged) else ()
    return tuple(
        again
        for again in plan_rerun(judged.backend)
        if isinstance(again, Redispatch) or again.run_id in failing
    )
