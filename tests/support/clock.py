"""A clock that tests move by hand: it implements `crcr.ports.Clock`, and nothing ever really sleeps.

Use `advance` for code that the test calls. Use `pass_time` for tasks that loop over `sleep`: it stops at every wake-up
time and lets the woken tasks run before time moves on.
"""

import asyncio
import heapq
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")

_TURNS = 20
"""Turns of the event loop that woken tasks get: enough for a chain of awaits between two sleeps."""


class ManualClock:
    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._order = count()
        self._sleepers: list[tuple[datetime, int, asyncio.Future[None]]] = []
        self._slept = asyncio.Event()

    def now(self) -> datetime:
        return self._now

    def advance(self, by: float | timedelta) -> datetime:
        """Move time on and release the sleepers that are due; they run when the caller next awaits."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if step < timedelta(0):
            raise ValueError("time only goes forward")
        self._now += step
        while self._sleepers and self._sleepers[0][0] <= self._now:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        due_at = self._now + timedelta(seconds=seconds)
        heapq.heappush(self._sleepers, (due_at, next(self._order), future))
        self._slept.set()
        await future

    async def pass_time(self, by: float | timedelta) -> None:
        """Move time on from one due sleeper to the next, letting each run and sleep again at its own moment."""
        until = self._now + (by if isinstance(by, timedelta) else timedelta(seconds=by))
        await settle()
        while (due_at := self._next_due()) is not None and due_at <= until:
            self.advance(max(due_at - self._now, timedelta(0)))
            await settle()
        self.advance(until - self._now)
        await settle()

    async def run_to_end(self, work: Coroutine[Any, Any, T], step_s: float) -> T:
        """Run `work` to its end; whenever a task waits for this clock, time goes on by `step_s`."""
        running = asyncio.create_task(work)
        running.add_done_callback(lambda _: self._slept.set())
        while not running.done():
            if self.sleeping:
                self.advance(step_s)
                await asyncio.sleep(0)
            else:
                self._slept.clear()
                await self._slept.wait()
        return await running

    @property
    def sleeping(self) -> int:
        """How many tasks wait for this clock."""
        return sum(not future.done() for _, _, future in self._sleepers)

    def _next_due(self) -> datetime | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None


async def settle() -> None:
    """Run all ready tasks without moving time."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
