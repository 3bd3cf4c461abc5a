"""Glances at PostgreSQL: those that come at the same moment share a connection and its journeys."""

import asyncio
from collections import deque
from typing import Any, TypeVar

from crcr.record.crew import Crew
from crcr.record.database import Unit
from crcr.record.groups import Waiting, answer, fail
from crcr.record.in_step import Walk, walk_in_step
from crcr.record.postgres_link import Connection, PostgresLink, as_unavailable
from crcr.record.postgres_tx import PostgresTx

T = TypeVar("T")

_TOGETHER = 64
_SIDE_BY_SIDE = 2


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
            await asyncio.sleep(0)  # let those who are ready now come along
            group: list[Waiting[Any]] = []
            try:
                async with self._link.reading() as connection:
                    group += (self._waiting.popleft() for _ in range(min(_TOGETHER, len(self._waiting))))
                    await _look_at_all(connection, group)
            except Exception as fault:  # noqa: BLE001  it is told to those who wait
                fail(group or self._all(), as_unavailable(fault) or fault)

    def _all(self) -> list[Waiting[Any]]:
        group = list(self._waiting)
        self._waiting.clear()
        return group


async def _look_at_all(connection: Connection, group: list[Waiting[Any]]) -> None:
    try:
        await walk_in_step(connection, [_walk(waiting) for waiting in group])
    except Exception as fault:
        if as_unavailable(fault) is not None:
            raise
        for waiting in group:  # whose failure it is, each finds out alone
            if not waiting.answer.done():
                await _look_alone(connection, waiting)


async def _look_alone(connection: Connection, waiting: Waiting[Any]) -> None:
    try:
        await walk_in_step(connection, [_walk(waiting)])
    except Exception as fault:
        if as_unavailable(fault) is not None:
            raise
        fail([waiting], fault)


def _walk(waiting: Waiting[Any]) -> Walk:
    yield from PostgresTx().walk([waiting])
    answer([waiting])
