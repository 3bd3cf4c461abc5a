"""How many workers there are: each says that it is there, and takes its share of what GitHub allows the App.

Without this every worker would keep to the whole of an installation's minute by itself, and all of them together would
exceed it. A worker that died counts until its lease is over; meanwhile the others are only slower than they might be.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Protocol

import structlog

from crcr.deliver.pace import wait
from crcr.errors import StoreUnavailable
from crcr.ports import Clock

log = structlog.get_logger(__name__)

ATTEND_EVERY_S = 10.0


class Roll(Protocol):
    async def attend(self, now: datetime) -> int:
        """Say that we are there; return how many are."""
        ...

    async def leave(self) -> None: ...


class Attendance:
    def __init__(
        self, roll: Roll, tell: Callable[[int], None], *, clock: Clock, stopping: asyncio.Event
    ) -> None:
        """`tell` hears how many workers there are, whenever that was asked."""
        self._roll = roll
        self._tell = tell
        self._clock = clock
        self._stopping = stopping

    async def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._tell(await self._roll.attend(self._clock.now()))
            except StoreUnavailable as fault:
                log.warning("loop_waits_for_store", act="attend", error=str(fault))
            await wait(ATTEND_EVERY_S, self._clock, self._stopping)
        with suppress(StoreUnavailable):  # else the lease ends by itself
            await self._roll.leave()
