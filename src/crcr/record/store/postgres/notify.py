"""Wake-ups between processes by LISTEN and NOTIFY.

Sent after the commit and outside of it: transactions that NOTIFY are serialised by the server, and a lost wake-up
costs no more than the time until the waiter's own next poll.
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
_RETRY_S = (0.1, 0.5, 1.0, 2.0)


class PostgresWakeups:
    """Sends this process's signals with NOTIFY; `listen` receives those of the others."""

    def __init__(self, link: PostgresLink, signals: Signals) -> None:
        self._link = link
        self._signals = signals
        self._sender_id = uuid4().hex[:12]
        self._unsent: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        signals.forward_to(self.send_soon)

    def send_soon(self, name: str) -> None:
        self._unsent.add(name)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def listen(self) -> None:
        """Receive wake-ups until cancelled; after every reconnection, wake every waiter."""
        failures = 0
        while True:
            try:
                connection = await self._link.connect()
            except StoreUnavailable:
                failures = await _pause(failures)
                continue
            began = time.monotonic()
            try:
                await self._receive(connection)
            except FAULTS as fault:
                log.warning("store_not_listening", error=str(fault))
            finally:
                connection.terminate()
            failures = await _pause(0 if time.monotonic() - began > _ALIVE_S else failures)

    async def close(self) -> None:
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _receive(self, connection: Connection) -> None:
        await connection.add_listener(_CHANNEL, self._on_notification)
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        self._signals.wake_all()
        while not lost.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), _ALIVE_S)
            await connection.fetchval("SELECT 1")

    def _on_notification(self, _: object, __: int, ___: str, payload: object) -> None:
        sender, _, names = str(payload).partition(":")
        if sender != self._sender_id:
            for name in NAMES.intersection(names.split(",")):
                self._signals.wake(name)

    async def _send(self) -> None:
        while self._unsent:
            names, self._unsent = self._unsent, set()
            with suppress(StoreUnavailable):
                async with self._link.reading() as connection:
                    await connection.execute(
                        _NOTIFY, _CHANNEL, f"{self._sender_id}:{','.join(sorted(names))}"
                    )


async def _pause(failures: int) -> int:
    """Wait longer from one failure to the next; return how many there are now."""
    await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
    return failures + 1
