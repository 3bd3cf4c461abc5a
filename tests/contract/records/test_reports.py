"""The contract of `Reports`, on every store: judged and recorded in one commit, also with concurrent writers."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistReading
from crcr.decide.jobs.judge import IgnoredReport, OpenJob, RejectedReport, RepeatedReport, ReportOutcome
from crcr.decide.model import RepoName
from crcr.decide.oidc.identity import Identity
from crcr.errors import NoAllowlist, StoreUnavailable
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.receive.callback.parse_report import parse_report
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.jobs.forwards import Forwards
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.jobs.reports import Reports
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.schema.main_tables import deliveries, dispatches
from crcr.record.store.database import Database, PostgresLocation
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us
from support.data.events_and_reports import a_caller, count_outcomes
from support.stores.databases import SHARED_DATABASES, OpenDatabase
from support.stores.race_harness import empty_unit, pause_before_commit
from support.stores.tables import database_location

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UPSTREAM, SECOND, BACKEND = RepoName("up/stream"), RepoName("other/stream"), RepoName("org/backend")
LISTED = AllowlistReading(source="test", text=f"L2:\n  - {BACKEND}\n")
WHO = a_caller()
_DELIVERED = Statement(
    inserting(deliveries, "guid", "upstream", "event", "state", "source", "received_at", "body_bytes")
)
_DISPATCHED = Statement(
    inserting(
        dispatches,
        *("upstream", "delivery", "downstream", "level", "state", "event", "lane"),
        *("created_at", "attempted_at"),
    )
)
_JOBS = Statement(text("SELECT delivery, run_id, job_name, state, conclusion FROM jobs ORDER BY delivery"))


class Killed(Exception):
    """Simulates a killed process: the unit never ends."""


class FailingForwards(Forwards):
    """The last step of the transaction is killed."""

    async def add(self, *_: object) -> NoReturn:
        raise Killed


class Relay:
    """One process's access to a store that other processes write to as well."""

    def __init__(self, database: Database, forwards: Forwards) -> None:
        self.database = database
        self.targets = Downstreams(database, CheckRefresher({}))
        self.allowlists = Allowlists(database, self.targets, CheckRefresher({}), read_allowlist)
        self.reports = Reports(
            database,
            allowlists=self.allowlists,
            targets=self.targets,
            outcomes=JobOutcomes(forwards),
            refresher=CheckRefresher({}),
            upstreams=(UPSTREAM, SECOND),
            job_timeout=timedelta(hours=6),
        )

    async def dispatch(self, upstream: RepoName, guid: str) -> None:
        at = to_us(NOW)

        async def unit(tx: Any) -> None:
            shared = {"upstream": upstream.key, "event": "push"}
            await tx.run(
                _DELIVERED, **shared, guid=guid, state="accepted", source="x", received_at=at, body_bytes=0
            )
            await tx.run(
                _DISPATCHED,
                **shared,
                delivery=guid,
                downstream=BACKEND.key,
                level=2,
                state="sent",
                lane="x",
                created_at=at,
                attempted_at=at,
            )

        await self.database.write(unit)

    async def report(
        self, status: str = "in_progress", *, guid: str = "guid", who: Identity = WHO, **workflow: str
    ) -> ReportOutcome | IgnoredReport:
        fields = {"status": status, "name": "CI", "run_id": who.run_id, "job_name": "build", **workflow}
        body = json.dumps({"delivery_id": guid, "workflow": fields}).encode()
        standing = (await self.reports.read_standings(who.repository, guid))[0]
        return await self.reports.take(parse_report(body), who, standing, body, NOW)

    async def jobs(self) -> list[dict[str, Any]]:
        rows = await self.database.quick_read(lambda tx: tx.all(_JOBS))
        return [{name: row[name] for name in row.keys()} for row in rows]  # noqa: SIM118  a driver's row


class Store:
    """A store that several processes can open."""

    def __init__(self, open_database: OpenDatabase) -> None:
        self._open = open_database

    def open(self, *, forwards: Forwards | None = None) -> Relay:
        return Relay(self._open(), forwards or Forwards(enabled=False))


@pytest.fixture
async def store(open_database: OpenDatabase) -> Store:
    opened = Store(open_database)
    relay = opened.open()
    for upstream in (UPSTREAM, SECOND):
        await relay.allowlists.take_reading(upstream, LISTED, NOW)
    await relay.dispatch(UPSTREAM, "guid")
    return opened


async def test_an_applied_report_is_committed_and_visible_to_another_process(store: Store) -> None:
    one, other = store.open(), store.open()
    assert isinstance(await one.report(), OpenJob)
    assert [job["state"] for job in await other.jobs()] == ["in_progress"]
    assert isinstance(await other.report(), RepeatedReport)


async def test_of_equal_concurrent_reports_in_two_processes_one_is_applied(store: Store) -> None:
    one, other = store.open(), store.open()
    outcomes = await asyncio.gather(*(relay.report() for relay in (one, other) * 50))
    assert count_outcomes(outcomes) == {"OpenJob": 1, "RepeatedReport": 99}


