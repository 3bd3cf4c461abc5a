"""Where a backend, and each job of it, stands with the gate."""

from dataclasses import dataclass
from enum import StrEnum

from crcr.decide.commit import Job, Waiver


class Standing(StrEnum):
    """Where a backend, or one job of it, stands with the gate."""

    FAILED = "failed"
    ERRORED = "errored"
    MISSING = "missing"
    DECLINED = "declined"
    WAITING = "waiting"
    HELD = "held"
    WAIVED = "waived"
    EXCUSED = "excused"
    NOT_CONCERNED = "not concerned"
    PASSED = "passed"


BLOCKED = frozenset({Standing.FAILED, Standing.ERRORED, Standing.MISSING, Standing.DECLINED})
"""What keeps the gate shut until somebody does something about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One job of a backend, or what is owed in place of one, as the gate sees it."""

    standing: Standing
    name: str | None
    """None: the backend as a whole."""
    reason: str
    job: Job | None = None
    waiver: Waiver | None = None
