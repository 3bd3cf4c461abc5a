"""Feeding ClickHouse: queued rows, repeated and interrupted feeds, restored backups and backfills."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.jobs.report import ReportStatus
from crcr.decide.model import Conclusion
from crcr.errors import NotPossible, OutsideUnreachable
from crcr.record.clickhouse.backfill import Backfill, RowCounts
from crcr.record.clickhouse.connection import ClickHouseLink, ClickHouseLocation
from crcr.record.clickhouse.feeder import ClickHouseFeeder, FeedQueue
from crcr.record.clickhouse.history import ClickHouseHistory
from crcr.record.clickhouse.tables import DISPATCHES, JOBS, TABLES, ensure_schema, kept_days, schema_version
from crcr.record.schema.all_tables import metadata
from crcr.record.schema.statistics import FeedMark
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.views.relay.metrics import history_lag
from support.data.clickhouse_feed import ClickHouseFeed, answers_by_clickhouse, answers_by_sql
from support.data.random_walk import RandomWalk
from support.services.clickhouse import new_database
from support.stores.databases import CORE, DATABASES, OpenDatabase, Stores

SUCCESS = {"status": ReportStatus.COMPLETED, "conclusion": Conclusion.SUCCESS}
HISTORY = ("jobs", "dispatches", "ingested", "hours", "days", "job_days")


@pytest.fixture
async def fed(stores: Stores) -> AsyncIterator[ClickHouseFeed]:
    feed = await ClickHouseFeed.begin(stores, new_database(), 0)
    yield feed
    await feed.link.close()


async def count_rows(fed: ClickHouseFeed, table: str, where: str = "1") -> int:
    rows = await fed.link.query(f"SELECT count() AS number FROM {table} FINAL WHERE {where}")  # noqa: S608 - ours
    number: int = rows[0]["number"]
    return number


async def run(stores: Stores, sql: str) -> None:
    statement = Statement(text(sql))
    await stores.database.write(lambda tx: tx.run(statement))


async def send_push(walk: RandomWalk) -> dict[str, dict[str, Any]]:
    """Send a push to all backends; return its dispatches by backend."""
    await walk.push()
    for effect in await walk.workers[0].claim(9, walk.now):
        await walk.workers[0].finish(effect, began_at=walk.now, now=walk.now)
    return {row["downstream"]: row for row in await walk.rows("SELECT * FROM dispatches")}


async def _lag(now: datetime, tx: Tx) -> tuple[int, float | None]:
    return await history_lag(tx, CORE.key, now)


async def test_without_clickhouse_no_feed_rows_or_effects_are_queued(stores: Stores) -> None:
    walk = RandomWalk(stores, Random(0))
    await walk.begin()
    for _ in range(40):
        await walk.step()
    assert await walk.rows("SELECT * FROM unfed") == []
    assert await walk.rows("SELECT * FROM effects WHERE kind = 'feed_history'") == []
    assert await stores.database.read(lambda tx: history_lag(tx, CORE.key, walk.now)) == (0, None)


async def test_one_feed_effect_collects_many_changes(fed: ClickHouseFeed) -> None:
    dispatches = await send_push(fed.walk)
    await fed.walk.report(dispatches["org/one"], "1001", 1, "build")
    await fed.walk.report(dispatches["org/one"], "1001", 1, "build", **SUCCESS)
    unfed_rows = await fed.unfed()
    assert sorted(row["kind"] for row in unfed_rows) == ["dispatch"] * len(dispatches) + ["job"]
    [effect] = await fed.walk.rows("SELECT * FROM effects WHERE kind = 'feed_history'")
    assert (effect["target"], effect["state"]) == ("history", "waiting")
    assert effect["due_at"] == effect["created_at"] + 2_000_000
    assert 0 <= unfed_rows[0]["due_at"] - effect["due_at"] < 1_000_000


async def test_the_lag_is_measured_from_the_due_time(fed: ClickHouseFeed) -> None:
    await send_push(fed.walk)
    read, now = fed.walk.stores.database.read, fed.walk.now
    number = len(await fed.unfed())
    for after_s, lag_s in ((0, 0.0), (2, 0.0), (92, 90.0)):
        later = now + timedelta(seconds=after_s)
        assert await read(partial(_lag, later)) == (number, lag_s)
    await fed.feed()
    assert await read(lambda tx: history_lag(tx, CORE.key, now + timedelta(days=1))) == (0, 0.0)


async def test_rows_fed_twice_count_once_and_rows_changed_meanwhile_are_fed_again(
    fed: ClickHouseFeed,
) -> None:
    dispatches = await send_push(fed.walk)
    one = dispatches["org/one"]
    await fed.walk.report(one, "1001", 1, "build")
    await fed.walk.report(one, "1001", 1, "build", **SUCCESS)
    batch = await fed.feeding.batch(CORE.key, 100)
    await fed.walk.report(one, "1001", 2, "build")  # the first attempt no longer counts
    for _ in range(2):  # inserted, then killed before the rows were removed from the queue
        for table, rows in batch.rows:
            await fed.link.insert(table.name, table.columns, rows)
    await fed.feeding.remove(CORE.key, batch)
    assert [row["kind"] for row in await fed.unfed()] == ["job"]
    assert await count_rows(fed, "crcr_jobs", "ended_as = 'success'") == 1
    await fed.feed()
    for table, rows in batch.rows:  # and a slow feeder that had read its batch before
        await fed.link.insert(table.name, table.columns, rows)
    assert await count_rows(fed, "crcr_jobs") == 1
    assert await count_rows(fed, "crcr_jobs", "ended_as = 'earlier'") == 1
    assert await count_rows(fed, "crcr_dispatches", "sent = 1") == len(dispatches)


async def test_a_resent_dispatch_counts_at_its_last_send_time(fed: ClickHouseFeed) -> None:
    walk, stores = fed.walk, fed.walk.stores
    dispatches = await send_push(walk)
    await fed.feed()
    walk.now += timedelta(days=40)
    await stores.acts.replay(CORE, dispatches["org/one"]["delivery"], who="ann", now=walk.now, everyone=True)
    for effect in await walk.workers[0].claim(20, walk.now):
        await walk.workers[0].finish(effect, began_at=walk.now, now=walk.now)
    await fed.feed()
    assert await count_rows(fed, "crcr_dispatches", "sent = 1") == len(dispatches)
    assert await count_rows(fed, "crcr_dispatches") == 2 * len(dispatches)
    assert await answers_by_clickhouse(fed.history, walk.now) == await answers_by_sql(stores, walk.now)


async def test_after_a_restored_backup_newer_changes_still_win(fed: ClickHouseFeed) -> None:
    """Version numbers continue from the backup's; those in ClickHouse are higher."""
    one = (await send_push(fed.walk))["org/one"]
    await fed.walk.report(one, "1001", 1, "build")
    await fed.walk.report(one, "1001", 1, "build", **SUCCESS)
    await fed.feed()
    await fed.link.command("INSERT INTO crcr_jobs SELECT * REPLACE (1000000 AS version) FROM crcr_jobs FINAL")
    feeder = ClickHouseFeeder(fed.feeding, fed.link, None)
    await feeder.make_ready()
    await fed.walk.report(one, "1001", 2, "build")
    await feeder.feed(CORE.key, 100)
    assert await count_rows(fed, "crcr_jobs", "ended_as = 'earlier' AND version > 1000000") == 1


