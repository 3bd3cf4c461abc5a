"""A rate limiter with a health signal: passes calls through, and counts whether the limiter answered.

It also probes the limiter without traffic, so that an outage is known before the first caller, and its end as well.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from crcr.errors import LimiterUnavailable, RateLimited
from crcr.ports import RequestLimiter

PROBE_EVERY_S = 10.0
_PROBE = "nobody"
"""The subject of probes, which are never counted."""


class LimiterCounters(Protocol):
    def limiter(self, *, answered: bool) -> None: ...


class MonitoredLimits:
    """Implements `ports.RequestLimiter`."""

    def __init__(self, inner: RequestLimiter, counters: LimiterCounters) -> None:
        self._inner = inner
        self._counters = counters

    async def take(self, scope: str, subject: str) -> None:
        with self._counted():
            await self._inner.take(scope, subject)

    async def check(self, scope: str, subject: str) -> None:
        with self._counted():
            await self._inner.check(scope, subject)

    async def probe_forever(
        self, scope: str, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Probe the limiter until cancelled."""
        while True:
            with suppress(LimiterUnavailable):  # the counters have it
                await self.probe(scope)
            await pause(PROBE_EVERY_S)

    async def probe(self, scope: str) -> None:
        """Raise `LimiterUnavailable` unless the limiter answers."""
        with suppress(RateLimited):
            await self.check(scope, _PROBE)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except RateLimited:
            self._counters.limiter(answered=True)
            raise
        except LimiterUnavailable:
            self._counters.limiter(answered=False)
            raise
        self._counters.limiter(answered=True)
