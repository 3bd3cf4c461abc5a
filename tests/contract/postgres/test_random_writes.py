"""Random writes of two processes beside failing and slow connections, failing units and cancelled callers.

Whatever happens in between, each write ends, an acknowledged one is committed, a refused one is not, and the next one succeeds.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from sqlalchemy import text

from crcr.errors import StoreUnavailable
from crcr.record.store.database import PostgresLocation, Tx
from crcr.record.store.postgres.connection import Connection, PostgresLink
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.signals import Signals
from crcr.record.store.statement import Statement
from support.services.postgres import new_database

INSERT = Statement(text("INSERT INTO upstreams (upstream, name, created_at) VALUES (:name, :name, 0)"))
NAMES = Statement(text("SELECT upstream FROM upstreams"))
WRITES, LANES = 300, 20


class UnreliableLink(PostgresLink):
    """One connection in ten cannot be had, and one in ten takes a while."""

    def __init__(self, location: PostgresLocation, chance: Random) -> None:
        super().__init__(location)
        self.chance = chance
        self.is_reliable = False

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        trouble = 1.0 if self.is_reliable else self.chance.random()
        if trouble < 0.1:
            raise StoreUnavailable("the server is away")
        if trouble < 0.2:
            for _ in range(self.chance.randrange(50)):
                await asyncio.sleep(0)
        async with super().writing() as connection:
            yield connection


class UnitError(Exception):
    pass


@pytest.mark.parametrize("seed", range(6))
async def test_every_write_ends_and_only_acknowledged_writes_are_committed(seed: int) -> None:
    chance, location = Random(seed), PostgresLocation(new_database())
    link = UnreliableLink(location, chance)
    unreliable = PostgresDatabase(link, Signals())
    reliable = PostgresDatabase(PostgresLink(location), Signals())

    async def insert(tx: Tx, number: int) -> None:
        await tx.run(INSERT, name=f"{number}")
        if number % 37 == 0:
            raise UnitError

    def start(number: int) -> asyncio.Task[None]:
        database = unreliable if chance.random() < 0.8 else reliable
        lane = None if chance.random() < 0.05 else f"lane {chance.randrange(LANES)}"
        return asyncio.create_task(database.write(lambda tx: insert(tx, number), lane=lane))

    tasks: list[asyncio.Task[None]] = []
    for number in range(WRITES):
        tasks.append(start(number))
        for _ in range(chance.choice([0, 0, 0, 20])):
            await asyncio.sleep(0)
        if chance.random() < 0.05:
            chance.choice(tasks).cancel()
    outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)

    committed = {row["upstream"] for row in await reliable.quick_read(lambda tx: tx.all(NAMES))}
    acknowledged = {f"{number}" for number, outcome in enumerate(outcomes) if outcome is None}
    refused = {
        f"{number}"
        for number, outcome in enumerate(outcomes)
        if isinstance(outcome, StoreUnavailable | UnitError)
    }
    assert acknowledged <= committed
    assert refused
    assert not refused & committed

    link.is_reliable = True
    await asyncio.wait_for(unreliable.write(lambda tx: tx.run(INSERT, name="last"), lane="lane 1"), 20)
    await asyncio.wait_for(asyncio.gather(unreliable.close(), reliable.close()), 20)
