"""Glances at PostgreSQL: those that come at the same moment share a connection and its journeys."""

import asyncio
from collections import deque
from typing import Any, TypeVar

from crcr.errors import StoreUnavailable
from crcr.record.crew import Crew
from crcr.record.database import Unit
from crcr.record.groups import Waiting, answer, fail
from crcr.record.in_step import Walk, walk_in_step
from crcr.record.postgres_link import FAULTS, Connection, PostgresLink, as_unavailable
from crcr.record.postgres_tx import PostgresTx

T = TypeVar("T")

_TOGETHER = 64
_SIDE_BY_SIDE = 4
"""So that a slow one does not hold up all."""
_TOO_LONG = "57014"


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
                async with self._link.reading() as connection:
                    group += (self._waiting.popleft() for _ in range(min(_TOGETHER, len(self._waiting))))
                    await _look_at_all(connection, group)
            except FAULTS as fault:
                fail(group or self._all(), as_unavailable(fault) or fault)
            except StoreUnavailable as fault:
                fail(group or self._all(), fault)
            except BaseException:
                fail([*group, *self._all()], StoreUnavailable("the look was broken off"))
                raise

    def _all(self) -> list[Waiting[Any]]:
        group = list(self._waiting)
        self._waiting.clear()
        return group


async def _look_at_all(connection: Connection, group: list[Waiting[Any]]) -> None:
    try:
        await walk_in_step(connection, [_walk(waiting) for waiting in group])
    except FAULTS as fault:
        if not _is_somebodys(fault):
            raise
        for waiting in group:  # whose failure it is, each finds out alone
            if not waiting.answer.done():
                await _look_alone(connection, waiting)


async def _look_alone(connection: Connection, waiting: Waiting[Any]) -> None:
    try:
        await walk_in_step(connection, [_walk(waiting)])
    except FAULTS as fault:
        if not _is_somebodys(fault):
            raise
        fail([waiting], as_unavailable(fault) or fault)


def _walk(waiting: Waiting[Any]) -> Walk:
    try:
        yield from PostgresTx().walk([waiting])
    except FAULTS:
        raise
    except Exception as failure:  # noqa: BLE001  nothing was written: it is this one's, and the others look on
        fail([waiting], failure)
    else:
        answer([waiting])


def _is_somebodys(fault: BaseException) -> bool:
    """Whether it is about one question, as a wrong one or one that took too long, and not about the server."""
    return as_unavailable(fault) is None or getattr(fault, "sqlstate", None) == _TOO_LONG
