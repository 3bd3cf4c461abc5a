"""PostgreSQL behind the `Database` port: any number of processes write side by side, and decide as if alone.

A write without a lane excludes all others, of every process; writes with a lane exclude only their own lane. Both
are advisory locks of the transaction, so a process that dies lets go of them. What waits is committed in groups, as
on SQLite, the lanes of a group in step with each other. Why: docs/adr/0020-postgresql.md.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar, cast

import asyncpg
import structlog

from crcr.errors import StoreUnavailable
from crcr.record.store.counters import StoreTally, Uncounted
from crcr.record.store.database import Unit
from crcr.record.store.group_commit import Waiting, answer, fail
from crcr.record.store.postgres.batched_reads import Glances
from crcr.record.store.postgres.batching import Slowest, walk_in_step
from crcr.record.store.postgres.connection import (
    FAULTS,
    Connection,
    PostgresLink,
    as_unavailable,
    is_lost_race,
)
from crcr.record.store.postgres.lane_queues import EVERYBODY, Lines, number_of
from crcr.record.store.postgres.notify import Wake
from crcr.record.store.postgres.task_pool import Crew
from crcr.record.store.postgres.transaction import PostgresTx
from crcr.record.store.signals import CHANGES, Signals

T = TypeVar("T")

log = structlog.get_logger(__name__)

_GROUP = 128
_SIDE_BY_SIDE = 2
"""Transactions at once: while one waits for the server or for a lane, the other gathers."""
_IN_LINE_S = 2.5
"""A write that waits longer than this for its transaction fails with `store_unavailable` (`places.Limits`)."""
_LONG_S = 1.0
"""A transaction that took longer is told in the log."""
_TRIES = 5
_LOCKS = 0x63726372
"""The class of our advisory locks; number 0 is everybody's, then one for each lane."""
_TRY = f"SELECT lane FROM unnest($1::int[]) AS lane WHERE pg_try_advisory_xact_lock({_LOCKS}, lane)"  # noqa: S608
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
_SHOWN = 120
_SHOWN_LANES = 5
"""Of a statement's text and of lanes, in the log."""


class PostgresDatabase:
    def __init__(self, link: PostgresLink, signals: Signals, tally: StoreTally | None = None) -> None:
        self.signals = signals
        self._tally = tally or Uncounted()
        self._link = link
        self._wake = Wake(link, signals)
        self._glances = Glances(link)
        self._lines = Lines()
        self._committers = Crew(_SIDE_BY_SIDE, self._commit_groups)
        self._again: asyncio.TimerHandle | None = None
        self._closed = False

    async def write(self, unit: Unit[T], *, lane: str | None = None) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        waiting: Waiting[T] = Waiting(unit, loop.create_future(), lane=lane)
        self._lines.add(number_of(lane), waiting)
        if self._lines.waits:
            self._committers.call()
        deadline = loop.call_later(_IN_LINE_S, self._end_wait, waiting)
        try:
            return await waiting.answer
        finally:
            deadline.cancel()

    async def glance(self, unit: Unit[T]) -> T:
        return await self._glances.at(unit)

    async def read(self, unit: Unit[T]) -> T:
        async with self._link.reading() as connection:
            # Asked before the snapshot is taken: what was settled then, the snapshot holds.
            [(settled, behind)] = await connection.fetch(_SETTLED)
            if behind:
                self._look_again_soon()
            tx, reading = PostgresTx(settled), Waiting(unit, asyncio.get_running_loop().create_future())
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await walk_in_step(connection, [tx.walk([reading])])
            return cast("T", reading.result)

    async def close(self) -> None:
        """Commit what is waiting, then let go of the connections."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        await self._committers.done()
        await self._glances.close()
        await self._wake.close()
        await self._link.close()

    async def watch_other_processes(self) -> None:
        """Wake our waiters when another process has committed."""
        await self._wake.listen()

    def _end_wait(self, waiting: Waiting[Any]) -> None:
        if self._lines.remove(number_of(waiting.lane), waiting):
            log.warning(
                "store_waited", lanes=[waiting.lane], waited_s=_IN_LINE_S, waited_for="earlier writes"
            )
            fail([waiting], StoreUnavailable("PostgreSQL is busy: earlier writes have not ended"))

    def _look_again_soon(self) -> None:
        """Changes that are committed were held back for a transaction under way, whose end may wake nobody."""
        if self._again is None or self._again.when() <= asyncio.get_running_loop().time():
            self._again = asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self.signals.heard, CHANGES)

    async def _commit_groups(self) -> None:
        while self._lines.waits:
            group = _Group(self._lines)
            try:
                await asyncio.sleep(0)  # let requests that are ready now join this group
                async with self._link.writing() as connection:
                    if not group.choose():
                        continue
                    began = time.perf_counter()
                    with group.log_slow_transaction():
                        signals = await self._commit(connection, group)
            except Exception as fault:  # noqa: BLE001  it is told to those who wait
                self._tally.failed()
                fail(group.stranded() or self._lines.disperse(), as_unavailable(fault) or fault)
                continue
            except BaseException:
                # Nobody else would come for those who still wait in line.
                stranded = group.stranded()
                group.part()
                fail([*stranded, *self._lines.disperse()], StoreUnavailable("the write was broken off"))
                raise
            finally:
                group.part()
            self._tally.committed(len(group.units), time.perf_counter() - began)
            answer(group.units)
            for name in signals:
                self.signals.notify(name)

    async def _commit(self, connection: Connection, group: "_Group") -> set[str]:
        """Run the group; a race that was lost to another transaction is run again, one by one if it goes on."""
        for tries in range(1, _TRIES + 1):
            try:
                async with _transaction(connection, group.wants, group.slowest):
                    await group.gather(connection)
                    return await (_run_units if tries == 1 else _run_apart)(connection, group)
            except asyncpg.PostgresError as fault:
                if not is_lost_race(fault) or tries == _TRIES:
                    raise
            except _AUnitFailed:
                pass
        raise StoreUnavailable("the write lost every race against others")


class _Group:
    """What is committed together: units of several lanes, whose locks the transaction holds.

    Only for the line whose turn it is does it wait; the others it takes if they are to be had. Holding one it waits
    for none, so no two wait for each other.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._numbers: list[int] = []
        self.by_lane: dict[int, list[Waiting[Any]]] = {}
        self.slowest = Slowest()

    @property
    def units(self) -> list[Waiting[Any]]:
        return [waiting for line in self.by_lane.values() for waiting in line]

    @contextmanager
    def log_slow_transaction(self) -> Iterator[None]:
        """Log a transaction that took long, or did not come to its end: which lanes, and what it waited for."""
        began, error = time.perf_counter(), None
        try:
            yield
        except asyncpg.PostgresError as fault:
            error = fault.sqlstate
            raise
        finally:
            waited_s = time.perf_counter() - began
            if waited_s >= _LONG_S:
                log.warning(
                    "store_waited",
                    lanes=self._lanes(),
                    waited_s=round(waited_s, 1),
                    waited_for=" ".join(self.slowest.sql.split())[:_SHOWN],
                    sqlstate=error,
                )

    def _lanes(self) -> list[str | None]:
        lines = self.by_lane.values() or [self._lines.peek(self._numbers[0])] if self._numbers else []
        names = dict.fromkeys(waiting.lane for line in lines for waiting in line)
        return list(names)[:_SHOWN_LANES]

    def choose(self) -> bool:
        self._numbers = self._lines.choose()
        return bool(self._numbers)

    @property
    def wants(self) -> list[int]:
        """The locks to begin with. After a lost race these are all, in the order in which everybody waits for them."""
        return sorted(self.by_lane) or self._numbers[:1]

    async def gather(self, connection: Connection) -> None:
        if self.by_lane:
            return
        first, *others = self._numbers
        if others:
            held = {row["lane"] for row in await connection.fetch(_TRY, others)}
            self._lines.give_back(number for number in others if number not in held)
            self._numbers = [first, *(number for number in others if number in held)]
        self.by_lane = self._lines.leave(self._numbers, _GROUP)

    def stranded(self) -> list[Waiting[Any]]:
        """Those whom a failure concerns: all that were gathered, or else the line that was waited for."""
        if self._numbers and not self.by_lane:
            self.by_lane = self._lines.leave(self._numbers[:1], _GROUP)
        return self.units

    def part(self) -> None:
        self._lines.give_back(self._numbers)


