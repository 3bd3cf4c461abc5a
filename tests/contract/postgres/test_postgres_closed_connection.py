"""PostgreSQL closes the connection between two statements, which the driver reports as an internal error of its own."""

import asyncpg
import pytest

from crcr.errors import StoreUnavailable
from crcr.record.store.database import PostgresLocation, Tx
from crcr.record.store.postgres.connection import PostgresLink
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.signals import Signals
from support.services.postgres import drop_database, new_database

CLOSED_MID_STATEMENT = asyncpg.InternalClientError(
    "cannot switch to state 15; another operation (2) is in progress"
)


async def raise_closed(_: Tx) -> None:
    raise CLOSED_MID_STATEMENT


async def return_done(_: Tx) -> str:
    return "done"


async def test_a_connection_closed_by_the_server_raises_store_unavailable() -> None:
    url = new_database()
    database = PostgresDatabase(PostgresLink(PostgresLocation(url)), Signals())
    try:
        for run in (database.write, database.quick_read, database.read):
            with pytest.raises(StoreUnavailable):
                await run(raise_closed)
            assert await run(return_done) == "done"
    finally:
        await database.close()
        drop_database(url)
