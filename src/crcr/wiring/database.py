"""Locates and opens the main store from its settings."""

from crcr.errors import NotFound
from crcr.record.migrations.run import revision
from crcr.record.store.database import Database, DatabaseLocation, PostgresLocation, StoreCounters
from crcr.record.store.signals import Signals
from crcr.settings import Settings, SqliteSetting


def database_location(settings: Settings) -> DatabaseLocation:
    database = settings.database
    if isinstance(database, SqliteSetting):
        return database.path
    return PostgresLocation(
        database.url.get_secret_value(), connections=settings.database_pool, ca=settings.database_ca
    )


def open_database(settings: Settings, signals: Signals, tally: StoreCounters | None = None) -> Database:
    place = database_location(settings)
    if isinstance(place, PostgresLocation):
        from crcr.record.store.postgres.connection import PostgresLink  # noqa: PLC0415
        from crcr.record.store.postgres.database import PostgresDatabase  # noqa: PLC0415

        return PostgresDatabase(PostgresLink(place, tally), signals, tally)
    from crcr.record.store.sqlite.database import SqliteDatabase  # noqa: PLC0415

    return SqliteDatabase(place, signals, tally)


def require_database(settings: Settings) -> None:
    """Raise `NotFound` when there is no database, so that a command does not create one by mistake."""
    place = database_location(settings)
    there = revision(place) is not None if isinstance(place, PostgresLocation) else place.exists()
    if not there:
        where = settings.database.place
        raise NotFound(f"there is no database at {where}", hint="`crcr serve` or `crcr migrate` creates it")
