"""A PostgreSQL replica that pages read, while their writes go to the primary.

A replica does not know which transactions of the primary still run, so it cannot tell by itself up to which change none is
missing. The primary is asked for that change and for its position in the log (LSN); the change counts from the moment at
which the replica has replayed that position. So no event is lost, and none precedes its data. How long the oldest position
that is not replayed has waited is the replica's lag.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar, cast

from crcr.errors import StoreUnavailable
from crcr.record.store.database import Unit
from crcr.record.store.group_commit import QueuedUnit
from crcr.record.store.postgres.batched_reads import BatchedReads
from crcr.record.store.postgres.batching import PostgresTx, run_batched
from crcr.record.store.postgres.connection import PostgresLink
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.signals import Signals

T = TypeVar("T")

POLL_S = 0.25
_MOST_POSITIONS = 4 * 3600
# A server that was promoted, or is no replica at all, has everything.
_REPLAYED = (
    "SELECT ((CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END)"
    " - '0/0'::pg_lsn)::bigint"
)
_WRITTEN = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"


@dataclass(frozen=True, slots=True)
class PrimaryPosition:
    settled: int | None
    """The change up to which none can still be committed."""
    lsn: int
    """Everything up to that change is in the log before this position."""
    read_at_s: float


class ReplicaPositions:
    """Positions of the primary, and which of them the replica has replayed."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._waiting: deque[PrimaryPosition] = deque(maxlen=_MOST_POSITIONS)
        self._settled: int | None = 0
        self._has_replayed = False

    def add(self, settled: int | None, lsn: int) -> None:
        """Add a position of the primary; one that says nothing new is left out."""
        newest = self._waiting[-1] if self._waiting else None
        if newest is None or (newest.settled, newest.lsn) != (settled, lsn):
            self._waiting.append(PrimaryPosition(settled, lsn, self._now_s()))

    def replay(self, lsn: int) -> int | None:
        """Return the change up to which the replica, which has replayed the log to this position, has everything."""
        while self._waiting and self._waiting[0].lsn <= lsn:
            self._settled = self._waiting.popleft().settled
            self._has_replayed = True
        return self._settled

    @property
    def lag_s(self) -> float | None:
        """How far the replica is behind; None before the first position was read."""
        if self._waiting:
            return max(0.0, self._now_s() - self._waiting[0].read_at_s)
        return 0.0 if self._has_replayed else None


class ReplicaDatabase:
    """Reads from the replica, writes to the primary."""

    def __init__(
        self,
        primary: PostgresDatabase,
        replica: PostgresLink,
        signals: Signals,
        on_lag: Callable[[float | None], None],
    ) -> None:
        self._primary = primary
        self._replica = replica
        self._signals = signals
        self._on_lag = on_lag
        self._reads = BatchedReads(replica)
        self._positions = ReplicaPositions()

    async def write(self, unit: Unit[T], *, lane: str | None = None) -> T:
        return await self._primary.write(unit, lane=lane)

    async def quick_read(self, unit: Unit[T]) -> T:
        return await self._reads.read(unit)

    async def read(self, unit: Unit[T]) -> T:
        async with self._replica.reading() as connection:
            # Read before the snapshot is taken: the snapshot contains all that was replayed then.
            settled = self._positions.replay(await connection.fetchval(_REPLAYED))
            tx, queued = PostgresTx(settled), QueuedUnit(unit, asyncio.get_running_loop().create_future())
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await run_batched(connection, [tx.run_units([queued])])
            return cast("T", queued.result)

    async def watch_other_processes(self) -> None:
        """Wake our waiters when the replica has more than before; a hot standby has no LISTEN."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._primary.watch_other_processes())
            group.create_task(self._follow())

    async def renew_connections(self) -> None:
        await self._primary.renew_connections()
        await self._replica.renew_connections()

    async def close(self) -> None:
        await self._reads.close()
        await self._replica.close()
        await self._primary.close()

    async def _follow(self) -> None:
        last: tuple[int, int | None] | None = None
        while True:
            with suppress(StoreUnavailable):
                self._positions.add(*await self._primary.read_position(_WRITTEN))
            with suppress(StoreUnavailable):
                async with self._replica.reading() as connection:
                    replayed: int = await connection.fetchval(_REPLAYED)
                # The primary may say only after a change was replayed that it counts.
                now = replayed, self._positions.replay(replayed)
                if now != last:
                    self._signals.wake_all()
                last = now
            self._on_lag(self._positions.lag_s)
            await asyncio.sleep(POLL_S)
