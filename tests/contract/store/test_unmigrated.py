"""A database without this release's tables gives a clear error."""

from pathlib import Path

import pytest
from sqlalchemy import text

from crcr.errors import SchemaMismatch
from crcr.record.store.database import Database, PostgresLocation, Tx
from crcr.record.store.postgres.connection import PostgresLink
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.signals import Signals
from crcr.record.store.sqlite.database import SqliteDatabase
from crcr.record.store.statement import Statement
from support.services.postgres import new_database

_ASK = Statement(text("SELECT upstream FROM upstreams"))


async def _ask(tx: Tx) -> None:
    await tx.all(_ASK)


def _sqlite(folder: Path) -> Database:
    return SqliteDatabase(folder / "empty.db", Signals())


def _postgresql(_: Path) -> Database:
    return PostgresDatabase(PostgresLink(PostgresLocation(new_database(empty=True))), Signals())


@pytest.mark.parametrize("opened", [_sqlite, _postgresql])
async def test_reading_and_writing_say_that_the_schema_is_another(tmp_path: Path, opened: object) -> None:
    database = opened(tmp_path)  # type: ignore[operator]
    try:
        for way in (database.quick_read, database.write):
            with pytest.raises(SchemaMismatch) as told:
                await way(_ask)
            assert "crcr migrate" in (told.value.hint or "")
    finally:
        await database.close()
