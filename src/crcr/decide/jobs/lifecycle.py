"""The job lifecycle as a table: one transition for every state and event.

`Apply` changes the job's state, `Repeat` is success without a change, `Reject` is a refusal with a code. Nothing else in
the relay decides about a job's state. The diagram in docs/lifecycle.md is generated from this table.
"""

from dataclasses import dataclass
from enum import StrEnum

from crcr.decide.model import Conclusion, JobMark, JobState


class JobEvent(StrEnum):
    STARTED = "in_progress"
    FINISHED = "completed"
    FINISHED_OTHERWISE = "completed with another conclusion"
    WENT_SILENT = "silence"
    ENDED_ON_GITHUB = "GitHub says that it ended badly"


@dataclass(frozen=True, slots=True)
class Apply:
    state: JobState
    mark: JobMark | None = None


@dataclass(frozen=True, slots=True)
class Repeat:
    pass


@dataclass(frozen=True, slots=True)
class Reject:
    code: str
    mark: JobMark | None = None
    """The mark that the refused report leaves on the job."""


Transition = Apply | Repeat | Reject

_S, _E = JobState, JobEvent

LIFECYCLE: dict[tuple[JobState, JobEvent], Transition] = {
    (_S.DISPATCHED, _E.STARTED): Apply(_S.IN_PROGRESS),
    (_S.DISPATCHED, _E.FINISHED): Reject("no_in_progress"),
    (_S.DISPATCHED, _E.FINISHED_OTHERWISE): Reject("no_in_progress"),
    (_S.DISPATCHED, _E.WENT_SILENT): Repeat(),
    (_S.DISPATCHED, _E.ENDED_ON_GITHUB): Repeat(),
    (_S.IN_PROGRESS, _E.STARTED): Repeat(),
    (_S.IN_PROGRESS, _E.FINISHED): Apply(_S.COMPLETED),
    (_S.IN_PROGRESS, _E.FINISHED_OTHERWISE): Apply(_S.COMPLETED),
    (_S.IN_PROGRESS, _E.WENT_SILENT): Apply(_S.TIMED_OUT),
    (_S.IN_PROGRESS, _E.ENDED_ON_GITHUB): Apply(_S.COMPLETED),
    (_S.COMPLETED, _E.STARTED): Repeat(),
    (_S.COMPLETED, _E.FINISHED): Repeat(),
    (_S.COMPLETED, _E.FINISHED_OTHERWISE): Reject("conflicting_result", JobMark.DISPUTED),
    (_S.COMPLETED, _E.WENT_SILENT): Repeat(),
    (_S.COMPLETED, _E.ENDED_ON_GITHUB): Repeat(),
    (_S.TIMED_OUT, _E.STARTED): Repeat(),
    (_S.TIMED_OUT, _E.FINISHED): Apply(_S.COMPLETED, JobMark.LATE),
    (_S.TIMED_OUT, _E.FINISHED_OTHERWISE): Apply(_S.COMPLETED, JobMark.LATE),
    (_S.TIMED_OUT, _E.WENT_SILENT): Repeat(),
    (_S.TIMED_OUT, _E.ENDED_ON_GITHUB): Apply(_S.COMPLETED),
}

_BEST_TO_WORST = (
    Conclusion.SUCCESS,
    Conclusion.NEUTRAL,
    Conclusion.SKIPPED,
    Conclusion.CANCELLED,
    Conclusion.ACTION_REQUIRED,
    Conclusion.TIMED_OUT,
    Conclusion.NONE,
    Conclusion.FAILURE,
)


def worse_conclusion(first: Conclusion, second: Conclusion) -> Conclusion:
    """Return the one of two conclusions for the same job that counts."""
    return max(first, second, key=badness)


def badness(conclusion: Conclusion) -> int:
    """Return a rank from best to worst; no two conclusions are equal."""
    return _BEST_TO_WORST.index(conclusion)


def lifecycle_diagram() -> str:
    """Return the table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> dispatched"]
    for (state, event), verdict in LIFECYCLE.items():
        if isinstance(verdict, Apply):
            marked = f" ({verdict.mark})" if verdict.mark else ""
            lines.append(f"    {state} --> {verdict.state}: {event}{marked}")
    return "\n".join(lines) + "\n"
