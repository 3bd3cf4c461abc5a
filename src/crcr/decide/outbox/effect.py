"""Effects of the outbox: a claimed effect, a failed attempt, and the urgency of each kind."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.checks.check_run import Tier
from crcr.decide.dispatch.payload import DispatchedDependency, PreparedPayload
from crcr.decide.github.requests_and_answers import Urgency
from crcr.decide.model import EffectKind, Level, RepoName
from crcr.decide.outbox.retry import GiveUp, TryAgain

CHECKS_QUEUE = "checks/"
"""What the target of a publication begins with; its tier follows."""
TIER_URGENCY: Mapping[Tier, Urgency] = {
    Tier.GATE: Urgency.FIRST,
    Tier.BACKEND: Urgency.CHECKS,
    Tier.JOB: Urgency.DETAILS,
}
_DETAILS = frozenset(
    {
        EffectKind.VERIFY_COMMIT,
        EffectKind.READ_ISSUE,
        EffectKind.INSPECT_REPOSITORY,
        EffectKind.READ_DEPENDENCY,
        EffectKind.SEND_NOTICES,
    }
)
READ_ONLY_KINDS = frozenset(
    {
        EffectKind.IDENTIFY_REPOSITORY,
        EffectKind.CONFIRM_HEAD,
        EffectKind.REFRESH_ALLOWLIST,
        EffectKind.ASK_FILES,
        EffectKind.READ_GROUP,
        EffectKind.LOOK_UP,
        EffectKind.VERIFY_COMMIT,
        EffectKind.READ_ISSUE,
        EffectKind.INSPECT_REPOSITORY,
        EffectKind.READ_DEPENDENCY,
        EffectKind.ADVANCE_BISECTION,
        EffectKind.ROUTE_NOTICES,
        EffectKind.FEED_HISTORY,
    }
)
"""Effects that only ask, or only change the relay's own stores: all that shadow mode carries out. A kind that is not
listed here, a new one for example, is not carried out."""
SHADOWED = "shadowed: not carried out in shadow mode"
"""What a shadowed effect says in place of an error."""


class AttemptOutcome(StrEnum):
    DONE = "done"
    POINTLESS = "pointless"
    """It was no longer wanted, and nothing was done."""
    SHADOWED = "shadowed"
    """Shadow mode decided everything, and sent nothing."""


def effect_urgency(kind: EffectKind, target: str) -> Urgency:
    """Return the most urgent class of the calls that an effect makes."""
    if kind is EffectKind.PUBLISH_CHECKS:
        return TIER_URGENCY[Tier(target.removeprefix(CHECKS_QUEUE))]
    return Urgency.DETAILS if kind in _DETAILS else Urgency.FIRST


class EffectFault(StrEnum):
    """Why an external service did not carry out an effect that will be retried."""

    UNANSWERED = "unanswered"
    """It was unreachable, timed out, or answered with a server error."""
    CREDENTIALS = "credentials"
    """It rejected our credentials."""


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
    """An earlier attempt may have succeeded: this one may be a duplicate."""
    created_at: datetime
    first_attempt_at: datetime
    """When the first attempt began: the retry period counts from here, not from its creation."""
    lease_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    decision: TryAgain | GiveUp
    error: str
    unsure: bool
    answered: bool = False
    """The target is reachable and refused only this effect."""
    counts: bool
    """False when nothing was tried (a rate limit): it does not count as an attempt."""
    held_by: str | None = None
    """The GitHub limit that it waits for; a value of `errors.HeldBy`."""
    fault: EffectFault | None = None
    """The external service's fault, where the effect itself is not the cause."""
    holds_queue: bool = False
    """Whether the same limit would hold back the effects of the same kind behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLoad:
    """Everything that is needed to send one dispatch."""

    downstream: RepoName
    level: Level
    purpose: str | None
    reason: str | None = None
    """Its `relay.reason`."""
    repository_id: int | None
    installation_id: int | None
    payload: PreparedPayload
    depends_on: DispatchedDependency | None = None
    trimmed: tuple[str, ...] = ()
    """The recorded cuts of an earlier attempt."""
