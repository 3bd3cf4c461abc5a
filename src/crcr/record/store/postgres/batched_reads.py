"""Reads by key on PostgreSQL: those that are requested at the same time share a connection and its round trips."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from crcr.errors import StoreUnavailable
from crcr.record.store.database import Unit
from crcr.record.store.group_commit import QueuedUnit, fail_units, resolve_units
from crcr.record.store.postgres.batching import PostgresTx, Steps, run_batched
from crcr.record.store.postgres.connection import FAULTS, PostgresLink, as_unavailable

T = TypeVar("T")

_BATCH = 64
_CONCURRENT_BATCHES = 4
"""So that a slow batch does not hold up all."""


class TaskPool:
    """Up to `most` tasks that run `work`, which returns when its queue is empty. `start` after every addition."""

    def __init__(self, most: int, work: Callable[[], Awaitable[None]]) -> None:
        self._most = most
        self._work = work
        self.running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> bool:
        """Start one more task unless all are running; a running task checks the queue before it ends."""
        if self.running == self._most:
            return False
        self.running += 1
        task = asyncio.create_task(self._run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def join(self) -> None:
        """Wait for the running tasks. Cancelling the waiter does not cancel the tasks."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self) -> None:
        try:
            await self._work()
        finally:
            # In the same step as the last check of the queue: a task is done only one step later, and an addition
            # in between would find the pool full and wait for a task that has ended.
            self.running -= 1


class BatchedReads:
    def __init__(self, link: PostgresLink) -> None:
        self._link = link
        self._queue: deque[QueuedUnit[Any]] = deque()
        self._readers = TaskPool(_CONCURRENT_BATCHES, self._read_batches)

    async def read(self, unit: Unit[T]) -> T:
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(QueuedUnit(unit, outcome))
        self._readers.start()
        return await outcome

    async def close(self) -> None:
        await self._readers.join()

    async def _read_batches(self) -> None:
        while self._queue:
            batch: list[QueuedUnit[Any]] = []
            try:
                await asyncio.sleep(0)  # let reads that are ready now join this batch
                if not await self._read_together(batch):
                    # Concurrently, since the one that timed out may do so again.
                    await asyncio.gather(
                        *(self._read_alone(queued) for queued in batch if not queued.outcome.done())
                    )
            except (StoreUnavailable, *FAULTS) as fault:
                fail_units(batch or self._take_all(), as_unavailable(fault) or fault)
            except BaseException:
                fail_units([*batch, *self._take_all()], StoreUnavailable("the read was cancelled"))
                raise

    async def _read_together(self, batch: list[QueuedUnit[Any]]) -> bool:
        """Return False when one read failed; each is then repeated on its own to find out which."""
        async with self._link.reading() as connection:
            batch += (self._queue.popleft() for _ in range(min(_BATCH, len(self._queue))))
            try:
                await run_batched(connection, [_run_one(queued) for queued in batch])
            except FAULTS as fault:
                if as_unavailable(fault) is not None and not isinstance(fault, asyncpg.QueryCanceledError):
                    raise
                return False
        return True

    async def _read_alone(self, queued: QueuedUnit[Any]) -> None:
        try:
            async with self._link.reading() as connection:
                await run_batched(connection, [_run_one(queued)])
        except (StoreUnavailable, *FAULTS) as fault:
            fail_units([queued], as_unavailable(fault) or fault)

    def _take_all(self) -> list[QueuedUnit[Any]]:
        batch = list(self._queue)
        self._queue.clear()
        return batch


def _run_one(queued: QueuedUnit[Any]) -> Steps:
    try:
        yield from PostgresTx().run_units([queued])
    except FAULTS:
        raise
    except Exception as failure:  # noqa: BLE001  nothing was written: it is this caller's own, and the others go on
        fail_units([queued], failure)
    else:
        resolve_units([queued])
