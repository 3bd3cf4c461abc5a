"""Migrates a database to this release's schema, and reads which schema it has.

Alembic is imported only where something is to be migrated: a relay on a current database starts without it.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, create_engine, event, inspect, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from crcr.errors import StoreUnavailable
from crcr.record.schema.all_tables import metadata
from crcr.record.store.database import NO_TIMEOUTS, DatabaseLocation, PostgresLocation
from crcr.record.store.sqlite.file import make_private

if TYPE_CHECKING:
    from alembic.config import Config

T = TypeVar("T")

_FOLDER = Path(__file__).parent
_MIGRATING = 0x63726372_6D696772
"""The advisory lock: one starting process migrates at a time."""
_WAL_TRIES = 100
# Texts compare by their bytes, as on SQLite, whatever the server's locale.
_OTHER_COLLATIONS = text(
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"
    " AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'"
)


def migrate(location: DatabaseLocation) -> tuple[str | None, str]:
    """Apply what is missing; return the revisions before and after."""
    if not isinstance(location, PostgresLocation):
        return _upgrade_sqlite(location)
    if _in_thread(_is_at_head(location)):
        return head(), head()
    return _on_postgres(location, _upgrade_postgres)


def revision(location: DatabaseLocation) -> str | None:
    """The revision of a database; None for an empty one. Nothing is changed."""
    if isinstance(location, PostgresLocation):
        return _on_postgres(location, current)
    engine = create_engine(f"sqlite:///{location}", poolclass=NullPool)
    try:
        with engine.connect() as connection:
            return current(connection)
    except DBAPIError as fault:
        raise StoreUnavailable(f"the database {location} cannot be read: {fault.orig}") from fault
    finally:
        engine.dispose()


def head() -> str:
    return max(_known_revisions())


def is_known(revision: str) -> bool:
    """Whether this release knows the revision; a newer release's is unknown."""
    return revision in _known_revisions()


@cache
def _known_revisions() -> frozenset[str]:
    """A migration's revision is the number that its file name begins with."""
    return frozenset(path.name[:4] for path in (_FOLDER / "versions").glob("[0-9][0-9][0-9][0-9]_*.py"))


def current(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def upgrade_to_head(connection: Connection, named: str) -> None:
    from alembic import command  # noqa: PLC0415  a tenth of a second that a current database does not need
    from alembic.util import CommandError  # noqa: PLC0415

    try:
        command.upgrade(alembic_config(connection), "head")
    except CommandError as fault:
        hint = "a newer release may have written it: use that one, or another database"
        raise StoreUnavailable(f"the database {named} cannot be migrated: {fault}", hint=hint) from fault


def alembic_config(connection: Connection | None) -> "Config":
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes["connection"] = connection
    return config


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
            # Held over all steps, so that of two starting processes one migrates and the other has nothing to do.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            before = current(connection)
            if before != head():
                upgrade_to_head(connection, str(path))
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
        upgrade_to_head(connection, "on PostgreSQL")
        _settle_collation(connection)
    return before, current(connection) or ""


def _settle_collation(connection: Connection) -> None:
    """Set the C collation on our own tables; the database may hold others."""
    for table, column in connection.execute(_OTHER_COLLATIONS).all():
        if table in metadata.tables:
            connection.execute(text(f'ALTER TABLE "{table}" ALTER COLUMN "{column}" TYPE text COLLATE "C"'))


async def _is_at_head(location: PostgresLocation) -> bool:
    """Whether nothing is to be migrated; without SQLAlchemy's engine, whose import takes longer than the query."""
    from crcr.record.store.postgres.connection import connect  # noqa: PLC0415  loaded only with PostgreSQL

    connection = await connect(location)
    try:
        if await connection.fetchval("SELECT to_regclass('alembic_version')") is None:
            return False
        found = await connection.fetchval("SELECT version_num FROM alembic_version")
        return bool(found == head())
    finally:
        connection.terminate()


def _on_postgres(location: PostgresLocation, act: Callable[[Connection], T]) -> T:
    return _in_thread(_act_on_postgres(location, act))


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run in a thread: the driver needs an event loop, and the caller may run in one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _act_on_postgres(location: PostgresLocation, act: Callable[[Connection], T]) -> T:
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415  loaded only with PostgreSQL

    from crcr.record.store.postgres.connection import connect  # noqa: PLC0415

    untimed = replace(location, timeouts=NO_TIMEOUTS)
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: connect(untimed, command_s=None),
        poolclass=NullPool,
        # A pooler may give the next transaction another session, which does not know a named statement.
        connect_args={"prepared_statement_name_func": str, "prepared_statement_cache_size": 0},
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
    for _attempt in range(_WAL_TRIES):
        with suppress(sqlite3.OperationalError):
            cursor.execute("PRAGMA journal_mode=WAL")
            break
        # When another process begins to write, SQLite does not wait here but fails; a transaction waits for its end.
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute("COMMIT")
    cursor.close()
