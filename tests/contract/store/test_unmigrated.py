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

_SELECT = Statement(text("SELECT upstream FROM upstreams"))


async def _select(tx: Tx) -> None:
    await tx.all(_SELECT)


def _sqlite(folder: Path) -> Database:
    return SqliteDatabase(folder / "empty.db", Signals())


def _postgresql(_: Path) -> Database:
    return PostgresDatabase(PostgresLink(PostgresLocation(new_database(empty=True))), Signals())


@pytest.mark.parametrize("opened", [_sqlite, _postgresql])
async def test_reads_and_writes_without_a_schema_raise_a_hint_to_migrate(
    tmp_path: Path, opened: object
) -> None:
    database = opened(tmp_path)  # type: ignore[operator]
    try:
        for run in (database.quick_read, database.write):
            with pytest.raises(SchemaMismatch) as error:
                await run(_select)
            assert "crcr migrate" in (error.value.hint or "")
    finally:
        await database.close()