async def test_of_conflicting_concurrent_results_one_is_applied_and_the_failure_stays(store: Store) -> None:
    one, other = store.open(), store.open()
    await one.report()
    outcomes = await asyncio.gather(
        *(one.report("completed", conclusion="success") for _ in range(25)),
        *(other.report("completed", conclusion="failure") for _ in range(25)),
    )
    assert count_outcomes(outcomes) == {"CloseJob": 1, "RepeatedReport": 24, "conflicting_result": 25}
    assert [job["conclusion"] for job in await one.jobs()] == ["failure"]


async def test_a_crash_before_the_commit_leaves_nothing_and_the_retry_is_applied(store: Store) -> None:
    dying, healthy = store.open(forwards=FailingForwards(enabled=True)), store.open()
    with pytest.raises(Killed):
        await dying.report()
    assert await healthy.jobs() == []
    assert isinstance(await healthy.report(), OpenJob)


async def test_the_failure_of_one_report_does_not_fail_a_concurrent_one(store: Store) -> None:
    relay = store.open()
    unlisted = replace(WHO, repository=RepoName("org/unlisted"))
    outcomes = await asyncio.gather(relay.report(), relay.report(who=unlisted), return_exceptions=True)
    assert isinstance(outcomes[0], OpenJob)
    assert isinstance(outcomes[1], ValueError)


async def test_a_cancelled_report_is_written_once_or_not_at_all(store: Store) -> None:
    relay = store.open()
    cancelled = asyncio.create_task(relay.report())
    for _ in range(3):
        await asyncio.sleep(0)
    cancelled.cancel()
    again = await relay.report()
    assert isinstance(again, OpenJob | RepeatedReport)
    assert len(await relay.jobs()) == 1


async def test_a_closed_store_raises_store_unavailable(store: Store) -> None:
    relay = store.open()
    await relay.database.close()
    with pytest.raises(StoreUnavailable):
        await relay.report()


@pytest.mark.parametrize("open_database", SHARED_DATABASES, indirect=True)
async def test_a_write_waits_for_the_write_of_another_process(store: Store) -> None:
    relay, other = store.open(), store.open()

    async with hold_write(other.database):
        waiting = asyncio.create_task(relay.report())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
    assert isinstance(await waiting, OpenJob)


@asynccontextmanager
async def hold_write(database: Database) -> AsyncIterator[None]:
    """Keep a write of another process open."""
    location = database_location(database)
    if isinstance(location, PostgresLocation):
        assert isinstance(database, PostgresDatabase)
        held = await pause_before_commit(database, empty_unit)
        yield
        await held.end()
        return
    assert isinstance(location, Path)
    with closing(sqlite3.connect(location, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")


async def test_a_run_can_report_for_one_delivery_of_one_upstream_only(store: Store) -> None:
    relay = store.open()
    await relay.dispatch(UPSTREAM, "next")
    await relay.dispatch(SECOND, "other")
    assert isinstance(await relay.report(), OpenJob)
    for guid in ("next", "other"):
        refusal = await relay.report(guid=guid, job_name="test")
        assert isinstance(refusal, RejectedReport)
        assert refusal.code == "run_bound_elsewhere"
    next_run = replace(WHO, run_id="11")
    assert isinstance(await relay.report(guid="other", who=next_run), OpenJob)


async def test_standings_are_read_for_the_upstream_of_the_delivery_or_for_all_when_unknown(
    store: Store,
) -> None:
    relay = store.open()
    known = await relay.reports.read_standings(BACKEND, "guid")
    unknown = await relay.reports.read_standings(BACKEND, "never seen")
    assert [standing.upstream for standing in known] == [UPSTREAM]
    assert [standing.upstream for standing in unknown] == [UPSTREAM, SECOND]
    assert all(standing.entry is not None for standing in (*known, *unknown))


async def test_only_the_first_report_binds_the_repository_id(store: Store) -> None:
    relay = store.open()
    await relay.report()
    other_repository = replace(WHO, repository_id=999, run_id="11")
    await relay.report(who=other_repository)
    [standing] = await relay.reports.read_standings(BACKEND, "guid")
    assert standing.binding is not None
    assert (standing.binding.repository_id, standing.binding.confirmed) == (5, False)


async def test_an_alarm_is_raised_once_for_each_reason(store: Store) -> None:
    relay = store.open()
    [standing] = await relay.reports.read_standings(BACKEND, "guid")
    raised = [await relay.reports.raise_alarm(standing, WHO, reason, NOW) for reason in ("a", "a", "b", "b")]
    assert raised == [True, False, True, False]


async def test_reading_standings_without_an_allowlist_raises(open_database: OpenDatabase) -> None:
    with pytest.raises(NoAllowlist):
        await Store(open_database).open().reports.read_standings(BACKEND, "guid")
