"""Wake-ups of a process that reads a replica: none is lost when a change is replayed between the two position reads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from crcr.record.store.postgres.connection import PostgresLink
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.postgres.replica import ReplicaDatabase
from crcr.record.store.signals import CHANGES, Signals


class Servers:
    """A primary and its replica; a change is committed and replayed after the primary's position is read, before the replica's."""

    def __init__(self) -> None:
        self.settled, self.lsn = 9, 100

    async def read_position(self, _: str) -> tuple[int, int]:
        position = self.settled, self.lsn
        self.settled, self.lsn = 10, 200
        return position

    async def watch_other_processes(self) -> None:
        """Behind a pooler there is no LISTEN."""

    @asynccontextmanager
    async def reading(self) -> AsyncIterator["Servers"]:
        yield self

    async def fetchval(self, _: str) -> int:
        return self.lsn


async def test_a_change_replayed_between_the_two_position_reads_wakes_the_process_again() -> None:
    servers, signals = Servers(), Signals()
    database = ReplicaDatabase(
        cast("PostgresDatabase", servers), cast("PostgresLink", servers), signals, lambda _: None
    )
    wake = signals.subscribe(CHANGES)
    following = asyncio.create_task(database.watch_other_processes())
    async with asyncio.timeout(10):
        await wake.wait()
        wake.clear()
        await wake.wait()
    following.cancel()
