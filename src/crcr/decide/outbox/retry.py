"""When an effect is retried, when it is given up, and when a target's circuit breaker opens.

Pure: the time, the attempts so far and one random number go in, a decision comes out.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

FIRST_DELAY_S = 2.0
LONGEST_DELAY_S = 15 * 60.0
GIVE_UP_AFTER = timedelta(hours=24)

TRIPS_AT = 5
FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 10 * 60.0


@dataclass(frozen=True, slots=True)
class TryAgain:
    due_at: datetime


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


def retry_after_fault(
    *, attempts: int, first_attempt_at: datetime, now: datetime, chance: float
) -> TryAgain | GiveUp:
    """Decide after the `attempts`-th attempt failed temporarily; `chance` in [0, 1) spreads the retries."""
    if now - first_attempt_at >= GIVE_UP_AFTER:
        return GiveUp("given up after 24 hours")
    ceiling = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(attempts - 1, 20))
    return TryAgain(now + timedelta(seconds=ceiling * (0.5 + chance / 2)))


def retry_after_limit(
    *, retry_after_s: float, first_attempt_at: datetime, now: datetime, chance: float
) -> TryAgain | GiveUp:
    """Decide after GitHub, or our own rate limiter, asked to wait."""
    if now - first_attempt_at >= GIVE_UP_AFTER:
        return GiveUp("given up after 24 hours of rate limits")
    return TryAgain(now + timedelta(seconds=retry_after_s + min(retry_after_s, 5.0) * chance * 0.2))


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """A target's circuit breaker. Open means: one probe at a time, after a pause that doubles."""

    failures: int = 0
    open_until: datetime | None = None

    def blocks(self, now: datetime) -> bool:
        return self.open_until is not None and now < self.open_until

    def failed(self, now: datetime) -> "CircuitBreaker":
        failures = self.failures + 1
        if failures < TRIPS_AT:
            return replace(self, failures=failures)
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - TRIPS_AT, 20))
        return CircuitBreaker(failures, now + timedelta(seconds=pause))

    def probing(self, now: datetime) -> "CircuitBreaker":
        """Let one attempt through, and hold the others back until its outcome is known."""
        if self.open_until is None:
            return self
        return replace(self, open_until=now + timedelta(seconds=FIRST_PAUSE_S))
