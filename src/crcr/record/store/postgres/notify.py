"""Wake-ups between processes by LISTEN and NOTIFY.

Sent after the commit and beside it: a transaction that notifies waits for all others that do, and a lost wake-up
costs no more than the time until somebody looks by itself.
"""

import asyncio
import time
from contextlib import suppress
from uuid import uuid4

import structlog

from crcr.errors import StoreUnavailable
from crcr.record.store.postgres.connection import FAULTS, Connection, PostgresLink
from crcr.record.store.signals import NAMES, Signals

log = structlog.get_logger(__name__)

_CHANNEL = "crcr"
_NOTIFY = "SELECT pg_notify($1, $2)"
_ALIVE_S = 15.0
_AGAIN_S = (0.1, 0.5, 1.0, 2.0)


class Wake:
    """Implements `signals.Carrier`; `listen` is what hears the others."""

    def __init__(self, link: PostgresLink, signals: Signals) -> None:
        self._link = link
        self._signals = signals
        self._me = uuid4().hex[:12]
        self._untold: set[str] = set()
        self._telling: asyncio.Task[None] | None = None
        signals.carry_by(self)

    def carry(self, name: str) -> None:
        self._untold.add(name)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_others())

    async def listen(self) -> None:
        """Hear the others for as long as we live; after every new beginning, look at everything."""
        failures = 0
        while True:
            try:
                connection = await self._link.connect()
            except StoreUnavailable:
                failures = await _pause(failures)
                continue
            began = time.monotonic()
            try:
                await self._hear(connection)
            except FAULTS as fault:
                log.warning("store_not_listening", error=str(fault))
            finally:
                connection.terminate()
            failures = await _pause(0 if time.monotonic() - began > _ALIVE_S else failures)

    async def close(self) -> None:
        if self._telling is not None:
            await asyncio.gather(self._telling, return_exceptions=True)

    async def _hear(self, connection: Connection) -> None:
        await connection.add_listener(_CHANNEL, self._heard)
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        self._signals.heard_all()
        while not lost.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), _ALIVE_S)
            await connection.fetchval("SELECT 1")

    def _heard(self, _: object, __: int, ___: str, payload: object) -> None:
        sender, _, names = str(payload).partition(":")
        if sender != self._me:
            for name in NAMES.intersection(names.split(",")):
                self._signals.heard(name)

    async def _tell_others(self) -> None:
        while self._untold:
            names, self._untold = self._untold, set()
            with suppress(StoreUnavailable):
                async with self._link.reading() as connection:
                    await connection.execute(_NOTIFY, _CHANNEL, f"{self._me}:{','.join(sorted(names))}")


async def _pause(failures: int) -> int:
    """Wait longer from one failure to the next; return how many there are now."""
    await asyncio.sleep(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)])
    return failures + 1
