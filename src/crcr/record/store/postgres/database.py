"""PostgreSQL behind the `Database` port: any number of processes write concurrently, and each unit decides as if alone.

A write without a lane excludes all others, of every process; a write with a lane excludes only its own lane. Both
are advisory locks of the transaction, so a process that dies releases them. Queued units are committed in groups, as
on SQLite; the lanes of a group run in one batch. Why: docs/adr/0020-postgresql.md.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from typing import Any, TypeVar, cast

import asyncpg
import structlog

from crcr.errors import StoreUnavailable
from crcr.record.store.database import NoCounters, StoreCounters, Unit
from crcr.record.store.group_commit import QueuedUnit, fail_units, resolve_units
from crcr.record.store.postgres.batched_reads import BatchedReads, TaskPool
from crcr.record.store.postgres.batching import PostgresTx, SlowestStatement, run_batched
from crcr.record.store.postgres.connection import (
    FAULTS,
    Connection,
    PostgresLink,
    as_unavailable,
    is_lost_race,
)
from crcr.record.store.postgres.lane_locks import EXCLUSIVE, PREPARE, SETTLED, TRY, begin, lane_number
from crcr.record.store.postgres.stuck_sessions import StuckSessions
from crcr.record.store.postgres.wakeups import PostgresWakeups
from crcr.record.store.signals import CHANGES, Signals

T = TypeVar("T")

log = structlog.get_logger(__name__)

_MOST_LANES = 64
_GROUP = 128
_CONCURRENT_GROUPS = 2
_SLOW_S = 0.05
"""A second transaction begins beside one that takes this long, such as one that waits for a lane of another process."""
_LANES_FOR_SECOND = 4
"""It also begins when so many lanes wait: the relay prepares one group while the server runs the other. For fewer lanes it does
not, since each group takes time of the relay and of the server whatever its size."""
_LONG_S = 1.0
"""A transaction that took longer is logged."""
_TRIES = 5
_RECHECK_S = 0.05
_SHOWN = 120
_SHOWN_LANES = 5
"""Of a statement's text and of lanes, in the log."""


