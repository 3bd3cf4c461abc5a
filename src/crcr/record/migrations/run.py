"""Bringing a database to this release's schema, and telling whether it is there."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from crcr.errors import StoreUnavailable
from crcr.record.schema.all_tables import metadata
from crcr.record.store.database import NO_TIMEOUTS, DatabaseLocation, PostgresLocation
from crcr.record.store.sqlite.file import make_private

T = TypeVar("T")

_HERE = Path(__file__).parent
_MIGRATING = 0x63726372_6D696772
"""The advisory lock that of several starting processes one holds."""
# Texts compare by their bytes, as they do on SQLite, whatever language the server speaks.
_OTHERWISE_COLLATED = text(
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"
    " AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'"
)


def migrate(where: DatabaseLocation) -> tuple[str | None, str]:
    """Apply what is missing; return the revisions before and after."""
    try:
        if isinstance(where, PostgresLocation):
            return _on_postgres(where, _upgrade_postgres)
        return _upgrade_sqlite(where)
    except CommandError as fault:
        hint = "a newer release may have written it: use that one, or another database"
        raise StoreUnavailable(
            f"the database {_named(where)} cannot be migrated: {fault}", hint=hint
        ) from fault


def revision(where: DatabaseLocation) -> str | None:
    """Which revision a database has; None for an empty one. Nothing is changed."""
    if isinstance(where, PostgresLocation):
        return _on_postgres(where, current)
    engine = create_engine(f"sqlite:///{where}", poolclass=NullPool)
    try:
        with engine.connect() as connection:
            return current(connection)
    except DBAPIError as fault:
        raise StoreUnavailable(f"the database {where} cannot be read: {fault.orig}") from fault
    finally:
        engine.dispose()


def head() -> str:
    return ScriptDirectory.from_config(_config(None)).get_current_head() or ""


def is_known(found: str) -> bool:
    """Whether this release has the revision; a newer release's is unknown to it."""
    try:
        return ScriptDirectory.from_config(_config(None)).get_revision(found) is not None
    except CommandError:
        return False


def current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _named(where: DatabaseLocation) -> str:
    return "on PostgreSQL" if isinstance(where, PostgresLocation) else str(where)


def _upgrade_sqlite(path: Path) -> tuple[str | None, str]:
    try:
        make_private(path)
    except OSError as fault:
        raise StoreUnavailable(
            f"the database {path} cannot be opened for writing: {fault.strerror}"
        ) from fault
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    event.listen(engine, "connect", _prepare)
    try:
        with engine.connect() as connection:
            # Held over all steps, so that of two starting processes one migrates and the other finds it done.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            before = current(connection)
            command.upgrade(_config(connection), "head")
            connection.commit()
            return before, current(connection) or ""
    except DBAPIError as fault:
        raise StoreUnavailable(f"the database {path} cannot be opened for writing: {fault.orig}") from fault
    finally:
        engine.dispose()


def _upgrade_postgres(connection: Connection) -> tuple[str | None, str]:
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATING})"))
    before = current(connection)
    if before != head():
        command.upgrade(_config(connection), "head")
        _settle_collation(connection)
    return before, current(connection) or ""


def _settle_collation(connection: Connection) -> None:
    """Of our own tables: somebody else's may stand beside them."""
    for table, column in connection.execute(_OTHERWISE_COLLATED).all():
        if table in metadata.tables:
            connection.execute(text(f'ALTER TABLE "{table}" ALTER COLUMN "{column}" TYPE text COLLATE "C"'))


def _on_postgres(place: PostgresLocation, act: Callable[[Connection], T]) -> T:
    """In a thread of its own: its driver needs an event loop, and the caller may be in one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _act_on_postgres(place, act)).result()


async def _act_on_postgres(place: PostgresLocation, act: Callable[[Connection], T]) -> T:
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415  only who uses PostgreSQL pays for it

    from crcr.record.store.postgres.connection import connect  # noqa: PLC0415

    patient = replace(place, timeouts=NO_TIMEOUTS)
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: connect(patient, command_s=None),
        poolclass=NullPool,
    )
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(act)
    except DBAPIError as fault:
        raise StoreUnavailable(f"PostgreSQL did not take the migration: {fault.orig}") from fault
    finally:
        await engine.dispose()


def _prepare(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # we begin and commit ourselves
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout=30000")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_HERE))
    config.attributes["connection"] = connection
    return config
