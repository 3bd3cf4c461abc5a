"""How one upstream's outbox stands, kind by kind, as those who watch the relay see it.

Late is what is due and not done: an effect that was postponed is not late before its time has come.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectQueue:
    """The effects of one kind that one upstream has."""

    kind: str
    waiting: int = 0
    claimed: int = 0
    parked: int = 0
    lag_s: float | None = None
    """How long the oldest one has been due; None when none is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmFacts:
    """What is worth an alarm beside the queues."""

    paused: bool = False
    """Whether an operator has stopped the dispatches."""
    allowlist_bad: bool = False
    """Whether the newest version of the allowlist has errors, so that an older one decides."""
    last_delivery_s: float | None = None
    """How long ago the newest webhook was recorded; None when there was none."""
    gate_overdue_s: float = 0.0
    """How long ago a gate should have been judged anew that was not; 0 when all were."""
