"""Fixtures `open_database`, `database` and `stores`: contract tests run on every kind of database.

`open_database` opens several handles on the same data; a second handle stands for a second process.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistReading
from crcr.decide.model import RepoName
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.admin.operations import AdminOperations
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.deliveries.inbox import Inbox
from crcr.record.outbox.claims import Outbox
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.store.database import Database, PostgresLocation, Tx
from crcr.record.store.postgres.connection import PostgresLink
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.signals import Signals
from crcr.record.store.sqlite.database import SqliteDatabase
from crcr.record.store.statement import Statement
from support.running_relay import place_empty_database
from support.services.postgres import PATIENT_TIMEOUTS, new_database

CORE, OTHER = RepoName("pytorch-like/core"), RepoName("other-up/stream")
UPSTREAMS = (CORE, OTHER)
LEASE = timedelta(seconds=120)

OpenDatabase = Callable[[], Database]


def _sqlite(folder: Path, *, in_threads: bool = False) -> OpenDatabase:
    path = folder / "contract.db"
    place_empty_database(path)
    return lambda: SqliteDatabase(path, Signals(), durable=False, in_threads=in_threads)


def _postgresql(_: Path) -> OpenDatabase:
    place = PostgresLocation(new_database(), timeouts=PATIENT_TIMEOUTS)
    return lambda: PostgresDatabase(PostgresLink(place), Signals())


DATABASES: dict[str, Callable[[Path], OpenDatabase]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
}
"""How each kind is made empty; what comes back opens one more handle on it."""
SHARED_DATABASES = ("sqlite", "postgresql")
"""The kinds that another process can open."""


@dataclass(frozen=True)
class Stores:
    """The stores of one process, over one database handle."""

    database: Database
    allowlists: Allowlists
    targets: Downstreams
    inbox: Inbox
    acts: AdminOperations

    @classmethod
    def over(cls, database: Database) -> "Stores":
        targets = Downstreams(database, CheckRefresher({}))
        allowlists = Allowlists(database, targets, CheckRefresher({}), read_allowlist)
        ignored: dict[str, tuple[str, ...]] = {each.key: ("refs/heads/gh/**",) for each in UPSTREAMS}
        inbox = Inbox(database, allowlists, CheckRefresher({}), ignored)
        return cls(database, allowlists, targets, inbox, AdminOperations(database, targets, allowlists))

    def outbox(self, owner: str) -> Outbox:
        return Outbox(self.database, UPSTREAMS, CheckRefresher({}), owner=owner, lease=LEASE)

    async def prepare(self, listed: dict[RepoName, str], now: datetime) -> None:
        """Register the upstreams with their allowlists, without the effects that identify backends."""
        await self.acts.register_upstreams(UPSTREAMS, now)
        for upstream, allowlist in listed.items():
            await self.allowlists.take_reading(upstream, AllowlistReading("test", allowlist), now)
        await self.database.write(lambda tx: tx.run(_NO_EFFECTS))

    async def rows(self, sql: str) -> list[dict[str, Any]]:
        statement = Statement(text(sql))

        async def unit(tx: Tx) -> list[dict[str, Any]]:
            return [dict(row) for row in await tx.all(statement)]

        return await self.database.read(unit)


_NO_EFFECTS = Statement(text("DELETE FROM effects"))


@pytest.fixture
def sqlite_in_threads() -> bool:
    """Whether SQLite commits and reads in threads, as in a relay's process; to go there and back takes most of the time."""
    return False


@pytest.fixture(params=DATABASES)
async def open_database(
    request: pytest.FixtureRequest, tmp_path: Path, *, sqlite_in_threads: bool
) -> AsyncIterator[OpenDatabase]:
    opened: list[Database] = []
    threads = request.param == "sqlite" and sqlite_in_threads
    make = _sqlite(tmp_path, in_threads=True) if threads else DATABASES[request.param](tmp_path)

    def open_one() -> Database:
        opened.append(make())
        return opened[-1]

    yield open_one
    for each in opened:
        await each.close()


@pytest.fixture
async def database(open_database: OpenDatabase) -> Database:
    return open_database()


@pytest.fixture
async def stores(database: Database) -> Stores:
    return Stores.over(database)
