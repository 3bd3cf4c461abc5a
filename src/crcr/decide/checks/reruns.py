"""What running again means for a backend: which of its runs, and where only a fresh dispatch helps.

GitHub re-runs its own runs; whatever never started, or ran in another CI, gets the same delivery once more.
"""

from dataclasses import dataclass

from crcr.decide.checks.commit import Backend
from crcr.decide.checks.gate import BackendJudgement
from crcr.decide.checks.status import BLOCKED
from crcr.decide.model import DispatchState, RepoName

_AGAIN = frozenset({DispatchState.SENT, DispatchState.PARKED})
CUT_OFF = frozenset({"left the allowlist", "suspended"})
"""Why a dispatch was cancelled that may be wanted again: whoever came back can be asked."""


@dataclass(frozen=True, slots=True)
class RerunRun:
    run_id: str


@dataclass(frozen=True, slots=True)
class Redispatch:
    """Send the delivery again; runs that answered it wait for the new one."""


Again = RerunRun | Redispatch


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToAsk:
    """A run that is to run again, and where it is."""

    downstream: RepoName
    repository_id: int | None
    installation_id: int | None
    on_github: bool
    attempt: int
    """The one after which it is to run again."""


def run_again(backend: Backend, *, only_run: str | None = None) -> tuple[Again, ...]:
    """Everything of a backend once more, or just the run that a job belongs to, while that counts."""
    if backend.state is DispatchState.CANCELLED and backend.reason in CUT_OFF:
        return (Redispatch(),)
    if backend.state not in _AGAIN:
        return ()  # it has not begun: whatever it waits for brings it about
    live = backend.live_runs
    runs = [run for run in live if run.run_id == only_run] or live
    if backend.state is DispatchState.PARKED or not runs:
        return (Redispatch(),)
    return tuple(RerunRun(run.run_id) for run in runs)


def fails(judged: BackendJudgement) -> bool:
    return judged.standing in BLOCKED


def run_failed_again(judged: BackendJudgement) -> tuple[Again, ...]:
    """Only the runs in which something failed; a backend that failed as a whole runs as a whole."""
    failing = {part.job.run_id for part in judged.parts if part.job and part.standing in BLOCKED}
    if not failing:
        return run_again(judged.backend) if fails(judged) else ()
    return tuple(
        again
        for again in run_again(judged.backend)
        if isinstance(again, Redispatch) or again.run_id in failing
    )