class _AUnitFailed(Exception):
    """One unit of a group failed; whose failure it is, the run apart finds out."""


@asynccontextmanager
async def _transaction(connection: Connection, lanes: list[int], slowest: Slowest) -> AsyncIterator[None]:
    mine = [f"SELECT pg_advisory_xact_lock({_LOCKS}, {lane})" for lane in lanes if lane != EVERYBODY]
    everybody = f"SELECT pg_advisory_xact_lock{'_shared' if mine else ''}({_LOCKS}, {EVERYBODY})"
    try:
        with slowest.timing("the lane's lock"):
            await connection.execute("; ".join(["BEGIN", everybody, *mine, _UNDER_WAY]))
        yield
        with slowest.timing("COMMIT"):
            await _keep(connection)
    except BaseException:
        with suppress(*FAULTS):
            await connection.execute("ROLLBACK")
        raise


async def _keep(connection: Connection) -> None:
    """A transaction that a swallowed error has broken is undone by COMMIT, and nothing is raised."""
    if await connection.execute("COMMIT") != "COMMIT":
        raise StoreUnavailable("PostgreSQL took back the transaction")


async def _run_units(connection: Connection, group: _Group) -> set[str]:
    """Run all without savepoints, as nearly always none fails."""
    tx = PostgresTx()
    try:
        await walk_in_step(connection, [tx.walk(line) for line in group.by_lane.values()], group.slowest)
        await walk_in_step(connection, [tx.walk_sums()], group.slowest)
    except Exception as failure:
        if as_unavailable(failure) is not None:  # or a lost race, which is the whole group's
            raise
        raise _AUnitFailed from failure
    return tx.signals


async def _run_apart(connection: Connection, group: _Group) -> set[str]:
    signals: set[str] = set()
    for waiting in group.units:
        tx, waiting.failure = PostgresTx(), None
        await connection.execute("SAVEPOINT unit")
        try:
            await walk_in_step(connection, [tx.walk([waiting])], group.slowest)
            await walk_in_step(connection, [tx.walk_sums()], group.slowest)
        except Exception as failure:
            if as_unavailable(failure) is not None:
                raise
            waiting.failure = failure
            await connection.execute("ROLLBACK TO unit")
        else:
            signals |= tx.signals
        await connection.execute("RELEASE unit")
    return signals