async def test_concurrent_starts_create_the_tables_once_with_the_configured_retention() -> None:
    url = new_database()
    links = [ClickHouseLink(ClickHouseLocation(url)) for _ in range(3)]
    await asyncio.gather(*(ensure_schema(link, 200) for link in links))
    link = links[0]
    assert await schema_version(link) == 1
    for days in (200, 400, None, 150):
        await ensure_schema(link, days)
        assert {await kept_days(link, table) for table in TABLES} == {days}
    await link.command("INSERT INTO crcr_schema (version) VALUES (99)")
    with pytest.raises(NotPossible, match="schema 99"):
        await ensure_schema(link, None)
    for link_to_close in links:
        await link_to_close.close()


async def test_results_older_than_the_retention_are_deleted() -> None:
    link = ClickHouseLink(ClickHouseLocation(new_database()))
    await ensure_schema(link, 100)
    names = (
        "upstream",
        "downstream",
        "kind",
        "sent_at",
        "delivery",
        "event",
        "created_at",
        "sent",
        "version",
    )
    columns = {name: DISPATCHES.columns[name] for name in names}
    old, new = 1_600_000_000_000_000, 4_000_000_000_000_000
    rows = [["a/b", "c/d", "push", at, f"d{at}", "push", at, 1, 1] for at in (old, new)]
    await link.insert(DISPATCHES.name, columns, rows)
    await link.command("OPTIMIZE TABLE crcr_dispatches FINAL")
    kept = await link.query("SELECT delivery FROM crcr_dispatches FINAL")
    assert kept == [{"delivery": f"d{new}"}]
    await link.close()


