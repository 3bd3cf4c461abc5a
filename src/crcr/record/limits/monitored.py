"""A limiter that is watched: whoever asks it is answered as before, and it is noted whether it answered at all.

It is also asked when nobody calls, so that a limiter that is away is known before the first caller finds out, and one
failed question is not remembered until the next caller comes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from crcr.errors import LimiterUnavailable, RateLimited
from crcr.ports import RequestLimiter

ASK_EVERY_S = 10.0
_NOBODY = "nobody"
"""Asks and never takes: no window fills by it."""


class Tally(Protocol):
    def limiter(self, *, answered: bool) -> None: ...


class WatchedLimits:
    """Implements `ports.RequestLimiter`."""

    def __init__(self, inner: RequestLimiter, tally: Tally) -> None:
        self._inner = inner
        self._tally = tally

    async def take(self, scope: str, subject: str) -> None:
        with self._watched():
            await self._inner.take(scope, subject)

    async def check(self, scope: str, subject: str) -> None:
        with self._watched():
            await self._inner.check(scope, subject)

    async def keep_asking(
        self, scope: str, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Ask by ourselves, until cancelled."""
        while True:
            with suppress(LimiterUnavailable):  # it is noted, and there is nobody to tell
                await self.ask(scope)
            await pause(ASK_EVERY_S)

    async def ask(self, scope: str) -> None:
        """Raise `LimiterUnavailable` unless it answers."""
        with suppress(RateLimited):
            await self.check(scope, _NOBODY)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except RateLimited:
            self._tally.limiter(answered=True)
            raise
        except LimiterUnavailable:
            self._tally.limiter(answered=False)
            raise
        self._tally.limiter(answered=True)