class LaneQueues:
    """One queue of units for each lane; a lane is taken by at most one of our transactions at a time."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[QueuedUnit[Any]]] = {}
        self._taken: set[int] = set()

    def add(self, lane: int, queued: QueuedUnit[Any]) -> None:
        self._queues.setdefault(lane, deque()).append(queued)

    def count_free_lanes(self, most: int) -> int:
        """Count the lanes with queued units that no transaction has taken, up to `most`."""
        return len(list(islice((lane for lane in self._queues if lane not in self._taken), most)))

    def take_lanes(self) -> list[int]:
        """Take the lane that is next, and as many others as may run with it; empty when none is free."""
        free = [lane for lane in self._queues if lane not in self._taken]
        if free[:1] == [EXCLUSIVE]:
            lanes = [EXCLUSIVE]
        else:
            lanes = [lane for lane in free if lane != EXCLUSIVE][:_MOST_LANES]
        self._taken.update(lanes)
        return lanes

    def pop_units(self, lanes: Iterable[int], most: int) -> dict[int, list[QueuedUnit[Any]]]:
        """Pop the first units of these lanes, `most` in all; a lane with units left moves to the end."""
        lanes = list(lanes)
        per_lane = max(1, most // len(lanes))
        popped: dict[int, list[QueuedUnit[Any]]] = {}
        for lane in lanes:
            queue = self._queues.pop(lane, deque())
            popped[lane] = [queue.popleft() for _ in range(min(per_lane, len(queue)))]
            if queue:
                self._queues[lane] = queue
        return popped

    def peek(self, lane: int) -> list[QueuedUnit[Any]]:
        return list(self._queues.get(lane, ()))

    def remove(self, lane: int, queued: QueuedUnit[Any]) -> bool:
        """Remove one unit from its queue; False when a transaction has taken it already."""
        queue = self._queues.get(lane, deque())
        if queued not in queue:
            return False
        queue.remove(queued)
        if not queue:
            del self._queues[lane]
        return True

    def release_lanes(self, lanes: Iterable[int]) -> None:
        self._taken.difference_update(lanes)

    def pop_all_free(self) -> list[QueuedUnit[Any]]:
        """Pop all units, except those of taken lanes."""
        free = [lane for lane in self._queues if lane not in self._taken]
        return [queued for lane in free for queued in self._queues.pop(lane)]


class PostgresDatabase:
    def __init__(
        self,
        link: PostgresLink,
        signals: Signals,
        counters: StoreCounters | None = None,
        *,
        listen: bool = True,
    ) -> None:
        self.signals = signals
        self._counters = counters or NoCounters()
        self._link = link
        self._queue_s = link.location.timeouts.queue_ms / 1_000
        self._wakeups = PostgresWakeups(link, signals, listen=listen)
        self._reads = BatchedReads(link)
        self._stuck_sessions = StuckSessions(link)
        self._queues = LaneQueues()
        self._committers = TaskPool(_CONCURRENT_GROUPS, self._commit_groups)
        self._slow_groups = 0
        self._about_to_take = False
        """Whether a transaction has not yet taken its lanes: it takes those of all units that are queued until then."""
        self._recheck: asyncio.TimerHandle | None = None
        self._closed = False

    async def write(self, unit: Unit[T], *, lane: str | None = None) -> T:
        self._refuse_if_closed()
        loop = asyncio.get_running_loop()
        queued: QueuedUnit[T] = QueuedUnit(unit, loop.create_future(), lane=lane)
        self._queues.add(lane_number(lane), queued)
        self._start_committer()
        deadline = loop.call_later(self._queue_s, self._expire, queued)
        try:
            return await queued.outcome
        finally:
            deadline.cancel()

    async def quick_read(self, unit: Unit[T]) -> T:
        self._refuse_if_closed()
        return await self._reads.read(unit)

    async def read(self, unit: Unit[T]) -> T:
        self._refuse_if_closed()
        async with self._link.reading() as connection:
            # Read before the snapshot is taken: the snapshot contains all changes that were settled then.
            [(settled, behind)] = await connection.fetch(SETTLED)
            if behind:
                self._recheck_soon()
            tx, queued = PostgresTx(settled), QueuedUnit(unit, asyncio.get_running_loop().create_future())
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await run_batched(connection, [tx.run_units([queued])])
            return cast("T", queued.result)

    async def read_position(self, query: str) -> tuple[int | None, int]:
        """Return the change up to which no earlier one can still be committed, and then what the query returns."""
        async with self._link.reading() as connection:
            [(settled, _)] = await connection.fetch(SETTLED)
            return settled, await connection.fetchval(query)

    async def close(self) -> None:
        """Commit the queued units, then close the connections."""
        self._closed = True
        if self._recheck is not None:
            self._recheck.cancel()
        await self._committers.join()
        await self._reads.close()
        await self._wakeups.close()
        await self._link.close()

    async def renew_connections(self) -> None:
        await self._link.renew_connections()

    async def watch_other_processes(self) -> None:
        """Wake our waiters when another process has committed."""
        await self._wakeups.watch()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    def _expire(self, queued: QueuedUnit[Any]) -> None:
        if self._queues.remove(lane_number(queued.lane), queued):
            log.warning(
                "store_waited", lanes=[queued.lane], waited_s=self._queue_s, waited_for="earlier writes"
            )
            fail_units([queued], StoreUnavailable("PostgreSQL is busy: earlier writes have not ended"))

    def _recheck_soon(self) -> None:
        """Committed changes were held back for a running transaction, whose end may signal nothing."""
        if self._recheck is None or self._recheck.when() <= asyncio.get_running_loop().time():
            self._recheck = asyncio.get_running_loop().call_later(_RECHECK_S, self.signals.wake, CHANGES)

    def _start_committer(self) -> None:
        """Begin a transaction for the units that wait, unless one is about to take their lanes."""
        if not self._about_to_take and self._committers.running < self._allowed_groups():
            self._about_to_take = self._committers.start()

    async def _take_lanes(self, group: "_Group") -> bool:
        """Let the requests that are ready now join the group; a second transaction may take what it leaves."""
        self._about_to_take = True
        try:
            await asyncio.sleep(0)
        finally:
            self._about_to_take = False
        taken = group.take_lanes()
        self._start_committer()
        return taken

    def _allowed_groups(self) -> int:
        """How many transactions may be in progress, for the units that wait now."""
        free = self._queues.count_free_lanes(_LANES_FOR_SECOND)
        return self._slow_groups + (free > 0) + (free == _LANES_FOR_SECOND)

    async def _commit_groups(self) -> None:
        while self._committers.running <= self._allowed_groups():
            group = _Group(self._queues)
            try:
                async with self._link.writing() as connection:
                    while await self._take_lanes(group):
                        await self._commit_group(connection, group)
                        group = _Group(self._queues)
                        if self._committers.running > self._allowed_groups():
                            break
            except Exception as fault:  # noqa: BLE001  it is raised to the callers
                self._counters.failed()
                fail_units(
                    group.unfinished_units() or self._queues.pop_all_free(), as_unavailable(fault) or fault
                )
            except BaseException:
                # No other task would take the units that are still queued.
                unfinished = group.unfinished_units()
                group.release()
                fail_units(
                    [*unfinished, *self._queues.pop_all_free()], StoreUnavailable("the write was cancelled")
                )
                raise
            finally:
                self._about_to_take = False  # also without a connection
                group.release()

    async def _commit_group(self, connection: Connection, group: "_Group") -> None:
        began = time.perf_counter()
        with (
            group.log_slow_transaction(),
            self._stuck_sessions.end_blockers_of(connection),
            self._second_beside_slow(),
        ):
            signals = await self._commit(connection, group)
        group.release()
        self._counters.committed(len(group.units), time.perf_counter() - began)
        resolve_units(group.units)
        for name in signals:
            self.signals.notify(name)

    @contextmanager
    def _second_beside_slow(self) -> Iterator[None]:
        """Let a second transaction begin once this one is slow."""
        slow = False

        def begin_second() -> None:
            nonlocal slow
            slow = True
            self._slow_groups += 1
            self._start_committer()

        timer = asyncio.get_running_loop().call_later(_SLOW_S, begin_second)
        try:
            yield
        finally:
            timer.cancel()
            self._slow_groups -= slow

    async def _commit(self, connection: Connection, group: "_Group") -> set[str]:
        """Run the group; after a lost race or a failed unit run it again, one unit at a time."""
        for attempt in range(1, _TRIES + 1):
            try:
                sql = begin(group.locks, group.others, prepared=not self._link.location.pooled)
                async with _transaction(connection, sql, group.slowest, tries=bool(group.others)) as tried:
                    await group.gather(connection, tried)
                    return await (_run_units if attempt == 1 else _run_with_savepoints)(connection, group)
            except asyncpg.PostgresError as fault:
                if not is_lost_race(fault) or attempt == _TRIES:
                    raise
            except _UnitFailed:
                pass
        raise StoreUnavailable("the write lost every race against others")


class _Group:
    """Units of several lanes that are committed together, in a transaction that holds their locks.

    It waits only for the lock of the lane that is next; the other lanes are tried without waiting. While it holds a
    lock it waits for no other, so no two groups deadlock.
    """

    def __init__(self, queues: LaneQueues) -> None:
        self._queues = queues
        self._lanes: list[int] = []
        self.by_lane: dict[int, list[QueuedUnit[Any]]] = {}
        self.slowest = SlowestStatement()

    @property
    def units(self) -> list[QueuedUnit[Any]]:
        return [queued for units in self.by_lane.values() for queued in units]

    @property
    def by_lane_name(self) -> Iterable[list[QueuedUnit[Any]]]:
        """The units of each lane in order; lanes that share a number wait for each other only between transactions."""
        by_name: dict[str | None, list[QueuedUnit[Any]]] = {}
        for queued in self.units:
            by_name.setdefault(queued.lane, []).append(queued)
        return by_name.values()

    @contextmanager
    def log_slow_transaction(self) -> Iterator[None]:
        """Log a transaction that took long, also when it failed: its lanes, and its slowest statement."""
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
                    lanes=self._lane_names(),
                    waited_s=round(waited_s, 1),
                    waited_for=" ".join(self.slowest.sql.split())[:_SHOWN],
                    sqlstate=error,
                )

    def _lane_names(self) -> list[str | None]:
        groups = self.by_lane.values() or [self._queues.peek(self._lanes[0])] if self._lanes else []
        names = dict.fromkeys(queued.lane for units in groups for queued in units)
        return list(names)[:_SHOWN_LANES]

    def take_lanes(self) -> bool:
        self._lanes = self._queues.take_lanes()
        return bool(self._lanes)

    @property
    def locks(self) -> list[int]:
        """The locks to begin with. After a lost race these are all, in the same order in every process."""
        return sorted(self.by_lane) or self._lanes[:1]

    @property
    def others(self) -> list[int]:
        """The lanes whose locks are tried without waiting."""
        return [] if self.by_lane else self._lanes[1:]

    async def gather(self, connection: Connection, tried: int) -> None:
        """Take the units of all lanes whose lock is free; `tried` is how many of the others' locks were granted."""
        if self.by_lane:
            return
        first, *others = self._lanes
        if tried < len(others):
            held = {
                row["lane"] for row in await connection.fetch(TRY, others)
            }  # what is held is granted again
            self._queues.release_lanes(lane for lane in others if lane not in held)
            self._lanes = [first, *(lane for lane in others if lane in held)]
        self.by_lane = self._queues.pop_units(self._lanes, _GROUP)

    def unfinished_units(self) -> list[QueuedUnit[Any]]:
        """The units that a failure concerns: all that were gathered, or else those of the first lane."""
        if self._lanes and not self.by_lane:
            self.by_lane = self._queues.pop_units(self._lanes[:1], _GROUP)
        return self.units

    def release(self) -> None:
        self._queues.release_lanes(self._lanes)


