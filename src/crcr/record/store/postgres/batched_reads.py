"""Glances at PostgreSQL: those that come at the same moment share a connection and its journeys."""

import asyncio
from collections import deque
from typing import Any, TypeVar

import asyncpg

from crcr.errors import StoreUnavailable
from crcr.record.store.database import Unit
from crcr.record.store.group_commit import Waiting, answer, fail
from crcr.record.store.postgres.batching import Walk, walk_in_step
from crcr.record.store.postgres.connection import FAULTS, PostgresLink, as_unavailable
from crcr.record.store.postgres.task_pool import Crew
from crcr.record.store.postgres.transaction import PostgresTx

T = TypeVar("T")

_TOGETHER = 64
_SIDE_BY_SIDE = 4
"""So that a slow one does not hold up all."""


class Glances:
    def __init__(self, link: PostgresLink) -> None:
        self._link = link
        self._waiting: deque[Waiting[Any]] = deque()
        self._lookers = Crew(_SIDE_BY_SIDE, self._look)

    async def at(self, unit: Unit[T]) -> T:
        seen: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(unit, seen))
        self._lookers.call()
        return await seen

    async def close(self) -> None:
        await self._lookers.done()

    async def _look(self) -> None:
        while self._waiting:
            group: list[Waiting[Any]] = []
            try:
                await asyncio.sleep(0)  # let those who are ready now come along
                if not await self._look_together(group):
                    # Each beside the others, since one of them may take its time again.
                    await asyncio.gather(
                        *(self._look_alone(each) for each in group if not each.answer.done())
                    )
            except (StoreUnavailable, *FAULTS) as fault:
                fail(group or self._all(), as_unavailable(fault) or fault)
            except BaseException:
                fail([*group, *self._all()], StoreUnavailable("the look was broken off"))
                raise

    async def _look_together(self, group: list[Waiting[Any]]) -> bool:
        """False when one of them failed; whose failure it is, each finds out alone."""
        async with self._link.reading() as connection:
            group += (self._waiting.popleft() for _ in range(min(_TOGETHER, len(self._waiting))))
            try:
                await walk_in_step(connection, [_walk(waiting) for waiting in group])
            except FAULTS as fault:
                if as_unavailable(fault) is not None and not isinstance(fault, asyncpg.QueryCanceledError):
                    raise
                return False
        return True

    async def _look_alone(self, waiting: Waiting[Any]) -> None:
        try:
            async with self._link.reading() as connection:
                await walk_in_step(connection, [_walk(waiting)])
        except (StoreUnavailable, *FAULTS) as fault:
            fail([waiting], as_unavailable(fault) or fault)

    def _all(self) -> list[Waiting[Any]]:
        group = list(self._waiting)
        self._waiting.clear()
        return group


def _walk(waiting: Waiting[Any]) -> Walk:
    try:
        yield from PostgresTx().walk([waiting])
    except FAULTS:
        raise
    except Exception as failure:  # noqa: BLE001  nothing was written: it is this one's, and the others look on
        fail([waiting], failure)
    else:
        answer([waiting])
