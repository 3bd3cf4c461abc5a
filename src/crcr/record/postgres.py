"""PostgreSQL behind the `Database` port: any number of processes write side by side, and decide as if alone.

A write without a lane excludes all others, of every process; writes with a lane exclude only their own lane. Both
are advisory locks of the transaction, so a process that dies lets go of them. What waits for a lane is committed as
one group, as on SQLite. Why: docs/adr/0020-postgresql.md.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, cast
from zlib import crc32

import asyncpg

from crcr.errors import StoreUnavailable
from crcr.record.database import Row, Unit
from crcr.record.groups import Sums, Waiting, answer, fail
from crcr.record.postgres_link import FAULTS, Connection, PostgresLink, as_unavailable, is_lost_race
from crcr.record.postgres_wake import Wake
from crcr.record.signals import CHANGES, Signals
from crcr.record.statement import Adding, Statement
from crcr.record.store_tally import StoreTally, Uncounted

T = TypeVar("T")

_LANES = 16
_GROUP = 128
_TRIES = 5
_LOCKS = 0x63726372
"""The class of our advisory locks; number 0 is everybody's, then one for each lane."""
# No transaction can still add a change up to this id (see the ADR): none of those under way began below it. Locks that
# name a change begin with 25448, since others may use advisory locks of one number as well.
_SETTLED = """
SELECT least(seen.newest, locks.lowest) AS settled, coalesce(locks.lowest < seen.newest, false) AS behind
FROM (SELECT last_value - (CASE WHEN is_called THEN 0 ELSE 1 END) AS newest FROM changes_change_id_seq) AS seen
LEFT JOIN LATERAL (
  SELECT min(((classid::bigint & 65535) << 32) | objid::bigint) AS lowest FROM pg_locks
  WHERE seen.newest IS NOT NULL AND locktype = 'advisory' AND objsubid = 1 AND granted
  AND classid::bigint >> 16 = 25448
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS locks ON true
"""
_UNDER_WAY = (
    "SELECT pg_advisory_xact_lock_shared((25448::bigint << 48) + last_value"
    " - (CASE WHEN is_called THEN 0 ELSE 1 END)) FROM changes_change_id_seq"
)
_LOOK_AGAIN_S = 0.05


class PostgresTx:
    """Runs statements on one connection, inside whatever transaction it is in."""

    def __init__(self, connection: Connection, settled: int | None = None) -> None:
        self._connection = connection
        self._settled = settled
        self.signals: set[str] = set()
        self._sums = Sums()

    async def one(self, statement: Statement, **params: Any) -> Row | None:
        compiled = statement.for_dialect("postgresql")
        return cast("Row | None", await self._connection.fetchrow(compiled.sql, *compiled.arguments(params)))

    async def all(self, statement: Statement, **params: Any) -> list[Row]:
        compiled = statement.for_dialect("postgresql")
        return cast("list[Row]", await self._connection.fetch(compiled.sql, *compiled.arguments(params)))

    async def run(self, statement: Statement, **params: Any) -> int:
        compiled = statement.for_dialect("postgresql")
        status = await self._connection.execute(compiled.sql, *compiled.arguments(params))
        return int(status.rpartition(" ")[2])

    async def many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
        compiled = statement.for_dialect("postgresql")
        values = [compiled.arguments(row) for row in rows]
        if values:
            await self._connection.executemany(compiled.sql, values)

    def add_up(self, adding: Adding, key: tuple[Any, ...], amounts: Mapping[str, float]) -> None:
        self._sums.add(adding, key, amounts)

    async def write_sums(self) -> None:
        for statement, rows in self._sums.take():
            await self.many(statement, rows)

    async def settled_change(self) -> int | None:
        return self._settled

    def signal(self, name: str) -> None:
        self.signals.add(name)


