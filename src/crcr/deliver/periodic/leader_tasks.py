"""Periodic tasks of the leader: they run in the one process that holds the leader's lease, and wait in all others.

Before each run the lease is renewed by a conditional write, so a process that was paused for longer than its lease notices
before it acts. A run that has started continues when the lease is lost; each of its steps is a conditional write, so two
overlapping runs do the same work once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from crcr.deliver.waiting import first_completed, sleep_until_stopping
from crcr.errors import StoreUnavailable
from crcr.ports import Clock

log = structlog.get_logger(__name__)

UPKEEP = "upkeep"
"""One lease for all tasks: one row to look at, and none of the tasks is heavy."""
LEASE = timedelta(seconds=30)
RENEW_EVERY_S = 10.0


class LeaderLease(Protocol):
    async def take(self, duty: str, now: datetime) -> bool: ...
    async def release(self, duty: str) -> None: ...


@dataclass(frozen=True, slots=True)
class LeaderTask:
    name: str
    act: Callable[[], Awaitable[None]]
    every_s: float
    at_start: bool = False
    """Whether a process that leads from its start runs it before anything else."""


class LeaderTasks:
    def __init__(
        self,
        lease: LeaderLease,
        tasks: Sequence[LeaderTask],
        *,
        clock: Clock,
        stopping: asyncio.Event,
        on_lead: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._lease = lease
        self._tasks = tasks
        self._clock = clock
        self._stopping = stopping
        self._on_lead = on_lead
        self._leads = asyncio.Event()
        self._ran_at_start: set[LeaderTask] = set()

    @property
    def leads(self) -> bool:
        """Whether this process held the lease when it was last renewed."""
        return self._leads.is_set()

    async def take(self) -> bool:
        """Try to take or to renew the lease."""
        taken = await self._lease.take(UPKEEP, self._clock.now())
        if taken and not self.leads:
            log.info("lead_taken")
        if self.leads and not taken:
            log.warning("lead_lost")
        (self._leads.set if taken else self._leads.clear)()
        self._on_lead(taken)
        return taken

    async def start(self) -> bool:
        """Try to lead from the start; the leader runs some tasks before the process is ready for anything else."""
        if not await self.take():
            return False
        self._ran_at_start = {task for task in self._tasks if task.at_start}
        for task in self._tasks:
            if task.at_start:
                await task.act()
        return True

    async def run(self) -> None:
        """Lead or stand by until the process stops; then finish the runs in progress and release the lease."""
        loops = [asyncio.create_task(self._loop(task)) for task in self._tasks]
        try:
            await self._keep_lease(loops)
            await asyncio.gather(*loops)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            with suppress(StoreUnavailable):  # the lease expires then
                await self._lease.release(UPKEEP)

    async def _keep_lease(self, loops: list[asyncio.Task[None]]) -> None:
        while not (self._stopping.is_set() or any(loop.done() for loop in loops)):
            await self._guarded("lead", self.take)
            await first_completed(sleep_until_stopping(RENEW_EVERY_S, self._clock, self._stopping), *loops)

    async def _loop(self, task: LeaderTask) -> None:
        """Run the task as soon as this process leads, and then periodically while it does."""
        if task in self._ran_at_start:
            await sleep_until_stopping(task.every_s, self._clock, self._stopping)
        while not self._stopping.is_set():
            await first_completed(self._leads.wait(), self._stopping.wait())
            if self._stopping.is_set():
                return
            await self._guarded(task.name, lambda: self._run_if_leader(task))
            await sleep_until_stopping(task.every_s, self._clock, self._stopping)

    async def _run_if_leader(self, task: LeaderTask) -> None:
        if await self.take():
            await task.act()

    async def _guarded(self, name: str, act: Callable[[], Awaitable[object]]) -> None:
        try:
            await act()
        except StoreUnavailable as fault:
            log.warning("loop_waits_for_store", act=name, error=str(fault))
