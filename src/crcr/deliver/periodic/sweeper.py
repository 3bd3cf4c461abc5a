"""Loops that run beside the worker: silent jobs time out, old rows go, allowlists are read again."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol

import structlog

from crcr.deliver.periodic.progress import wait
from crcr.errors import StoreUnavailable
from crcr.ports import Clock

log = structlog.get_logger(__name__)

SWEEP_EVERY_S = 30.0
FORGET_EVERY_S = 3600.0
REFRESH_EVERY_S = 300.0


class Sweeps(Protocol):
    async def time_out_silent(self, now: datetime) -> int: ...
    async def ask_about_commits(self, now: datetime) -> None: ...


class Retention(Protocol):
    async def forget(self, now: datetime) -> None: ...


class Gates(Protocol):
    async def refresh_due(self, now: datetime) -> int: ...


class Sweeper:
    def __init__(self, sweeps: Sweeps, retention: Retention, gates: Gates, clock: Clock) -> None:
        self._sweeps = sweeps
        self._retention = retention
        self._gates = gates
        self._clock = clock

    async def sweep(self) -> None:
        await self._gates.refresh_due(self._clock.now())
        swept = await self._sweeps.time_out_silent(self._clock.now())
        if swept:
            log.warning("jobs_timed_out", jobs=swept)
        await self._sweeps.ask_about_commits(self._clock.now())

    async def forget(self) -> None:
        await self._retention.forget(self._clock.now())


async def repeat(
    act: Callable[[], Awaitable[None]], every_s: float, clock: Clock, stopping: asyncio.Event
) -> None:
    """Do `act` every `every_s` seconds until `stopping`; a store that is away is waited for."""
    while not stopping.is_set():
        await wait(every_s, clock, stopping)
        if stopping.is_set():
            return
        try:
            await act()
        except StoreUnavailable as fault:
            log.warning("loop_waits_for_store", act=getattr(act, "__name__", "act"), error=str(fault))
