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
_LAST_READING_VALID_FOR = timedelta(minutes=1)
"""How old the previous reading may be that is used while a new one takes long."""


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
        self._last: dict[RepoName, Health] = {}
        self._reading = asyncio.Lock()
        self._running: asyncio.Task[dict[RepoName, Health]] | None = None

    async def read(self) -> dict[RepoName, Health]:
        """Return the health of every upstream, a few seconds old at most; raise `Unavailable` when it cannot be read.

        While one caller reads it again, all others get the previous reading.
        """
        if self._last and self._is_being_read:
            return self._last
        async with self._reading:
            now = self._clock.now()
            if self._read_at is None or now - self._read_at >= self._shared_for:
                self._last = await self._reader.health(now)
                self._read_at = now
            return self._last

    async def read_within(self, seconds: float) -> dict[RepoName, Health]:
        """Return the health within so many seconds: the previous reading, or nothing, when a new one takes longer.

        A reading that takes longer continues for the next caller. Without sharing, this waits for the reading.
        """
        try:
            if not self._shared_for:
                return await self.read()
            if self._last and self._is_being_read:
                return self._last_reading()
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._start_reading())
        except Unavailable:
            return {}
        except TimeoutError:
            return self._last_reading()

    async def read_upstream(self, upstream: RepoName) -> Health | None:
        """Return the health of one upstream; None when the store does not answer: the page reports that itself."""
        try:
            return (await self.read()).get(upstream)
        except Unavailable:
            return None

    @property
    def _is_being_read(self) -> bool:
        return bool(self._shared_for) and self._reading.locked()

    def _start_reading(self) -> asyncio.Task[dict[RepoName, Health]]:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self.read())
            self._running.add_done_callback(_ignore_result)
        return self._running

    def _last_reading(self) -> dict[RepoName, Health]:
        is_recent = self._read_at is not None and self._clock.now() - self._read_at < _LAST_READING_VALID_FOR
        return self._last if is_recent else {}


def _ignore_result(reading: asyncio.Task[dict[RepoName, Health]]) -> None:
    """Retrieve the error of a reading that has no waiter left, so that asyncio does not log it as unhandled."""
    if not reading.cancelled():
        reading.exception()


def health_signature(health: Health | None) -> str:
    """Return a short text that is equal when pages show the same."""
    return sha256("\n".join(health.signature if health else ()).encode()).hexdigest()[:8]


POLL_EVERY_S = 5.0


class HealthFeed:
    def __init__(
        self,
        health: SharedHealth,
        upstreams: tuple[RepoName, ...],
        clock: Clock,
        every_s: float = POLL_EVERY_S,
    ) -> None:
        self._health = health
        self._upstreams = upstreams
        self._clock = clock
        self._every_s = every_s
        self._streams: set[asyncio.Event] = set()
        self._loop: asyncio.Task[None] | None = None
        self._signatures: dict[str, str] = {}

    @contextmanager
    def attach(self, fresh: asyncio.Event) -> Iterator[None]:
        """Set `fresh` whenever the health of an upstream changes."""
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
                self._signatures = {}

    async def read_signatures(self) -> dict[str, str]:
        """Return the health signature of each upstream, by its key."""
        if not self._signatures:
            await self._read_health()
        return self._signatures

    async def _run(self) -> None:
        while True:
            before = self._signatures
            await self._read_health()
            if before and before != self._signatures:
                for fresh in self._streams:
                    fresh.set()
            await self._clock.sleep(self._every_s)

    async def _read_health(self) -> None:
        try:
            health = await self._health.read()
        except Unavailable:
            return  # pages report the outage themselves
        self._signatures = {
            upstream.key: health_signature(health.get(upstream)) for upstream in self._upstreams
        }
