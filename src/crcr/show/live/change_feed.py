"""One reader of the change log for all open event streams, and the delay from a change to open pages.

The first stream starts the reader task, the last one ends it. The task reads each change once and keeps the newest, so that
500 pages cost the store as much as one; a stream that is further behind reads for itself. Writing to a stream costs more than
reading the log: with many streams the changes of a moment are sent together.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Protocol

from crcr.decide.trace_steps import TraceStep
from crcr.decide.views.overview import Change, Changes
from crcr.errors import Unavailable
from crcr.ports import Clock, NoTrace, Trace

_MEASURED = 1_000


FEW_STREAMS = 50
"""So many are told of each change at once."""
_PAUSE_FOR_A_STREAM_S = 0.0007
_LONGEST_PAUSE_S = 1.0


def pause_between_events_s(streams: int) -> float:
    """Return how long changes are collected after the last ones were sent to so many streams.

    A change after a quiet time is sent at once. Pages spread their reads over a longer time than this anyway.
    """
    return 0.0 if streams <= FEW_STREAMS else min(_LONGEST_PAUSE_S, _PAUSE_FOR_A_STREAM_S * streams)


@dataclass(slots=True)
class LiveDelay:
    """The delay from a change to open pages; measured only while a page is open."""

    on_delay: Callable[[float], None] = lambda _: None
    replica_lag_s: Callable[[], float | None] = lambda: None
    """How far the replica that pages read is behind; None without one."""
    _newest: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURED))

    def record(self, seconds: float) -> None:
        delay_s = max(0.0, seconds)
        self._newest.append(delay_s)
        self.on_delay(delay_s)

    @property
    def count(self) -> int:
        return len(self._newest)

    def quantile(self, share: float) -> float | None:
        """Return the delay that this share of the newest measurements does not exceed."""
        if not self._newest:
            return None
        ordered = sorted(self._newest)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


BATCH = 500
_KEPT = 2_000
_STORE_DOWN_S = 1.0


@dataclass(frozen=True, slots=True)
class Wakeups:
    """Subscription to the growth of the log: an event that is set then, and how to unsubscribe it."""

    subscribe: Callable[[], asyncio.Event]
    unsubscribe: Callable[[asyncio.Event], None]


class ChangeLog(Protocol):
    async def changes(self, after: int | None, limit: int) -> Changes:
        """Return the changes after an id, oldest first; with None only the ids where the log begins and ends."""
        ...


class ChangeFeed:
    def __init__(
        self,
        log: ChangeLog,
        wakeups: Wakeups,
        clock: Clock,
        delay: LiveDelay | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._log = log
        self._wakeups = wakeups
        self._clock = clock
        self._delay = delay or LiveDelay()
        self._trace = trace or NoTrace()
        self._streams: set[asyncio.Event] = set()
        self._pump: asyncio.Task[None] | None = None
        self._recent: deque[Change] = deque(maxlen=_KEPT)
        self._covers_from: int | None = None
        """`_recent` holds all changes after this id; None before the first read."""
        self._upto = 0

    def attach(self) -> asyncio.Event:
        """Return an event that is set whenever there may be new changes."""
        fresh = asyncio.Event()
        self._streams.add(fresh)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        return fresh

    async def detach(self, fresh: asyncio.Event) -> None:
        self._streams.discard(fresh)
        if not self._streams and self._pump is not None:
            pump, self._pump = self._pump, None
            self._covers_from = None
            pump.cancel()
            await asyncio.wait([pump])

    async def position(self) -> Changes:
        """Return the oldest and the newest id of the log."""
        return await self._log.changes(None, 0)

    async def read_after(self, change_id: int) -> tuple[list[Change], int, bool]:
        """Return the changes after an id, the last id that was read, and whether there are more."""
        if self._covers_from is not None and change_id >= self._covers_from:
            newer = list(takewhile(lambda change: change.change_id > change_id, reversed(self._recent)))
            return newer[::-1], max(change_id, self._upto), False
        batch = await self._log.changes(change_id, BATCH)
        return list(batch.items), batch.upto, batch.upto < batch.newest

    async def _run(self) -> None:
        wake = self._wakeups.subscribe()
        try:
            while True:
                wake.clear()
                try:
                    await self._read()
                except Unavailable:
                    await self._clock.sleep(_STORE_DOWN_S)
                    continue
                if pause_s := pause_between_events_s(len(self._streams)):
                    await self._clock.sleep(pause_s)
                await wake.wait()
        finally:
            self._wakeups.unsubscribe(wake)

    async def _read(self) -> None:
        if self._covers_from is None:
            position = await self._log.changes(None, 0)
            self._recent.clear()
            self._covers_from = self._upto = position.newest
        while True:
            batch = await self._log.changes(self._upto, BATCH)
            self._add_batch(batch)
            for fresh in self._streams:
                fresh.set()
            if batch.upto >= batch.newest:
                return

    def _add_batch(self, batch: Changes) -> None:
        for change in batch.items:
            if len(self._recent) == _KEPT:
                self._covers_from = self._recent[0].change_id
            self._recent.append(change)
            now = self._clock.now()
            self._delay.record((now - change.at).total_seconds())
            self._trace_change(change, now)
        self._upto = batch.upto

    def _trace_change(self, change: Change, now: datetime) -> None:
        if change.delivery is not None:
            self._trace.note(
                TraceStep.TELL,
                change.delivery,
                change.at,
                now,
                downstream=change.downstream,
                upstream=change.upstream,
                kind=change.kind,
                change=change.change_id,
            )
