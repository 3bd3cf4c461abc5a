"""Locates and opens the main store from its settings, and the queue that its commits wake."""

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from crcr.errors import BadSettings, NotFound
from crcr.record.migrations.run import revision
from crcr.record.store.database import (
    Database,
    DatabaseLocation,
    PostgresLocation,
    PostgresTimeouts,
    StoreCounters,
)
from crcr.record.store.signals import Signals
from crcr.record.store.sqs_wakeups import SqsWakeups, open_sqs
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
    url = database.url.get_secret_value()
    return PostgresLocation(
        url,
        connections=settings.database_pool,
        ca=settings.database_ca,
        timeouts=timeouts,
        pooled=settings.database_pooler == "transaction",
        new_password=_iam_tokens(url) if settings.database_auth == "aws-iam" else None,
    )


def aws_region() -> str | None:
    """Return the region of this process, from the variables that AWS's own tools read."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def _iam_tokens(url: str) -> Callable[[], Awaitable[str]]:
    from crcr.record.store.postgres.iam_token import IamTokens  # noqa: PLC0415

    region = aws_region()
    if region is None:
        raise BadSettings(["CRCR_DATABASE_AUTH is aws-iam, so AWS_REGION must be set."])
    return IamTokens(url, region)


def open_wakeups(settings: Settings, signals: Signals) -> SqsWakeups | None:
    """Return the queue that gets a message after each commit with new effects; None without one."""
    if settings.wakeup_queue_url is None:
        return None
    url = settings.wakeup_queue_url
    return SqsWakeups(url, partial(open_sqs, url, aws_region()), signals)


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

        listen = settings.database_listen == "auto" and not location.pooled
        return PostgresDatabase(PostgresLink(location, counters), signals, counters, listen=listen)
    from crcr.record.store.sqlite.database import SqliteDatabase  # noqa: PLC0415

    return SqliteDatabase(location, signals, counters, durable=sqlite_durable, in_threads=sqlite_durable)


def open_replica(
    settings: Settings, primary: Database, signals: Signals, on_lag: Callable[[float | None], None]
) -> Database:
    """Return a database that reads from the replica of the settings, or the primary itself without one."""
    if settings.hud_database is None:
        return primary
    from crcr.record.store.postgres.connection import PostgresLink  # noqa: PLC0415
    from crcr.record.store.postgres.replica import ReplicaDatabase  # noqa: PLC0415

    url = settings.hud_database.url.get_secret_value()
    location = PostgresLocation(
        url,
        connections=settings.database_pool,
        ca=settings.database_ca,
        pooled=settings.database_pooler == "transaction",
        new_password=_iam_tokens(url) if settings.database_auth == "aws-iam" else None,
    )
    return ReplicaDatabase(cast("PostgresDatabase", primary), PostgresLink(location), signals, on_lag)


def require_database(settings: Settings) -> None:
    """Raise `NotFound` when there is no database, so that a command does not create one by mistake."""
    location = database_location(settings)
    exists = revision(location) is not None if isinstance(location, PostgresLocation) else location.exists()
    if not exists:
        where = settings.database.display_name
        raise NotFound(f"there is no database at {where}", hint="`crcr serve` or `crcr migrate` creates it")
