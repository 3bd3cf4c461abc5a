"""Findings about the relay's store, without changing it: schema, write access, free disk, outbox.

`postgres` has the findings that need its driver.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

from crcr.decide.views.overview import Vitals
from crcr.errors import StoreUnavailable
from crcr.join.findings.finding import SetupFinding, ok, problem, unknown, warning
from crcr.record.migrations.run import head, is_known
from crcr.record.store.database import PostgresLocation, Tx
from crcr.record.store.signals import Signals
from crcr.record.store.sqlite.file import is_open_to_others
from crcr.record.views.relay.state import read_vitals
from crcr.settings import Settings
from crcr.wiring.database import database_location, open_database

_LAG = timedelta(minutes=2)
_LONG_LAG = timedelta(minutes=15)
_LOCK_WAIT_S = 3.0
_LOW_DISK_BYTES = 1 << 30
_FULL_DISK_BYTES = 200 << 20
_MB = 1 << 20


async def store_findings(settings: Settings, now: datetime) -> tuple[SetupFinding, ...]:
    location = database_location(settings)
    if isinstance(location, PostgresLocation):
        from crcr.cli.doctor.relay import postgres  # loads the driver

        findings = await postgres.postgres_findings(location, settings.database.display_name)
    else:
        findings = sqlite_findings(location)
    return (*findings, *await _outbox_findings(settings, now)) if has_current_schema(settings) else findings


def has_current_schema(settings: Settings) -> bool:
    """Whether this release's statements work on the store."""
    location = database_location(settings)
    if isinstance(location, PostgresLocation):
        from crcr.cli.doctor.relay import postgres

        return postgres.is_current(location)
    return _is_current(location)


async def _outbox_findings(settings: Settings, now: datetime) -> tuple[SetupFinding, ...]:
    async def unit(tx: Tx) -> list[Vitals]:
        return [await read_vitals(tx, upstream.name, now) for upstream in settings.upstreams]

    try:
        database = open_database(settings, Signals())
        try:
            vitals = await database.read(unit)
        finally:
            await database.close()
    except StoreUnavailable as fault:
        return (problem("outbox", fault.detail, fault.hint or "look at the database"),)
    return tuple(finding for vital in vitals for finding in _outbox_state(vital))


def _outbox_state(vitals: Vitals) -> Iterator[SetupFinding]:
    lag = timedelta(seconds=vitals.lag_s or 0)
    overdue = f", {lag.total_seconds():,.0f} s behind" if lag else ""
    text = f"{vitals.upstream}: {vitals.waiting:,} effects waiting{overdue}"
    if lag > _LAG:
        make = problem if lag > _LONG_LAG else warning
        yield make(
            "outbox",
            f"{text}.",
            "check that a worker is running (`crcr serve` or `crcr worker`) and that dispatching is not paused",
        )
    else:
        yield ok("outbox", f"{text}.")
    if vitals.parked:
        hint = "`crcr effects list --parked` shows the errors; `crcr effects retry` retries"
        yield warning("parked", f"{vitals.upstream}: {vitals.parked:,} effects undelivered (parked).", hint)


def schema_finding(schema_revision: str | None, name: str) -> SetupFinding:
    """Compare a database's revision: the next start migrates an older one; a newer one prevents the start."""
    if schema_revision == head():
        return ok("store", f"The database {name} has this release's schema ({schema_revision}).")
    text = f"The database's schema is {schema_revision or 'none'}, this release's is {head()}"
    if schema_revision is None or is_known(schema_revision):
        hint = "`crcr migrate` or the next start of `crcr serve` upgrades it"
        return warning("store", f"{text}.", hint)
    return problem(
        "store",
        f"{text}: a newer release upgraded it, and this one cannot use it.",
        "install that release again, restore a backup from before its upgrade, or set CRCR_DATABASE_URL to another"
        " database; schemas cannot be downgraded",
    )


def sqlite_findings(path: Path) -> tuple[SetupFinding, ...]:
    if not path.exists():
        return (
            problem("store", f"There is no database at {path}.", "`crcr serve` or `crcr migrate` creates it"),
            _disk_finding(path.parent),
        )
    return (*_file_findings(path), _disk_finding(path.parent))


def _is_current(path: Path) -> bool:
    try:
        return path.exists() and _revision(path) == head()
    except sqlite3.Error:
        return False


def _file_findings(path: Path) -> Iterator[SetupFinding]:
    try:
        schema_revision = _revision(path)
    except sqlite3.Error as fault:
        yield problem(
            "store",
            f"The database {path} cannot be read: {fault}.",
            "check that it is a crcr database and that this user may read it",
        )
        return
    yield schema_finding(schema_revision, str(path))
    yield _write_finding(path)
    if is_open_to_others(path):
        yield warning(
            "file_mode",
            f"Every user of this machine can read {path}.",
            f"run chmod 600 {path} as its owner; `crcr serve` does it when it runs as the owner",
        )


def _revision(path: Path) -> str | None:
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_LOCK_WAIT_S)
    ) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master")
        try:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.OperationalError as fault:
            if "no such table" in str(fault):
                return None
            raise
    return row[0] if row else None


def _write_finding(path: Path) -> SetupFinding:
    """Take and release the write lock, without writing."""
    try:
        with closing(sqlite3.connect(path, timeout=_LOCK_WAIT_S, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as fault:
        if "locked" in str(fault):
            return unknown(
                "writing",
                f"The write lock was not free within {_LOCK_WAIT_S:.0f} s.",
                "normal for a busy relay; try again",
            )
        return problem(
            "writing",
            f"Not writable: {fault}.",
            "let the relay's user write the file and its folder",
        )
    return ok("writing", "Writable.")


def _disk_finding(folder: Path) -> SetupFinding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as fault:
        return unknown("disk", f"Free disk space of {folder} unknown: {fault.strerror}.")
    text = f"{free // _MB:,} MB free at {folder}."
    if free < _FULL_DISK_BYTES:
        return problem("disk", text, "free disk space: a full disk stops the relay")
    return warning("disk", text, "free disk space soon") if free < _LOW_DISK_BYTES else ok("disk", text)
