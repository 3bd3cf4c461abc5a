"""A worker's presence: every two seconds it gives a sign of life, counts the workers, and takes over from those gone.

How many there are decides the share of GitHub's limits that each may use. A worker that was frozen for longer than
`GONE_AFTER` must attend again before it acts on a claim; if its row was missing then, all its claims from before are
another worker's.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Protocol

import structlog

from crcr.decide.outbox.worker_presence import GONE_AFTER, ROLL_CALL_EVERY_S, WorkerRoll
from crcr.errors import StoreUnavailable
from crcr.ports import Clock

log = structlog.get_logger(__name__)


class RollCall(Protocol):
    async def attend(self, now: datetime) -> WorkerRoll: ...
    async def take_over(self, gone: Mapping[str, int], now: datetime) -> int: ...
    async def leave(self) -> None: ...


class Attendance:
    def __init__(self, roll_call: RollCall, on_count: Callable[[int], None], *, clock: Clock) -> None:
        """`on_count` gets the number of workers at each round."""
        self._roll_call = roll_call
        self._on_count = on_count
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._attended_at: datetime | None = None
        self._gone: Mapping[str, int] = {}
        self.lapses = 0
        """How often this worker was counted as gone; what it had claimed before the last time is not its own."""

    @property
    def is_current(self) -> bool:
        """Whether nobody can have counted this worker as gone; also true before it first attends."""
        return self._attended_at is None or self._clock.now() - self._attended_at < GONE_AFTER

    async def attend(self) -> None:
        """One round. The time is taken before the write: whoever sees the sign sees it later."""
        async with self._one_at_a_time:
            now = self._clock.now()
            roll = await self._roll_call.attend(now)
            if self._attended_at is not None and not roll.was_listed:
                self.lapses += 1
                log.warning("worker_was_absent", absent_s=(now - self._attended_at).total_seconds())
            self._attended_at, self._gone = now, roll.gone
        self._on_count(roll.workers)

    async def run(self) -> None:
        """Attend until cancelled. After a fault of the store the next round tries again."""
        away, taking_over = False, asyncio.create_task(asyncio.sleep(0))
        try:
            while True:
                try:
                    await self.attend()
                    away = False
                except StoreUnavailable as fault:
                    if not away:
                        log.warning("loop_waits_for_store", act="attend", error=str(fault))
                    away = True
                if self._gone and taking_over.done():
                    # Beside the rounds: it may have to wait for a row, and the next sign of life may not.
                    taking_over = asyncio.create_task(self._take_over(self._gone))
                await self._clock.sleep(ROLL_CALL_EVERY_S)
        finally:
            taking_over.cancel()
            await asyncio.gather(taking_over, return_exceptions=True)

    async def _take_over(self, gone: Mapping[str, int]) -> None:
        try:
            freed = await self._roll_call.take_over(gone, self._clock.now())
        except StoreUnavailable as fault:
            log.warning("loop_waits_for_store", act="take over", error=str(fault))
        else:
            log.warning("workers_gone", workers=len(gone), effects=freed)

    async def leave(self) -> None:
        """Nothing is held any more, and nothing will be claimed."""
        with suppress(StoreUnavailable):  # else the others find it gone
            await self._roll_call.leave()
