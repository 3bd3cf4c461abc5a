"""Advances a bisection after a result of one of its runs was recorded; nothing outside is called."""

from crcr.decide.outbox.effect import ClaimedEffect
from crcr.ports import Clock
from crcr.record.bisection.bisections import Bisections


class AdvanceBisection:
    def __init__(self, bisections: Bisections, clock: Clock) -> None:
        self._bisections = bisections
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> None:
        await self._bisections.advance_after(effect.upstream, effect.delivery or "", self._clock.now())
