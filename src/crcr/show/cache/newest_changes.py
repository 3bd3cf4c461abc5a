"""The newest change of each upstream, as this process knows it: the version that a page must not be older than.

A commit of this process sets the wake-up at once, so that a page asked for after a write shows the write. Changes of other
processes arrive with their wake-ups. Without a wake-up nothing is read.
"""

import asyncio

from crcr.decide.model import RepoName
from crcr.show.live.change_feed import BATCH, ChangeLog, Wakeups


class NewestChanges:
    def __init__(self, log: ChangeLog, wakeups: Wakeups) -> None:
        """`log` holds the changes of hidden backends too: they may change a gate that everybody sees."""
        self._log = log
        self._wakeups = wakeups
        self._wake: asyncio.Event | None = None
        self._reading: asyncio.Task[None] | None = None
        self._position: int | None = None
        """The last change that was read; None before the first read."""
        self._first = 0
        """The newest change at the first read: an upstream without a later one may have had this."""
        self._newest: dict[str, int] = {}

    @property
    def position(self) -> int:
        """The last change that was read, of any upstream; later ones are not known yet."""
        return self._position or 0

    async def read(self, upstream: RepoName) -> int:
        """Return the newest change of an upstream."""
        if self._wake is None:
            self._wake = self._wakeups.subscribe()
            self._wake.set()
        if self._wake.is_set() or self._reading is not None:
            await self.catch_up()
        return self._newest.get(upstream.key, self._first)

    async def catch_up(self) -> None:
        """Read the log to its end, in one task for all callers that wait at the same time."""
        if (reading := self._reading) is not None:
            await asyncio.shield(reading)  # it may have begun before the change that this caller waits for
            if self._wake is not None and not self._wake.is_set():
                return
        # One that another caller has begun meanwhile is new enough: a log that grows all the time keeps nobody waiting.
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_log())
        await asyncio.shield(self._reading)

    async def _read_log(self) -> None:
        is_complete = False
        try:
            if self._wake is not None:
                self._wake.clear()
            if self._position is None:
                self._first = self._position = (await self._log.changes(None, 0)).newest
            while not is_complete:
                batch = await self._log.changes(self._position, BATCH)
                for change in batch.items:
                    self._newest[change.upstream] = change.change_id
                self._position = batch.upto
                is_complete = batch.upto >= batch.newest
        finally:
            self._reading = None
            if not is_complete and self._wake is not None:
                self._wake.set()  # the next caller reads again