class FailingLink(ClickHouseLink):
    """A ClickHouse connection that fails at the second table."""

    async def insert(self, table: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
        if table == DISPATCHES.name:
            raise OutsideUnreachable("gone")
        await super().insert(table, columns, rows)


async def run_backfill(stores: Stores, link: ClickHouseLink, *, anew: bool = False) -> tuple[RowCounts, ...]:
    feeding = FeedQueue(stores.database)
    work = Backfill(stores.database, feeding, ClickHouseFeeder(feeding, link, None), link)
    progress: list[tuple[str, int, int]] = []
    counts = await work.run(lambda *step: progress.append(step), RandomWalk(stores, Random(0)).now, anew=anew)
    assert all(done <= total for _, done, total in progress)
    return counts


async def test_equal_data_gives_equal_history_on_every_store_and_after_a_backfill(
    stores: Stores, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fed = await ClickHouseFeed.begin(stores, new_database(), 11)
    await fed.steps(120)
    now = fed.walk.now
    expected = await answers_by_sql(stores, now)
    for name, open_kind in DATABASES.items():
        database = open_kind(tmp_path_factory.mktemp(name))()
        other = Stores.over(database)
        await copy_history(stores, other)
        assert await answers_by_sql(other, now) == expected
        link = ClickHouseLink(ClickHouseLocation(new_database()))
        counts = await run_backfill(other, link)
        assert [table_count.here for table_count in counts] == [table_count.there for table_count in counts]
        assert await answers_by_clickhouse(ClickHouseHistory(link), now) == expected
        await link.close()
        await database.close()
    await fed.link.close()


async def copy_history(source: Stores, target: Stores) -> None:
    for name in HISTORY:
        table = metadata.tables[name]
        rows = await source.rows(f"SELECT * FROM {name}")  # noqa: S608 - our own
        statement = Statement(inserting(table, *(column.name for column in table.columns)))
        await target.database.write(partial(_many, statement, rows))


async def _many(statement: Statement, rows: list[dict[str, Any]], tx: Tx) -> None:
    await tx.many(statement, rows)


async def test_an_interrupted_backfill_resumes_and_removes_rows_that_moved_meanwhile(
    fed: ClickHouseFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crcr.record.clickhouse.backfill.COUNT_STEP", 2)
    stores, walk = fed.walk.stores, fed.walk
    await send_push(walk)
    await fed.feed()
    await fed.feeding.turn_off()
    walk.now += timedelta(days=3)
    await fed.steps(60)
    await run(
        stores, "UPDATE dispatches SET sent_at = sent_at + 7000000 WHERE sent_at IS NOT NULL"
    )  # while feeding was off
    await fed.feeding.turn_on([], walk.now)
    total = (
        await stores.rows("SELECT count(*) AS n FROM dispatches WHERE sent_at IS NOT NULL AND test = 0")
    )[0]["n"]

    failing_link = FailingLink(fed.place)
    with pytest.raises(OutsideUnreachable):
        await run_backfill(stores, failing_link)
    await failing_link.close()
    assert await fed.feeding.mark(FeedMark.WHOLE) is None
    assert JOBS.name in (await fed.feeding.mark(FeedMark.BACKFILL) or "")
    counts = await run_backfill(stores, fed.link)
    assert await fed.feeding.mark(FeedMark.WHOLE) is not None
    assert {table_count.table: table_count.here for table_count in counts}["crcr_dispatches"] == total
    assert [table_count.there for table_count in counts] == [table_count.here for table_count in counts]
    assert await count_rows(fed, "crcr_dispatches", "sent = 1") == total


async def test_a_new_store_has_complete_history_at_once_and_an_old_one_only_after_a_backfill(
    open_database: OpenDatabase,
) -> None:
    stores = Stores.over(open_database())
    walk, feeding = RandomWalk(stores, Random(0)), FeedQueue(stores.database)
    await walk.begin()
    await feeding.turn_on([], walk.now)
    assert await feeding.mark(FeedMark.WHOLE) is not None
    await send_push(walk)
    assert await feeding.turn_off()  # True: feeding was on until now, which the caller should report
    assert not await feeding.turn_off()
    assert await walk.rows("SELECT * FROM unfed") == []
    await feeding.turn_on([CORE.key], walk.now)
    assert await feeding.mark(FeedMark.WHOLE) is None
    assert (
        len(await walk.rows("SELECT * FROM effects WHERE kind = 'feed_history' AND state = 'waiting'")) == 1
    )
