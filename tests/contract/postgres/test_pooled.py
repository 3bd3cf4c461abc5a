"""PostgreSQL behind a transaction pooler, where each transaction may get another session: migration, writes, reads."""

import asyncio

from sqlalchemy import text

from crcr.record.migrations.run import head, migrate
from crcr.record.store.database import PostgresLocation, Tx
from crcr.record.store.postgres.connection import PostgresLink
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.signals import EFFECTS, Signals
from crcr.record.store.statement import Statement
from support.services.postgres import new_database
from support.services.transaction_pooler import run_pooler

_ADD = Statement(
    text("INSERT INTO leaders (duty, holder, since_at, until_at) VALUES (:duty, 'here', 0, :until)")
)
_ADDED = Statement(text("SELECT until_at FROM leaders WHERE duty = :duty"))


async def test_migration_writes_and_reads_keep_no_session_state() -> None:
    async with run_pooler(new_database(empty=True)) as pooler:
        location = PostgresLocation(pooler.url, pooled=True)
        assert await asyncio.to_thread(migrate, location) == (None, head())
        database = PostgresDatabase(PostgresLink(location), Signals(), listen=False)

        async def add(number: int) -> None:
            async def unit(tx: Tx) -> None:
                await tx.run(_ADD, duty=f"duty {number}", until=number)
                tx.signal(EFFECTS)

            await database.write(unit, lane=f"lane {number % 5}" if number % 7 else None)

        async def read(number: int, *, snapshot: bool) -> int:
            async def unit(tx: Tx) -> int:
                row = await tx.one(_ADDED, duty=f"duty {number}")
                assert row is not None
                return int(row["until_at"])

            return await (database.read if snapshot else database.quick_read)(unit)

        await asyncio.gather(*(add(number) for number in range(60)))
        values = await asyncio.gather(*(read(number, snapshot=number % 2 == 0) for number in range(60)))
        pooler.drop_clients()
        await database.renew_connections()
        assert await read(3, snapshot=True) == 3
        await database.close()
    assert values == list(range(60))
    assert pooler.refused == []
    assert pooler.transactions > 40
