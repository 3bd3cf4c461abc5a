"""The relay's store, looked at without changing it: where it is kept, and what waits in it."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from crcr.cli.doctor.relay import sqlite
from crcr.decide.views.overview import Vitals
from crcr.errors import StoreUnavailable
from crcr.join.findings.finding import SetupFinding, ok, problem, warning
from crcr.record.store.database import Tx
from crcr.record.store.location import PostgresPlace
from crcr.record.store.signals import Signals
from crcr.record.views.relay.state import vitals_of
from crcr.settings import Settings
from crcr.wiring.database import database_location, open_database

_LAG = timedelta(minutes=2)
_LONG_LAG = timedelta(minutes=15)


async def store_findings(settings: Settings, now: datetime) -> tuple[SetupFinding, ...]:
    place = database_location(settings)
    if isinstance(place, PostgresPlace):
        from crcr.cli.doctor.relay import postgres  # its driver takes a while to load

        found = await postgres.postgres_findings(place, settings.database.place)
    else:
        found = sqlite.sqlite_findings(place)
    return (*found, *await _outbox_findings(settings, now)) if has_current_schema(settings) else found


def has_current_schema(settings: Settings) -> bool:
    """Whether the store can be asked with this release's statements."""
    place = database_location(settings)
    if isinstance(place, PostgresPlace):
        from crcr.cli.doctor.relay import postgres

        return postgres.is_current(place)
    return sqlite.is_current(place)


async def _outbox_findings(settings: Settings, now: datetime) -> tuple[SetupFinding, ...]:
    async def unit(tx: Tx) -> list[Vitals]:
        return [await vitals_of(tx, each.name, now) for each in settings.upstreams]

    try:
        database = open_database(settings, Signals())
        try:
            vitals = await database.read(unit)
        finally:
            await database.close()
    except StoreUnavailable as fault:
        return (problem("outbox", fault.detail, fault.hint or "look at the database"),)
    return tuple(finding for each in vitals for finding in _outbox(each))


def _outbox(vitals: Vitals) -> Iterator[SetupFinding]:
    lag = timedelta(seconds=vitals.lag_s or 0)
    overdue = f", the oldest due one for {lag.total_seconds():.0f} s" if lag else ""
    what = f"{vitals.upstream}: {vitals.waiting} effects wait{overdue}"
    if lag > _LAG:
        make = problem if lag > _LONG_LAG else warning
        yield make(
            "outbox", f"{what}.", "is a worker running (`crcr serve` or `crcr worker`), and not paused?"
        )
    else:
        yield ok("outbox", f"{what}.")
    if vitals.parked:
        hint = "`crcr effects list --parked` says why each failed; `crcr effects retry` tries again"
        yield warning("parked", f"{vitals.upstream}: {vitals.parked} effects were given up.", hint)
