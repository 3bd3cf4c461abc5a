"""Effects as the worker sees them: what was claimed, and what became of an attempt."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.checks.check_run import Tier
from crcr.decide.dispatch.payload import PreparedPayload
from crcr.decide.github.values import Urgency
from crcr.decide.model import EffectKind, Level, RepoName
from crcr.decide.outbox.retry import GiveUp, TryAgain

CHECKS_QUEUE = "checks/"
"""What the target of a publication begins with; its tier follows."""
TIER_URGENCY: Mapping[Tier, Urgency] = {
    Tier.GATE: Urgency.FIRST,
    Tier.BACKEND: Urgency.CHECKS,
    Tier.JOB: Urgency.DETAILS,
}
_DETAILS = frozenset({EffectKind.VERIFY_COMMIT, EffectKind.INSPECT_REPOSITORY})


def effect_urgency(kind: EffectKind, target: str) -> Urgency:
    """Return the most urgent class of the calls that an effect makes."""
    if kind is EffectKind.PUBLISH_CHECKS:
        return TIER_URGENCY[Tier(target.removeprefix(CHECKS_QUEUE))]
    return Urgency.DETAILS if kind in _DETAILS else Urgency.FIRST


class EffectFault(StrEnum):
    """Why a service outside did nothing for an effect that is tried again."""

    UNANSWERED = "unanswered"
    """It was not reached, did not answer in time, or answered with an error of its own."""
    CREDENTIALS = "credentials"
    """It does not accept our credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedEffect:
    effect_id: int
    upstream: RepoName
    kind: EffectKind
    target: str
    lane: str
    delivery: str | None
    payload: bytes | None
    attempts: int
    unsure: bool
    """An earlier attempt may have been carried out: this one may be the second."""
    created_at: datetime
    first_attempt_at: datetime
    """When somebody first began on it: patience is counted from here, not from how long it had to wait before."""
    lease_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    decision: TryAgain | GiveUp
    error: str
    unsure: bool
    answered: bool = False
    """The target refused this one effect: it is there, and takes others."""
    counts: bool
    """False when nothing was tried (a rate limit): it is no attempt of the effect's own."""
    held_by: str | None = None
    """The limit of GitHub's that it waits for; a value of `errors.HeldBy`."""
    fault: EffectFault | None = None
    """Why nobody could do it, where that is not the effect's own fault."""
    holds_queue: bool = False
    """What waits behind it, of the same kind, would only be held back by the same limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLoad:
    """What it takes to send one dispatch."""

    downstream: RepoName
    level: Level
    test: bool
    reason: str | None = None
    """`relay.reason` of it."""
    repository_id: int | None
    installation_id: int | None
    payload: PreparedPayload
    trimmed: tuple[str, ...] = ()
    """What the store holds as cut from it, by an earlier attempt."""
