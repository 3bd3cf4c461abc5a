"""A PostgreSQL that closes the connection between two statements, which the driver raises as its own error."""

import asyncpg
import pytest

from crcr.errors import StoreUnavailable
from crcr.record.store.database import PostgresLocation, Tx
from crcr.record.store.postgres.connection import PostgresLink
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.signals import Signals
from support.services.postgres import drop_database, new_database

FAREWELL = asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")


async def breaks(_: Tx) -> None:
    raise FAREWELL


async def works(_: Tx) -> str:
    return "done"


async def test_a_servers_farewell_is_the_store_being_away() -> None:
    url = new_database()
    database = PostgresDatabase(PostgresLink(PostgresLocation(url)), Signals())
    try:
        for ask in (database.write, database.quick_read, database.read):
            with pytest.raises(StoreUnavailable):
                await ask(breaks)
            assert await ask(works) == "done"
    finally:
        await database.close()
        drop_database(url)
