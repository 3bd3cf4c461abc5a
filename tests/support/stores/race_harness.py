"""`processes`: several handles on one PostgreSQL database, each with its own pools and stores, like several processes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TypeVar

from sqlalchemy import text

from crcr.decide.dispatch.plan import ReceivedDelivery
from crcr.decide.jobs.judge import IgnoredReport, ReportOutcome
from crcr.decide.oidc.identity import Identity
from crcr.receive.callback.parse_report import parse_report
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.jobs.forwards import Forwards
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.jobs.reports import Reports
from crcr.record.store.database import PostgresLocation, Tx
from crcr.record.store.postgres.connection import Connection, PostgresLink
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.signals import Signals
from crcr.record.store.statement import Statement
from support.data.events_and_reports import a_caller, a_pull
from support.services.postgres import new_database
from support.stores.databases import CORE, UPSTREAMS, Stores

T = TypeVar("T")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
_ONE = Statement(text("SELECT 1 AS one"))
_HOLD = Statement(text("SELECT pg_advisory_xact_lock(CAST(:number AS bigint)) AS held"))
_HELD = count(9_000)


@dataclass(frozen=True)
class Process:
    database: PostgresDatabase
    stores: Stores
    reports: Reports

    @classmethod
    def connect(cls, url: str, *, connections: int = 10) -> "Process":
        database = PostgresDatabase(PostgresLink(PostgresLocation(url, connections)), Signals())
        stores = Stores.over(database)
        reports = Reports(
            database,
            allowlists=stores.allowlists,
            targets=stores.targets,
            outcomes=JobOutcomes(Forwards(enabled=False)),
            refresher=CheckRefresher({}),
            upstreams=UPSTREAMS,
            job_timeout=timedelta(hours=6),
        )
        return cls(database, stores, reports)

    async def report(
        self, guid: str, status: str = "in_progress", *, who: Identity | None = None, **workflow: str
    ) -> ReportOutcome | IgnoredReport:
        caller = who or a_caller()
        fields = {"status": status, "name": "CI", "run_id": caller.run_id, "job_name": "build", **workflow}
        body = json.dumps({"delivery_id": guid, "workflow": fields}).encode()
        standing = (await self.reports.read_standings(caller.repository, guid))[0]
        return await self.reports.take(parse_report(body), caller, standing, body, NOW)

    async def open_pull(self, number: int) -> str:
        """Record the webhook of a new pull request; return its delivery."""
        event = a_pull(upstream=CORE, number=number, updated_at=NOW, head_sha=f"{number:040x}")
        await self.stores.inbox.take(
            ReceivedDelivery(f"d{number}", "pull_request", "test", b"", 0, NOW), event
        )
        return f"d{number}"

    async def open_and_send(self, number: int) -> str:
        """Record a new pull request, and finish all effects that it queued."""
        guid, outbox = await self.open_pull(number), self.stores.outbox("sender")
        while claimed := await outbox.claim(50, NOW):
            for effect in claimed:
                await outbox.finish(effect, began_at=NOW, now=NOW)
        return guid


@asynccontextmanager
async def processes(number: int, listed: str) -> AsyncIterator[list[Process]]:
    url = new_database()
    running = [Process.connect(url) for _ in range(number)]
    try:
        await running[0].stores.prepare({CORE: listed}, NOW)
        yield running
    finally:
        await asyncio.gather(*(process.database.close() for process in running))


@dataclass
class PausedWrite:
    """A write that is paused before its commit."""

    holder: Connection
    writing: "asyncio.Task[object]"

    async def end(self) -> None:
        await self.holder.close()
        await self.writing


async def pause_before_commit(
    database: PostgresDatabase, unit: Callable[[Tx], Awaitable[T]], *, lane: str | None = None
) -> PausedWrite:
    reached, number = asyncio.Event(), next(_HELD)
    holder = await database._link.connect()
    await holder.execute("SELECT pg_advisory_lock($1)", number)

    async def pause(tx: Tx) -> T:
        done = await unit(tx)
        reached.set()
        await tx.one(_HOLD, number=number)
        return done

    writing: asyncio.Task[object] = asyncio.create_task(database.write(pause, lane=lane))
    await asyncio.wait([writing, asyncio.create_task(reached.wait())], return_when=asyncio.FIRST_COMPLETED)
    if writing.done():
        await writing
    return PausedWrite(holder, writing)


async def empty_unit(tx: Tx) -> None:
    await tx.one(_ONE)
