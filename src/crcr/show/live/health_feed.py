"""Tells open streams that the relay's health changed: one loop for all of them, which runs while there is one.

Health changes without any change in the log too: a limit ends, a gate becomes late, nobody sends webhooks any more.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from crcr.decide.model import RepoName
from crcr.errors import Unavailable
from crcr.ports import Clock
from crcr.show.live.shared_health import SharedHealth, mark_of

LOOK_EVERY_S = 5.0


class HealthFeed:
    def __init__(
        self,
        health: SharedHealth,
        upstreams: tuple[RepoName, ...],
        clock: Clock,
        every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._health = health
        self._upstreams = upstreams
        self._clock = clock
        self._every_s = every_s
        self._streams: set[asyncio.Event] = set()
        self._loop: asyncio.Task[None] | None = None
        self._marks: dict[str, str] = {}

    @contextmanager
    def attached(self, fresh: asyncio.Event) -> Iterator[None]:
        """Have `fresh` set whenever the health of an upstream changed."""
        self._streams.add(fresh)
        if self._loop is None:
            self._loop = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._streams.discard(fresh)
            if not self._streams and self._loop is not None:
                self._loop.cancel()
                self._loop = None
                self._marks = {}

    async def marks(self) -> dict[str, str]:
        """Return for each upstream what tells one state of its health from another."""
        if not self._marks:
            await self._look()
        return self._marks

    async def _run(self) -> None:
        while True:
            before = self._marks
            await self._look()
            if before and before != self._marks:
                for fresh in self._streams:
                    fresh.set()
            await self._clock.sleep(self._every_s)

    async def _look(self) -> None:
        try:
            read = await self._health.read()
        except Unavailable:
            return  # pages say so themselves
        self._marks = {each.key: mark_of(read.get(each)) for each in self._upstreams}
