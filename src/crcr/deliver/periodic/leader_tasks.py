"""What only one of a relay's processes does: its duties run where the lead is held, and stand by everywhere else.

Before each run the lead is renewed, by a conditional write: a process that was away for longer than its lease finds
out before it acts, not after. A run under way goes on when the lead is lost; each of its steps is a conditional
write, so two that overlap do the same work once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from crcr.deliver.periodic.progress import wait
from crcr.errors import StoreUnavailable
from crcr.ports import Clock

log = structlog.get_logger(__name__)

UPKEEP = "upkeep"
"""All duties go together: one lead, one row to look at, and none of them is heavy."""
LEASE = timedelta(seconds=30)
RENEW_EVERY_S = 10.0


class Leaders(Protocol):
    async def take(self, duty: str, now: datetime) -> bool: ...
    async def release(self, duty: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Duty:
    name: str
    act: Callable[[], Awaitable[None]]
    every_s: float
    before_work: bool = False
    """Whether a process that leads from its start does it before anything else."""


class Duties:
    def __init__(
        self,
        leaders: Leaders,
        duties: Sequence[Duty],
        *,
        clock: Clock,
        stopping: asyncio.Event,
        on_lead: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._leaders = leaders
        self._duties = duties
        self._clock = clock
        self._stopping = stopping
        self._on_lead = on_lead
        self._leads = asyncio.Event()
        self._begun: set[Duty] = set()

    @property
    def leads(self) -> bool:
        """Whether the lead was ours when it was last asked for."""
        return self._leads.is_set()

    async def take(self) -> bool:
        """Try to take or to renew the lead."""
        took = await self._leaders.take(UPKEEP, self._clock.now())
        if took and not self.leads:
            log.info("lead_taken")
        if self.leads and not took:
            log.warning("lead_lost")
        (self._leads.set if took else self._leads.clear)()
        self._on_lead(took)
        return took

    async def begin(self) -> bool:
        """Try to lead from the start on; who does fulfils some duties before it is ready for anything else."""
        if not await self.take():
            return False
        self._begun = {duty for duty in self._duties if duty.before_work}
        for duty in self._duties:
            if duty.before_work:
                await duty.act()
        return True

    async def run(self) -> None:
        """Lead or stand by until the process stops; then end what is under way, and let another one lead."""
        loops = [asyncio.create_task(self._loop(duty)) for duty in self._duties]
        try:
            await self._follow(loops)
            await asyncio.gather(*loops)
        finally:
            for each in loops:
                each.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            with suppress(StoreUnavailable):  # else the lease ends by itself
                await self._leaders.release(UPKEEP)

    async def _follow(self, loops: list[asyncio.Task[None]]) -> None:
        while not (self._stopping.is_set() or any(each.done() for each in loops)):
            await self._guarded("lead", self.take)
            await _first_of(wait(RENEW_EVERY_S, self._clock, self._stopping), *loops)

    async def _loop(self, duty: Duty) -> None:
        """Run the duty at once when the lead comes to us, and then again and again for as long as it stays."""
        if duty in self._begun:
            await wait(duty.every_s, self._clock, self._stopping)
        while not self._stopping.is_set():
            await _first_of(self._leads.wait(), self._stopping.wait())
            if self._stopping.is_set():
                return
            await self._guarded(duty.name, lambda: self._fulfil(duty))
            await wait(duty.every_s, self._clock, self._stopping)

    async def _fulfil(self, duty: Duty) -> None:
        if await self.take():
            await duty.act()

    async def _guarded(self, name: str, act: Callable[[], Awaitable[object]]) -> None:
        try:
            await act()
        except StoreUnavailable as fault:
            log.warning("loop_waits_for_store", act=name, error=str(fault))


async def _first_of(*waits: Awaitable[object]) -> None:
    """Wait for one of them; tasks among them go on, the rest is given up."""
    given = {each for each in waits if isinstance(each, asyncio.Task)}
    tasks = {asyncio.ensure_future(each) for each in waits}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks - given:
            task.cancel()
