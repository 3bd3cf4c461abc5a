"""`open_table_engine`: a synchronous SQLAlchemy engine on a store's SQLite file or PostgreSQL database.

The PostgreSQL driver is asynchronous, so its engine runs in its own thread.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, TypeVar

from sqlalchemy import CursorResult, Executable, create_engine, event
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from crcr.record.store.database import Database, PostgresLocation
from crcr.record.store.postgres.connection import PostgresLink, connect
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.signals import Signals
from crcr.record.store.sqlite.database import SqliteDatabase

T = TypeVar("T")
Where = Path | PostgresLocation


class TableConnection(Protocol):
    """The part of SQLAlchemy's connection that tests use."""

    def execute(self, statement: Executable, parameters: Any = None, /) -> CursorResult[Any]: ...


class TableEngine(Protocol):
    @contextmanager
    def begin(self) -> Iterator[Any]: ...

    def dispose(self) -> None: ...


def open_table_engine(where: Where) -> TableEngine:
    if isinstance(where, PostgresLocation):
        return _PostgresEngine(where)
    engine = create_engine(f"sqlite:///{where}")
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    return engine


def database_location(database: Database) -> Where:
    if isinstance(database, PostgresDatabase):
        return database._link.location
    assert isinstance(database, SqliteDatabase)
    return database._path


def open_handle(where: Where, signals: Signals | None = None) -> SqliteDatabase | PostgresDatabase:
    """Open another handle on the database, as another process would."""
    if isinstance(where, PostgresLocation):
        return PostgresDatabase(PostgresLink(where), signals or Signals())
    return SqliteDatabase(where, signals or Signals(), durable=False, in_threads=False)


class _PostgresEngine:
    def __init__(self, place: PostgresLocation) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._engine = create_async_engine(
            "postgresql+asyncpg://", async_creator=lambda: connect(place), poolclass=NullPool
        )

    @contextmanager
    def begin(self) -> Iterator["_PostgresConnection"]:
        connection = self._do(_begun(self._engine.connect()))
        try:
            yield _PostgresConnection(self, connection)
            self._do(connection.commit())
        finally:
            self._do(connection.close())

    def dispose(self) -> None:
        self._do(self._engine.dispose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, act: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(act, self._loop).result()


async def _begun(connection: AsyncConnection) -> AsyncConnection:
    return await connection.start()


class _PostgresConnection:
    def __init__(self, elsewhere: _PostgresEngine, connection: AsyncConnection) -> None:
        self._elsewhere = elsewhere
        self._connection = connection

    def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        return self._elsewhere._do(self._connection.execute(statement, parameters))

    def exec_driver_sql(self, sql: str) -> CursorResult[Any]:
        return self._elsewhere._do(self._connection.exec_driver_sql(sql))
