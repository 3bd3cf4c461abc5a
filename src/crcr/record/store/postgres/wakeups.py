"""Wake-ups between processes on PostgreSQL: LISTEN and NOTIFY, or a poll each second where LISTEN does not work.

NOTIFY is sent after the commit and outside of it: transactions that NOTIFY are serialised by the server, and a lost
wake-up costs no more than the time until the waiter's own next poll. It is sent at once, but the next one only after a
moment, for all commits until then. A connection pooler may drop notifications and a
hot standby refuses LISTEN; `listen` finds that out with a notification to itself. The poll compares the server's snapshot,
which changes with every commit, and wakes every waiter, as SQLite's `data_version` does.
"""

import asyncio
import time
from contextlib import suppress
from uuid import uuid4

import asyncpg
import structlog

from crcr.errors import StoreUnavailable
from crcr.record.store.postgres.connection import FAULTS, Connection, PostgresLink
from crcr.record.store.signals import NAMES, Signals

log = structlog.get_logger(__name__)

POLL_S = 1.0
ECHO_S = 3.0
"""How long `listen` waits for its own notification."""
_BETWEEN_S = 0.05
"""From one notification to the next; SQLite's waiters look at the file as often."""
_CHANNEL = "crcr"
_NOTIFY = "SELECT pg_notify($1, $2)"
_SNAPSHOT = "SELECT pg_current_snapshot()::text"
_ALIVE_S = 15.0
_RETRY_S = (0.1, 0.5, 1.0, 2.0)
_SERVER_TROUBLE = ("08", "53", "57", "58")
"""Classes of errors after which LISTEN is tried again on a new connection."""


class _NoListen(Exception):
    """LISTEN does not work here; the text says why."""


class PostgresWakeups:
    """Sends this process's signals with NOTIFY; `watch` receives those of the others."""

    def __init__(self, link: PostgresLink, signals: Signals, *, listen: bool = True) -> None:
        """Without `listen`, LISTEN is not even tried."""
        self._link = link
        self._signals = signals
        self._try_listen = listen
        self._sender_id = uuid4().hex[:12]
        self._echo = asyncio.Event()
        self._unsent: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None
        """Until it ends, nothing more is sent; no task waits for it, since a process may be frozen when its tasks have ended."""
        signals.forward_to(self.send_soon)

    def send_soon(self, name: str) -> None:
        self._unsent.add(name)
        if self._pause is None and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send())

    async def watch(self) -> None:
        """Receive wake-ups until cancelled: by LISTEN, or by polling where LISTEN is off or does not work."""
        reason = "CRCR_DATABASE_LISTEN is off"
        if self._try_listen:
            try:
                await self._listen()
            except _NoListen as failure:
                reason = str(failure)
        log.info("store_polling", every_s=POLL_S, reason=reason)
        await self._poll()

    async def close(self) -> None:
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)
        if self._pause is not None:
            self._pause.cancel()
        if self._unsent:
            await self._send()

    async def _listen(self) -> None:
        """Receive notifications; after every reconnection, wake every waiter."""
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
            except (StoreUnavailable, *FAULTS) as fault:
                log.warning("store_not_listening", error=str(fault))
            finally:
                connection.terminate()
            failures = await _pause(0 if time.monotonic() - began > _ALIVE_S else failures)

    async def _receive(self, connection: Connection) -> None:
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await self._subscribe(connection)
        while not lost.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), _ALIVE_S)
            await connection.fetchval("SELECT 1")

    async def _subscribe(self, connection: Connection) -> None:
        """LISTEN, and raise `_NoListen` when that is refused or our own notification does not arrive."""
        try:
            await connection.add_listener(_CHANNEL, self._on_notification)
        except asyncpg.PostgresError as fault:
            if (fault.sqlstate or "").startswith(_SERVER_TROUBLE):
                raise
            raise _NoListen(str(fault)) from None
        self._signals.wake_all()  # before the wait: a signal may have been missed while not connected
        self._echo.clear()
        await self._notify("")
        try:
            await asyncio.wait_for(self._echo.wait(), ECHO_S)
        except TimeoutError:
            if connection.is_closed():
                raise ConnectionResetError("the connection was lost") from None
            raise _NoListen("no notification arrives; is a connection pooler in between?") from None

    def _on_notification(self, _: object, __: int, ___: str, payload: object) -> None:
        sender, _, names = str(payload).partition(":")
        if sender == self._sender_id:
            self._echo.set()
            return
        for name in NAMES.intersection(names.split(",")):
            self._signals.wake(name)

    async def _poll(self) -> None:
        """Wake every waiter when anything was committed since the last poll."""
        last_snapshot: str | None = None
        while True:
            with suppress(StoreUnavailable):
                async with self._link.reading() as connection:
                    snapshot: str = await connection.fetchval(_SNAPSHOT)
                if snapshot != last_snapshot:
                    self._signals.wake_all()
                last_snapshot = snapshot
            await asyncio.sleep(POLL_S)

    async def _send(self) -> None:
        names, self._unsent = self._unsent, set()
        with suppress(StoreUnavailable):
            await self._notify(",".join(sorted(names)))
        self._pause = asyncio.get_running_loop().call_later(_BETWEEN_S, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        if self._unsent:
            self._sending = asyncio.create_task(self._send())

    async def _notify(self, names: str) -> None:
        async with self._link.reading() as connection:
            await connection.execute(_NOTIFY, _CHANNEL, f"{self._sender_id}:{names}")


async def _pause(failures: int) -> int:
    """Wait longer from one failure to the next; return how many there are now."""
    await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
    return failures + 1
