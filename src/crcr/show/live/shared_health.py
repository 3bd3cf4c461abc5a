"""The relay's health, read once for all readers of a process, and sent to open streams when it changes.

Health also changes without a change in the log: a limit ends, a gate becomes late, webhooks stop.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Protocol

from crcr.decide.health.relay import Health
from crcr.decide.model import RepoName
from crcr.errors import Unavailable
from crcr.ports import Clock

SHARED_FOR_S = 3.0
_TOLD_FOR = timedelta(minutes=1)
"""How old the last reading may be that is told while a newer one takes long."""


class HealthReader(Protocol):
    async def health(self, now: datetime) -> dict[RepoName, Health]:
        """The health of every upstream; raises `Unavailable` when the store does not answer."""
        ...


class SharedHealth:
    def __init__(self, reader: HealthReader, clock: Clock, *, shared_for_s: float = SHARED_FOR_S) -> None:
        self._reader = reader
        self._clock = clock
        self._shared_for = timedelta(seconds=shared_for_s)
        self._read_at: datetime | None = None
        self._known: dict[RepoName, Health] = {}
        self._reading = asyncio.Lock()
        self._under_way: asyncio.Task[dict[RepoName, Health]] | None = None

    async def read(self) -> dict[RepoName, Health]:
        """Return the health of every upstream, a few seconds old at most; raise `Unavailable` when it cannot be read.

        While one reader reads it anew, all others get what was read before.
        """
        if self._known and self._is_being_read:
            return self._known
        async with self._reading:
            now = self._clock.now()
            if self._read_at is None or now - self._read_at >= self._shared_for:
                self._known = await self._reader.health(now)
                self._read_at = now
            return self._known

    async def within(self, seconds: float) -> dict[RepoName, Health]:
        """Return what is known after so many seconds: what was read before when reading takes longer, or nothing.

        A reading that takes longer goes on, and serves whoever asks next. Where every reader reads for itself, it waits.
        """
        try:
            if not self._shared_for:
                return await self.read()
            if self._known and self._is_being_read:
                return self._last_reading()
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._begin())
        except Unavailable:
            return {}
        except TimeoutError:
            return self._last_reading()

    async def of(self, upstream: RepoName) -> Health | None:
        """Return the health of one upstream; None when the store does not answer, which the page itself says."""
        try:
            return (await self.read()).get(upstream)
        except Unavailable:
            return None

    @property
    def _is_being_read(self) -> bool:
        return bool(self._shared_for) and self._reading.locked()

    def _begin(self) -> asyncio.Task[dict[RepoName, Health]]:
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self.read())
            self._under_way.add_done_callback(_ignore_result)
        return self._under_way

    def _last_reading(self) -> dict[RepoName, Health]:
        is_recent = self._read_at is not None and self._clock.now() - self._read_at < _TOLD_FOR
        return self._known if is_recent else {}


def _ignore_result(reading: asyncio.Task[dict[RepoName, Health]]) -> None:
    """Who still waits for the reading is told what went wrong with it; nobody may."""
    if not reading.cancelled():
        reading.exception()


def health_signature(health: Health | None) -> str:
    """Return a short text that is equal for health that pages show alike."""
    return sha256("\n".join(health.signature if health else ()).encode()).hexdigest()[:8]


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
            await self._read_health()
        return self._marks

    async def _run(self) -> None:
        while True:
            before = self._marks
            await self._read_health()
            if before and before != self._marks:
                for fresh in self._streams:
                    fresh.set()
            await self._clock.sleep(self._every_s)

    async def _read_health(self) -> None:
        try:
            read = await self._health.read()
        except Unavailable:
            return  # pages say so themselves
        self._marks = {upstream.key: health_signature(read.get(upstream)) for upstream in self._upstreams}
