"""How urgent a call to GitHub is: which calls go on while GitHub's limits leave too few for all of them.

The class belongs to what waits for the answer, not to the endpoint: the same endpoint publishes a gate that holds up
a merge and a job check that somebody may look at later.
"""

from collections.abc import Mapping
from enum import IntEnum

from crcr.decide.checks import Tier
from crcr.decide.model import EffectKind

CHECKS_QUEUE = "checks/"
"""What the target of a publication begins with; its tier follows."""


class Urgency(IntEnum):
    """Classes of calls in the order in which they go out; the lowest number first."""

    FIRST = 0
    """A merge, a backend or a person waits: gates, dispatches, file questions, merge groups, answers to commands."""
    CHECKS = 1
    """The checks of backends."""
    DETAILS = 2
    """Job checks, updates of mere text, look-ups that no gate waits for, inspections."""


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
