"""The way to PostgreSQL: two pools with limits, time-outs on both ends, and what its errors mean to us.

Writes have connections of their own, so that no number of open pages keeps a result out. A server that went away
costs the calls under way a `StoreUnavailable`; the next ones connect anew.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias, cast

import asyncpg

from crcr.errors import SchemaMismatch, StoreUnavailable
from crcr.record.store.counters import StoreTally, Uncounted
from crcr.record.store.location import Limits, PostgresPlace

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
FAULTS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""All that the driver raises."""

WHAT_TO_CHECK = "check the address (CRCR_DATABASE_URL), CRCR_DATABASE_CA and the server"
_CONNECT_S = 3.0
_ACQUIRE_S = 4.0
_COMMAND_S = 20.0
_WRITE_COMMAND_S = 6.0
"""For a server that says nothing at all, not even that a time-out is over."""
_IDLE_S = 300.0
_STATEMENTS = 1024
"""Prepared statements that a connection keeps; we have a few hundred."""
_SERVER = {
    "application_name": "crcr",
    "timezone": "UTC",
    "jit": "off",  # our statements are short; planning them for a compiler takes longer than they do
}
_LOST_RACES = frozenset({"40001", "40P01", "25P02"})
_AWAY = ("08", "53", "57", "58")
"""Classes of errors that are the server's state, not ours: connection, resources, intervention, its system."""
_NOT_THERE = frozenset({"42P01", "42703"})
"""No such table, no such column."""
_AWAY_CODES = frozenset({"25006", "25P03", "55P03", "28000", "28P01", "3D000"})


class _Lean(asyncpg.Connection):
    def get_reset_query(self) -> str:
        return ""  # our transactions leave nothing behind, and cleaning up costs a journey each time


class PostgresLink:
    def __init__(self, place: PostgresPlace, tally: StoreTally | None = None) -> None:
        self.place = place
        self._tally = tally or Uncounted()
        self._used = {"writing": 0, "reading": 0}
        self._writers = max(2, place.connections // 2)
        self._readers = max(2, place.connections - self._writers)
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
        """One more connection, outside of the pools."""
        return await connect(self.place)

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
            away = as_unavailable(fault)
            if away is None:
                raise
            raise away from fault

    def _use(self, name: str, most: int, more: int) -> None:
        self._used[name] += more
        self._tally.connections(pool=name, used=self._used[name], most=most)

    async def _pool(self, name: str, most: int) -> "asyncpg.Pool[asyncpg.Record]":
        task = self._pools.get(name)
        if task is None or (task.done() and task.exception() is not None):
            task = self._pools[name] = asyncio.create_task(self._open(name, most))
        return await asyncio.shield(task)

    async def _open(self, name: str, most: int) -> "asyncpg.Pool[asyncpg.Record]":
        arguments = _writing_arguments(self.place) if name == "writing" else _arguments(self.place)
        return await asyncpg.create_pool(
            min_size=0,
            max_size=most,
            max_inactive_connection_lifetime=_IDLE_S,
            connection_class=_Lean,
            **arguments,
        )


async def connect(place: PostgresPlace, *, command_s: float | None = _COMMAND_S) -> Connection:
    """A connection of one's own; `command_s` is how long it may wait for an answer, None for ever."""
    try:
        return await asyncpg.connect(**{**_arguments(place), "command_timeout": command_s})
    except FAULTS as fault:
        away = as_unavailable(fault)
        if away is None:
            raise
        away.hint = away.hint or WHAT_TO_CHECK
        raise away from fault


def _arguments(place: PostgresPlace) -> dict[str, Any]:
    trusted = {"ssl": ssl.create_default_context(cafile=str(place.ca))} if place.ca else {}
    return {
        "dsn": place.url,
        "timeout": _CONNECT_S,
        "command_timeout": _COMMAND_S,
        "statement_cache_size": _STATEMENTS,
        "max_cached_statement_lifetime": 0,
        "server_settings": {**_SERVER, **_limits(place.limits)},
        **trusted,
    }


def _writing_arguments(place: PostgresPlace) -> dict[str, Any]:
    limits = place.limits
    if limits.write_ms and not 0 < limits.statement_ms < limits.write_ms:
        limits = replace(limits, statement_ms=limits.write_ms)
    return {**_arguments(replace(place, limits=limits)), "command_timeout": _WRITE_COMMAND_S}


def _limits(limits: Limits) -> dict[str, str]:
    return {
        "statement_timeout": str(limits.statement_ms),
        "lock_timeout": str(limits.lock_ms),
        "idle_in_transaction_session_timeout": str(limits.idle_in_transaction_ms),
    }


def is_lost_race(fault: asyncpg.PostgresError) -> bool:
    return fault.sqlstate in _LOST_RACES


def as_unavailable(fault: BaseException) -> StoreUnavailable | None:
    """The fault as the store being away, or None when it is something else."""
    if isinstance(fault, StoreUnavailable):
        return fault
    if isinstance(fault, asyncpg.PostgresError):
        code = fault.sqlstate or ""
        if code in _NOT_THERE:
            return SchemaMismatch(f"PostgreSQL does not know what it was asked for: {fault}")
        if is_lost_race(fault) or code.startswith(_AWAY) or code in _AWAY_CODES:
            return StoreUnavailable(f"PostgreSQL did not take it: {fault}")
        return None
    if isinstance(fault, TimeoutError):
        return StoreUnavailable("PostgreSQL did not answer in time")
    # The driver calls it an internal error when a server's farewell comes between two statements.
    if isinstance(fault, OSError | asyncpg.InternalClientError) or (
        isinstance(fault, asyncpg.InterfaceError) and not isinstance(fault, ValueError)
    ):
        return StoreUnavailable(f"PostgreSQL is away: {fault}")
    return None
