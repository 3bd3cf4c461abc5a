"""A worker's heartbeat: every two seconds it updates its row, counts the workers, and takes over from dead ones.

The number of workers decides which share of GitHub's limits each may use. A worker that was frozen for longer than
`GONE_AFTER` must send a heartbeat before it acts on a claim; if its row was missing then, all its earlier claims belong to
another worker.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime

import structlog

from crcr.decide.outbox.worker_presence import GONE_AFTER, ROLL_CALL_EVERY_S
from crcr.errors import StoreUnavailable
from crcr.ports import Clock
from crcr.record.outbox.leader_and_workers import WorkerRegistry

log = structlog.get_logger(__name__)


class WorkerHeartbeat:
    def __init__(self, registry: WorkerRegistry, on_count: Callable[[int], None], *, clock: Clock) -> None:
        """`on_count` gets the number of workers at each heartbeat."""
        self._registry = registry
        self._on_count = on_count
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._last_at: datetime | None = None
        self._gone: Mapping[str, int] = {}
        self.lapses = 0
        """How often this worker was counted as gone; its claims from before the last time are not its own."""

    @property
    def is_current(self) -> bool:
        """Whether no other worker can have counted this one as gone; also true before the first heartbeat."""
        return self._last_at is None or self._clock.now() - self._last_at < GONE_AFTER

    async def beat(self) -> None:
        """Send one heartbeat. The time is taken before the write, so that others see it no earlier than that."""
        async with self._one_at_a_time:
            now = self._clock.now()
            roll = await self._registry.attend(now)
            if self._last_at is not None and not roll.was_listed:
                self.lapses += 1
                log.warning("worker_was_absent", absent_s=(now - self._last_at).total_seconds())
            self._last_at, self._gone = now, roll.gone
        self._on_count(roll.workers)

    async def run(self) -> None:
        """Send heartbeats until cancelled. After a failure of the store the next one tries again."""
        store_is_away, taking_over = False, asyncio.create_task(asyncio.sleep(0))
        try:
            while True:
                try:
                    await self.beat()
                    store_is_away = False
                except StoreUnavailable as fault:
                    if not store_is_away:
                        log.warning("loop_waits_for_store", act="attend", error=str(fault))
                    store_is_away = True
                if self._gone and taking_over.done():
                    # In a task of its own: it may have to wait for a row, and the next heartbeat must not.
                    taking_over = asyncio.create_task(self._take_over(self._gone))
                await self._clock.sleep(ROLL_CALL_EVERY_S)
        finally:
            taking_over.cancel()
            await asyncio.gather(taking_over, return_exceptions=True)

    async def _take_over(self, gone: Mapping[str, int]) -> None:
        try:
            freed = await self._registry.take_over(gone, self._clock.now())
        except StoreUnavailable as fault:
            log.warning("loop_waits_for_store", act="take over", error=str(fault))
        else:
            log.warning("workers_gone", workers=len(gone), effects=freed)

    async def leave(self) -> None:
        """Remove this worker's row; it holds no claims and makes no new ones."""
        with suppress(StoreUnavailable):  # the others notice then that it is gone
            await self._registry.leave()
            self._last_at = None  # the next heartbeat is the first again
