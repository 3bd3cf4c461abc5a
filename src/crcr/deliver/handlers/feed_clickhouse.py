"""Feeds ClickHouse with what it does not have yet: in batches, oldest first, retried until it succeeds.

An outage of ClickHouse loses nothing: unfed rows stay in the main store, and feeding is retried every 30 s.
"""

from datetime import datetime, timedelta
from typing import Protocol

from crcr.decide.outbox.effect import ClaimedEffect
from crcr.errors import NotPossible, OutsideFault, OutsideLimited
from crcr.ports import Clock

_AT_ONCE = 1_000
_BATCHES = 20
"""Per effect; another effect continues then, so that a stopping worker does not wait for all batches."""
_RETRY_S = 30.0
_NEVER_GIVEN_UP = timedelta(hours=12)


class Feeder(Protocol):
    async def make_ready(self) -> None:
        """Create or upgrade the tables, once."""
        ...

    async def feed(self, upstream: str, most: int) -> int:
        """Feed the oldest unfed rows; return how many."""
        ...

    async def again(self, upstream: str, now: datetime, due_at: datetime) -> None: ...


class FeedHistory:
    def __init__(self, feeder: Feeder, clock: Clock) -> None:
        self._feeder = feeder
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        upstream, now = effect.upstream.key, self._clock.now()
        try:
            await self._feed(upstream, now)
        except (OutsideFault, NotPossible) as fault:
            if now - effect.first_attempt_at < _NEVER_GIVEN_UP:
                raise OutsideLimited(fault.detail, retry_after_s=_RETRY_S) from None
            # An effect is parked in the end, but feeding must go on, so a new effect replaces it.
            await self._feeder.again(upstream, now, now + timedelta(seconds=_RETRY_S))
            return False
        return True

    async def _feed(self, upstream: str, now: datetime) -> None:
        await self._feeder.make_ready()
        for _ in range(_BATCHES):
            if await self._feeder.feed(upstream, _AT_ONCE) < _AT_ONCE:
                return
        await self._feeder.again(upstream, now, now)
