"""The hourly limit of one installation: which calls may go now, and until when the others wait.

Pure. A share of the limit is reserved for the first class, which is held back only when GitHub counts nothing left. What
is left above the reserve is spread over the time that is left: a call of the other classes costs time left ÷ calls left
in seconds. A quiet quarter of an hour saves up for a burst, half of which the details leave to the checks. Times are
seconds since the epoch, as in GitHub's headers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from crcr.decide.github.requests_and_answers import Urgency

RESERVED_SHARE = 0.2
"""The first class's share of the hourly limit: 1,000 of 5,000 calls."""
BURST_S = 900.0
"""How much unused pace an installation can save up: at most a quarter of the hour's calls at once."""
LEFT_OF_BURST_S: Mapping[Urgency, float] = {
    Urgency.CHECKS: 0.0,
    Urgency.DETAILS: BURST_S / 2,
}
"""How much of the burst a class leaves to the more urgent ones."""
RETURN_AFTER_S: Mapping[Urgency, float] = {
    Urgency.FIRST: 0.0,
    Urgency.CHECKS: 5.0,
    Urgency.DETAILS: 15.0,
}
"""After a limit has ended, the classes resume one after the other."""
ANSWER_S = 1.0
"""How soon to retry when only calls in flight stand between a call and the limit."""
GITHUB_LIMIT = 5_000
"""An installation's hourly limit, where a response does not name it."""


@dataclass(frozen=True, slots=True)
class HourCount:
    """The count in GitHub's last response."""

    remaining: int
    limit: int
    resets_at: float

    def floor(self, urgency: Urgency) -> int:
        """Return the count below which calls of the class wait."""
        return 0 if urgency is Urgency.FIRST else int(self.limit * RESERVED_SHARE)


@dataclass(frozen=True, slots=True)
class Spending:
    """Our use of the hour since: calls in flight, and how far the pace is used up."""

    in_flight: int = 0
    paced_until: float = 0.0
    """When the calls of the paced classes so far would have ended, one after the other at the pace."""


def hour_wait_s(
    count: HourCount, spending: Spending, urgency: Urgency, now: float, *, workers: int = 1
) -> float:
    """Return how many seconds the hourly limit delays a call; 0 or less when it may go."""
    available = count.remaining - count.floor(urgency)
    if available <= 0:
        # Until a response brings the next hour's count, the classes resume in their order.
        return count.resets_at + RETURN_AFTER_S[urgency] - now
    if now >= count.resets_at:
        return 0.0
    if available <= spending.in_flight:
        return ANSWER_S
    if urgency is Urgency.FIRST:
        return 0.0
    paced_until = pace_after(count, spending, now, workers=workers)
    until_reset_s = count.resets_at + RETURN_AFTER_S[urgency] - now
    return min(paced_until + LEFT_OF_BURST_S[urgency] - now, until_reset_s)


def pace_after(count: HourCount, spending: Spending, now: float, *, workers: int = 1) -> float:
    """Return `paced_until` after one more call of a paced class; each of several workers takes its share."""
    available = count.remaining - count.floor(Urgency.CHECKS) - spending.in_flight
    call_s = workers * max(count.resets_at - now, 0.0) / max(available, 1)
    return max(spending.paced_until, now - BURST_S) + call_s
