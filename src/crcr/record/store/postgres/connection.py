"""Connections to PostgreSQL: two pools with limits, time-outs on both ends, and the meaning of its errors.

Writes have connections of their own, so that no number of open pages blocks a result. When the server goes away the
running calls fail with `StoreUnavailable`; the next ones reconnect.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias, cast

import asyncpg

from crcr.errors import SchemaMismatch, StoreUnavailable
from crcr.record.store.database import NoCounters, PostgresLocation, PostgresTimeouts, StoreCounters

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
FAULTS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""Everything that the driver raises."""

WHAT_TO_CHECK = "check the address (CRCR_DATABASE_URL), CRCR_DATABASE_CA and the server"
_CONNECT_S = 3.0
_ACQUIRE_S = 4.0
_COMMAND_S = 20.0
_WRITE_COMMAND_S = 6.0
"""For a server that does not answer at all, not even with its own time-out."""
_IDLE_S = 300.0
_STATEMENTS = 1024
"""Prepared statements that a connection keeps; we have a few hundred."""
_SERVER = {
    "application_name": "crcr",
    "timezone": "UTC",
    "jit": "off",  # our statements are short; planning them for a compiler takes longer than they do
}
_BY_INDEX = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"}
"""For writes: a plan that was made while a table was small is kept, and must be right when the table has grown."""
_LOST_RACES = frozenset({"40001", "40P01", "25P02"})
_UNAVAILABLE_CLASSES = ("08", "53", "57", "58")
"""Classes of errors in the server's state: connection, resources, operator intervention, system."""
_UNKNOWN_NAMES = frozenset({"42P01", "42703"})
"""No such table, no such column."""
_UNAVAILABLE_CODES = frozenset({"25006", "25P03", "55P03", "28000", "28P01", "3D000"})


class _PooledConnection(asyncpg.Connection):
    def get_reset_query(self) -> str:
        return ""  # our transactions leave no session state, and a reset costs a round trip each time


