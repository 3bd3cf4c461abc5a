"""Locates and opens the main store from its settings."""

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from crcr.errors import NotFound
from crcr.record.migrations.run import revision
from crcr.record.store.database import (
    Database,
    DatabaseLocation,
    PostgresLocation,
    PostgresTimeouts,
    StoreCounters,
)
from crcr.record.store.signals import Signals
from crcr.settings import Settings, SqliteSetting

if TYPE_CHECKING:
    from crcr.record.store.postgres.database import PostgresDatabase


def database_location(
    settings: Settings,
    timeouts: PostgresTimeouts = PostgresTimeouts(),  # noqa: B008 - frozen
) -> DatabaseLocation:
    database = settings.database
    if isinstance(database, SqliteSetting):
        return database.path
    return PostgresLocation(
        database.url.get_secret_value(),
        connections=settings.database_pool,
        ca=settings.database_ca,
        timeouts=timeouts,
    )


def open_database(
    settings: Settings,
    signals: Signals,
    counters: StoreCounters | None = None,
    timeouts: PostgresTimeouts = PostgresTimeouts(),  # noqa: B008 - frozen
    *,
    sqlite_durable: bool = True,
) -> Database:
    location = database_location(settings, timeouts)
    if isinstance(location, PostgresLocation):
        from crcr.record.store.postgres.connection import PostgresLink  # noqa: PLC0415
        from crcr.record.store.postgres.database import PostgresDatabase  # noqa: PLC0415

        listen = settings.database_listen == "auto"
        return PostgresDatabase(PostgresLink(location, counters), signals, counters, listen=listen)
    from crcr.record.store.sqlite.database import SqliteDatabase  # noqa: PLC0415

    return SqliteDatabase(location, signals, counters, durable=sqlite_durable)


def open_replica(
    settings: Settings, primary: Database, signals: Signals, on_lag: Callable[[float | None], None]
) -> Database:
    """Return a database that reads from the replica of the settings, or the primary itself without one."""
    if settings.hud_database is None:
        return primary
    from crcr.record.store.postgres.connection import PostgresLink  # noqa: PLC0415
    from crcr.record.store.postgres.replica import ReplicaDatabase  # noqa: PLC0415

    location = PostgresLocation(
        settings.hud_database.url.get_secret_value(),
        connections=settings.database_pool,
        ca=settings.database_ca,
    )
    return ReplicaDatabase(cast("PostgresDatabase", primary), PostgresLink(location), signals, on_lag)


def require_database(settings: Settings) -> None:
    """Raise `NotFound` when there is no database, so that a command does not create one by mistake."""
    location = database_location(settings)
    exists = revision(location) is not None if isinstance(location, PostgresLocation) else location.exists()
    if not exists:
        where = settings.database.display_name
        raise NotFound(f"there is no database at {where}", hint="`crcr serve` or `crcr migrate` creates it")
