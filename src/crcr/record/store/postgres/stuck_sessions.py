"""Ends sessions of frozen processes that PostgreSQL does not end by itself.

A process that freezes between two statements leaves a session that is idle in its transaction, and PostgreSQL ends that.
A process that freezes in the middle of a statement, between the driver's Parse and its Bind, leaves one that counts as
active while the server waits for its client: no time-out of PostgreSQL up to 16 applies, and its locks would be held until
the process continues. So a write that waits too long ends the sessions in that state that block it.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from crcr.record.store.postgres.connection import FAULTS, Connection, PostgresLink

log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 0.2
_END_BLOCKERS = """
SELECT pid, extract(epoch FROM clock_timestamp() - state_change)::float AS stuck_s, pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE pid = ANY(pg_blocking_pids($1)) AND usename = current_user AND state = 'active' AND wait_event = 'ClientRead'
AND clock_timestamp() - state_change > make_interval(secs => $2)
"""


class StuckSessions:
    def __init__(self, link: PostgresLink) -> None:
        self._link = link
        # Behind a pooler the session of a connection is not known.
        self._allowed_s = (
            0.0 if link.location.pooled else link.location.timeouts.idle_in_transaction_ms / 1_000
        )

    @contextmanager
    def end_blockers_of(self, waiting: Connection) -> Iterator[None]:
        """Begin to end the stuck sessions that block this connection, once it has waited for longer than is allowed."""
        if not self._allowed_s:
            yield
            return
        loop, pid = asyncio.get_running_loop(), waiting.get_server_pid()
        tasks: list[asyncio.Task[None]] = []
        timer = loop.call_later(
            self._allowed_s, lambda: tasks.append(loop.create_task(self._end_blockers(pid)))
        )
        try:
            yield
        finally:
            timer.cancel()
            for task in tasks:
                task.cancel()

    async def _end_blockers(self, pid: int) -> None:
        ended: set[int] = set()
        while True:
            try:
                async with self._link.reading() as connection:
                    rows = await connection.fetch(_END_BLOCKERS, pid, self._allowed_s)
            except FAULTS:
                return  # the write that waits reports the outage
            for row in rows:
                if row["pid"] not in ended:  # its end takes a moment
                    ended.add(row["pid"])
                    log.warning("store_session_ended", pid=row["pid"], stuck_s=round(row["stuck_s"], 1))
            await asyncio.sleep(_LOOK_EVERY_S)