class PostgresDatabase:
    def __init__(self, link: PostgresLink, signals: Signals, tally: StoreTally | None = None) -> None:
        self.signals = signals
        self._tally = tally or Uncounted()
        self._link = link
        self._wake = Wake(link, signals)
        self._queues: dict[int, deque[Waiting[Any]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._again: asyncio.TimerHandle | None = None
        self._closed = False

    async def write(self, unit: Unit[T], *, lane: str | None = None) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        committed: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        number = 0 if lane is None else 1 + crc32(lane.encode()) % _LANES
        self._queues.setdefault(number, deque()).append(Waiting(unit, committed))
        task = self._tasks.get(number)
        if task is None or task.done():
            self._tasks[number] = asyncio.create_task(self._commit_groups(number))
        return await committed

    async def glance(self, unit: Unit[T]) -> T:
        async with self._link.reading() as connection:
            return await unit(PostgresTx(connection))

    async def read(self, unit: Unit[T]) -> T:
        async with self._link.reading() as connection:
            # Asked before the snapshot is taken: what was settled then, the snapshot holds.
            [(settled, behind)] = await connection.fetch(_SETTLED)
            if behind:
                self._look_again_soon()
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await unit(PostgresTx(connection, settled))

    async def close(self) -> None:
        """Commit what is waiting, then let go of the connections."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._wake.close()
        await self._link.close()

    async def watch_other_processes(self) -> None:
        """Wake our waiters when another process has committed."""
        await self._wake.listen()

    def _look_again_soon(self) -> None:
        """Changes that are committed were held back for a transaction under way, whose end may wake nobody."""
        if self._again is None or self._again.when() <= asyncio.get_running_loop().time():
            self._again = asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self.signals.heard, CHANGES)

    async def _commit_groups(self, number: int) -> None:
        waiting = self._queues[number]
        while waiting:
            await asyncio.sleep(0)  # let requests that are ready now join this group
            group: list[Waiting[Any]] = []
            try:
                async with self._link.writing() as connection:
                    group += (waiting.popleft() for _ in range(min(_GROUP, len(waiting))))
                    began = time.perf_counter()
                    signals = await self._commit(connection, number, group)
                    self._tally.committed(len(group), time.perf_counter() - began)
            except StoreUnavailable as fault:
                self._tally.failed()
                fail(group or _all(waiting), fault)
                continue
            except BaseException:
                # Nobody else would come for those who still wait in line.
                fail([*group, *_all(waiting)], StoreUnavailable("the write was broken off"))
                raise
            answer(group)
            for name in signals:
                self.signals.notify(name)

    async def _commit(self, connection: Connection, number: int, group: list[Waiting[Any]]) -> set[str]:
        """Run the group; a race that was lost to another transaction is run again, one by one if it goes on."""
        for tries in range(1, _TRIES + 1):
            try:
                async with _transaction(connection, number):
                    return await (
                        _run_units(connection, group) if tries == 1 else _run_apart(connection, group)
                    )
            except asyncpg.PostgresError as fault:
                if not is_lost_race(fault) or tries == _TRIES:
                    raise
            except _AUnitFailed:
                pass
        raise StoreUnavailable("the write lost every race against others")


class _AUnitFailed(Exception):
    """One unit of a group failed; whose failure it is, the run apart finds out."""


@asynccontextmanager
async def _transaction(connection: Connection, number: int) -> AsyncIterator[None]:
    mine = f"; SELECT pg_advisory_xact_lock({_LOCKS}, {number})"
    everybody = f"; SELECT pg_advisory_xact_lock{'_shared' if number else ''}({_LOCKS}, 0)"
    begin = f"BEGIN{everybody}{mine if number else ''}; {_UNDER_WAY}"
    try:
        await connection.execute(begin)
        yield
        await _keep(connection)
    except BaseException:
        with suppress(*FAULTS):
            await connection.execute("ROLLBACK")
        raise


async def _keep(connection: Connection) -> None:
    """A transaction that a swallowed error has broken is undone by COMMIT, and nothing is raised."""
    if await connection.execute("COMMIT") != "COMMIT":
        raise StoreUnavailable("PostgreSQL took back the transaction")


async def _run_units(connection: Connection, group: list[Waiting[Any]]) -> set[str]:
    """Run all without savepoints, as nearly always none fails."""
    tx = PostgresTx(connection)
    try:
        for waiting in group:
            waiting.result = await waiting.unit(tx)
        await tx.write_sums()
    except Exception as failure:
        if as_unavailable(failure) is not None:  # or a lost race, which is the whole group's
            raise
        raise _AUnitFailed from failure
    return tx.signals


async def _run_apart(connection: Connection, group: list[Waiting[Any]]) -> set[str]:
    signals: set[str] = set()
    for waiting in group:
        tx, waiting.failure = PostgresTx(connection), None
        await connection.execute("SAVEPOINT unit")
        try:
            waiting.result = await waiting.unit(tx)
            await tx.write_sums()
        except Exception as failure:
            if as_unavailable(failure) is not None:
                raise
            waiting.failure = failure
            await connection.execute("ROLLBACK TO unit")
        else:
            signals |= tx.signals
        await connection.execute("RELEASE unit")
    return signals


def _all(waiting: deque[Waiting[Any]]) -> list[Waiting[Any]]:
    """No connection is to be had: none of those in line need wait for their own turn to hear it."""
    group = list(waiting)
    waiting.clear()
    return group