class PostgresLink:
    def __init__(self, location: PostgresLocation, counters: StoreCounters | None = None) -> None:
        self.location = location
        self._counters = counters or NoCounters()
        self._used = {"writing": 0, "reading": 0}
        self._writers = max(2, location.connections // 2)
        self._readers = max(2, location.connections - self._writers)
        self._pools: dict[str, asyncio.Task[asyncpg.Pool[asyncpg.Record]]] = {}

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        async with self._from("writing", self._writers) as connection:
            yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        async with self._from("reading", self._readers) as connection:
            yield connection

    async def connect(self) -> Connection:
        """Open a connection outside of the pools."""
        return await connect(self.location)

    async def renew_connections(self) -> None:
        """Close the idle connections, and those in use when they are free: the next calls connect again."""
        for task in self._pools.values():
            if task.done() and task.exception() is None:
                await task.result().expire_connections()

    async def close(self) -> None:
        for task in self._pools.values():
            if task.done() and task.exception() is None:
                pool = task.result()
                try:
                    await asyncio.wait_for(pool.close(), _CONNECT_S)
                except FAULTS:
                    pool.terminate()

    @asynccontextmanager
    async def _from(self, name: str, most: int) -> AsyncIterator[Connection]:
        try:
            pool = await self._pool(name, most)
            connection = await pool.acquire(timeout=_ACQUIRE_S)
            self._use(name, most, 1)
            try:
                yield cast("Connection", connection)
            finally:
                self._use(name, most, -1)
                await pool.release(connection)
        except FAULTS as fault:
            unavailable = as_unavailable(fault)
            if unavailable is None:
                raise
            raise unavailable from fault

    def _use(self, name: str, most: int, more: int) -> None:
        self._used[name] += more
        self._counters.connections(pool=name, used=self._used[name], most=most)

    async def _pool(self, name: str, most: int) -> "asyncpg.Pool[asyncpg.Record]":
        task = self._pools.get(name)
        if task is None or (task.done() and task.exception() is not None):
            task = self._pools[name] = asyncio.create_task(self._open(name, most))
        return await asyncio.shield(task)

    async def _open(self, name: str, most: int) -> "asyncpg.Pool[asyncpg.Record]":
        arguments = (_writing_arguments if name == "writing" else _reading_arguments)(self.location)
        return await asyncpg.create_pool(
            min_size=0,
            max_size=most,
            max_inactive_connection_lifetime=_IDLE_S,
            connection_class=_PooledConnection,
            **arguments,
        )


async def connect(location: PostgresLocation, *, command_s: float | None = _COMMAND_S) -> Connection:
    """Open a connection; `command_s` is the time-out of a command, None for no time-out."""
    try:
        return await asyncpg.connect(**{**_arguments(location), "command_timeout": command_s})
    except FAULTS as fault:
        unavailable = as_unavailable(fault)
        if unavailable is None:
            raise
        unavailable.hint = unavailable.hint or WHAT_TO_CHECK
        raise unavailable from fault


def _arguments(location: PostgresLocation) -> dict[str, Any]:
    trusted = {"ssl": ssl.create_default_context(cafile=str(location.ca))} if location.ca else {}
    password = {"password": location.new_password} if location.new_password else {}
    settings = {} if location.pooled else {**_SERVER, **_timeout_settings(location.timeouts)}
    return {
        "dsn": location.url,
        "timeout": _CONNECT_S,
        "command_timeout": _COMMAND_S,
        "statement_cache_size": 0 if location.pooled else _STATEMENTS,
        "max_cached_statement_lifetime": 0,
        "server_settings": settings,
        **password,
        **trusted,
    }


def _reading_arguments(location: PostgresLocation) -> dict[str, Any]:
    """Nobody waits for a session that only reads: it may be idle as long as a statement may run."""
    timeouts = replace(location.timeouts, idle_in_transaction_ms=location.timeouts.statement_ms)
    return _arguments(replace(location, timeouts=timeouts))


def _writing_arguments(location: PostgresLocation) -> dict[str, Any]:
    timeouts = location.timeouts
    if timeouts.write_ms and not 0 < timeouts.statement_ms < timeouts.write_ms:
        timeouts = replace(timeouts, statement_ms=timeouts.write_ms)
    arguments = _arguments(replace(location, timeouts=timeouts))
    settings = {} if location.pooled else {**arguments["server_settings"], **_BY_INDEX}
    return {**arguments, "server_settings": settings, "command_timeout": _WRITE_COMMAND_S}


def _timeout_settings(timeouts: PostgresTimeouts) -> dict[str, str]:
    return {
        "statement_timeout": str(timeouts.statement_ms),
        "lock_timeout": str(timeouts.lock_ms),
        "idle_in_transaction_session_timeout": str(timeouts.idle_in_transaction_ms),
    }


def is_lost_race(fault: asyncpg.PostgresError) -> bool:
    return fault.sqlstate in _LOST_RACES


def as_unavailable(fault: BaseException) -> StoreUnavailable | None:
    """The fault as `StoreUnavailable`, or None when it does not mean that the store is unavailable."""
    if isinstance(fault, StoreUnavailable):
        return fault
    if isinstance(fault, asyncpg.PostgresError):
        code = fault.sqlstate or ""
        if code in _UNKNOWN_NAMES:
            return SchemaMismatch(f"PostgreSQL has no such table or column: {fault}")
        if is_lost_race(fault) or code.startswith(_UNAVAILABLE_CLASSES) or code in _UNAVAILABLE_CODES:
            return StoreUnavailable(f"PostgreSQL did not take it: {fault}")
        return None
    if isinstance(fault, TimeoutError):
        return StoreUnavailable("PostgreSQL did not answer in time")
    # The driver raises an internal error when the server closes the connection between two statements.
    if isinstance(fault, OSError | asyncpg.InternalClientError) or (
        isinstance(fault, asyncpg.InterfaceError) and not isinstance(fault, ValueError)
    ):
        return StoreUnavailable(f"PostgreSQL is away: {fault}")
    return None
