"""The relay's health as all readers of this process share it: one reading serves every page for a few seconds."""

import asyncio
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Protocol

from crcr.decide.health import Health
from crcr.decide.model import RepoName
from crcr.errors import Unavailable
from crcr.ports import Clock

SHARED_FOR_S = 3.0


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

    async def read(self) -> dict[RepoName, Health]:
        """Return the health of every upstream, a few seconds old at most; raise `Unavailable` when it cannot be read.

        While one reader reads it anew, all others get what was read before.
        """
        if self._known and self._shared_for and self._reading.locked():
            return self._known
        async with self._reading:
            now = self._clock.now()
            if self._read_at is None or now - self._read_at >= self._shared_for:
                self._known = await self._reader.health(now)
                self._read_at = now
            return self._known

    async def of(self, upstream: RepoName) -> Health | None:
        """Return the health of one upstream; None when the store does not answer, which the page itself says."""
        try:
            return (await self.read()).get(upstream)
        except Unavailable:
            return None


def mark_of(health: Health | None) -> str:
    """Return a short text that is equal for health that pages show alike."""
    return sha256("\n".join(health.signature if health else ()).encode()).hexdigest()[:8]