class _UnitFailed(Exception):
    """One unit of a group failed; the run with savepoints finds out which."""


@asynccontextmanager
async def _transaction(
    connection: Connection, sql: str, slowest: SlowestStatement, *, tries: bool
) -> AsyncIterator[int]:
    """Begin with the locks; yields how many of those that `sql` `tries` were granted."""
    try:
        with slowest.timing("the lane's lock"):
            status = await _begin(connection, sql)
        yield int(status.rpartition(" ")[2]) if tries else 0
        with slowest.timing("COMMIT"):
            await _commit(connection)
    except BaseException:
        with suppress(*FAULTS):
            await connection.execute("ROLLBACK")
        raise


async def _begin(connection: Connection, sql: str) -> str:
    try:
        return await connection.execute(sql)
    except asyncpg.InvalidSQLStatementNameError:  # the first transaction of this connection
        await connection.execute(f"ROLLBACK; {PREPARE}")
        return await connection.execute(sql)


async def _commit(connection: Connection) -> None:
    """COMMIT of a transaction that a swallowed error has aborted rolls back, and raises nothing."""
    if await connection.execute("COMMIT") != "COMMIT":
        raise StoreUnavailable("PostgreSQL rolled back the transaction")


async def _run_units(connection: Connection, group: _Group) -> set[str]:
    """Run all without savepoints, since a unit rarely fails."""
    tx = PostgresTx()
    try:
        lanes = [tx.run_units(units) for units in group.by_lane_name]
        await run_batched(connection, lanes, group.slowest, last_writes=tx.sum_writes)
    except Exception as failure:
        if as_unavailable(failure) is not None:  # or a lost race, which concerns the whole group
            raise
        raise _UnitFailed from failure
    return tx.signals


async def _run_with_savepoints(connection: Connection, group: _Group) -> set[str]:
    signals: set[str] = set()
    for queued in group.units:
        tx, queued.failure = PostgresTx(), None
        await connection.execute("SAVEPOINT unit")
        try:
            steps = tx.run_units([queued])
            await run_batched(connection, [steps], group.slowest, last_writes=tx.sum_writes)
        except Exception as failure:
            if as_unavailable(failure) is not None:
                raise
            queued.failure = failure
            await connection.execute("ROLLBACK TO unit")
        else:
            signals |= tx.signals
        await connection.execute("RELEASE unit")
    return signals
