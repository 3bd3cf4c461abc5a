"""Feeding ClickHouse: what is noted, fed once or twice, broken off, put back from a backup, or filled up afterwards."""

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
    found = await ClickHouseFeed.begin(stores, new_database(), 0)
    yield found
    await found.link.close()


async def count_rows(fed: ClickHouseFeed, table: str, where: str = "1") -> int:
    rows = await fed.link.query(f"SELECT count() AS number FROM {table} FINAL WHERE {where}")  # noqa: S608 - ours
    number: int = rows[0]["number"]
    return number


async def run(stores: Stores, sql: str) -> None:
    statement = Statement(text(sql))
    await stores.database.write(lambda tx: tx.run(statement))


async def pushed(walk: RandomWalk) -> dict[str, dict[str, Any]]:
    """A push that was sent to everybody; its dispatches by backend."""
    await walk.push()
    for effect in await walk.workers[0].claim(9, walk.now):
        await walk.workers[0].finish(effect, began_at=walk.now, now=walk.now)
    return {row["downstream"]: row for row in await walk.rows("SELECT * FROM dispatches")}


async def _lag(now: datetime, tx: Tx) -> tuple[int, float | None]:
    return await history_lag(tx, CORE.key, now)


async def test_where_nothing_is_fed_nothing_is_noted(stores: Stores) -> None:
    walk = RandomWalk(stores, Random(0))
    await walk.begin()
    for _ in range(40):
        await walk.step()
    assert await walk.rows("SELECT * FROM unfed") == []
    assert await walk.rows("SELECT * FROM effects WHERE kind = 'feed_history'") == []
    assert await stores.database.read(lambda tx: history_lag(tx, CORE.key, walk.now)) == (0, None)


async def test_one_effect_waits_for_many_facts_and_gathers_them(fed: ClickHouseFeed) -> None:
    dispatches = await pushed(fed.walk)
    await fed.walk.report(dispatches["org/one"], "1001", 1, "build")
    await fed.walk.report(dispatches["org/one"], "1001", 1, "build", **SUCCESS)
    noted = await fed.unfed()
    assert sorted(row["kind"] for row in noted) == ["dispatch"] * len(dispatches) + ["job"]
    [effect] = await fed.walk.rows("SELECT * FROM effects WHERE kind = 'feed_history'")
    assert (effect["target"], effect["state"]) == ("history", "waiting")
    assert effect["due_at"] == effect["created_at"] + 2_000_000
    assert 0 <= noted[0]["due_at"] - effect["due_at"] < 1_000_000


async def test_the_lag_is_measured_on_due_time(fed: ClickHouseFeed) -> None:
    await pushed(fed.walk)
    read, now = fed.walk.stores.database.read, fed.walk.now
    number = len(await fed.unfed())
    for after_s, lag_s in ((0, 0.0), (2, 0.0), (92, 90.0)):
        later = now + timedelta(seconds=after_s)
        assert await read(partial(_lag, later)) == (number, lag_s)
    await fed.feed()
    assert await read(lambda tx: history_lag(tx, CORE.key, now + timedelta(days=1))) == (0, 0.0)


async def test_fed_twice_it_counts_once_and_what_moves_meanwhile_is_fed_again(fed: ClickHouseFeed) -> None:
    dispatches = await pushed(fed.walk)
    one = dispatches["org/one"]
    await fed.walk.report(one, "1001", 1, "build")
    await fed.walk.report(one, "1001", 1, "build", **SUCCESS)
    batch = await fed.feeding.batch(CORE.key, 100)
    await fed.walk.report(one, "1001", 2, "build")  # the first attempt counts no more
    for _ in range(2):  # inserted, and killed before it was crossed off
        for table, rows in batch.rows:
            await fed.link.insert(table.name, table.columns, rows)
    await fed.feeding.remove(CORE.key, batch)
    assert [row["kind"] for row in await fed.unfed()] == ["job"]
    assert await count_rows(fed, "crcr_jobs", "ended_as = 'success'") == 1
    await fed.feed()
    for table, rows in batch.rows:  # and somebody slow, who had read before
        await fed.link.insert(table.name, table.columns, rows)
    assert await count_rows(fed, "crcr_jobs") == 1
    assert await count_rows(fed, "crcr_jobs", "ended_as = 'earlier'") == 1
    assert await count_rows(fed, "crcr_dispatches", "sent = 1") == len(dispatches)


async def test_what_is_sent_again_counts_where_it_was_sent_last(fed: ClickHouseFeed) -> None:
    walk, stores = fed.walk, fed.walk.stores
    dispatches = await pushed(walk)
    await fed.feed()
    walk.now += timedelta(days=40)
    await stores.acts.replay(CORE, dispatches["org/one"]["delivery"], who="ann", now=walk.now, everyone=True)
    for effect in await walk.workers[0].claim(20, walk.now):
        await walk.workers[0].finish(effect, began_at=walk.now, now=walk.now)
    await fed.feed()
    assert await count_rows(fed, "crcr_dispatches", "sent = 1") == len(dispatches)
    assert await count_rows(fed, "crcr_dispatches") == 2 * len(dispatches)
    assert await answers_by_clickhouse(fed.history, walk.now) == await answers_by_sql(stores, walk.now)


async def test_after_a_backup_was_put_back_newer_facts_still_win(fed: ClickHouseFeed) -> None:
    """The numbers go on from the backup's; what ClickHouse has is ahead of them."""
    one = (await pushed(fed.walk))["org/one"]
    await fed.walk.report(one, "1001", 1, "build")
    await fed.walk.report(one, "1001", 1, "build", **SUCCESS)
    await fed.feed()
    await fed.link.command("INSERT INTO crcr_jobs SELECT * REPLACE (1000000 AS version) FROM crcr_jobs FINAL")
    again = ClickHouseFeeder(fed.feeding, fed.link, None)
    await again.make_ready()
    await fed.walk.report(one, "1001", 2, "build")
    await again.feed(CORE.key, 100)
    assert await count_rows(fed, "crcr_jobs", "ended_as = 'earlier' AND version > 1000000") == 1


async def test_tables_are_made_once_by_whoever_starts_first_and_keep_as_long_as_is_set() -> None:
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
    for each in links:
        await each.close()


async def test_results_go_when_they_are_older_than_is_kept() -> None:
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


class BreaksOff(ClickHouseLink):
    """ClickHouse that goes away when it comes to the second table."""

    async def insert(self, table: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
        if table == DISPATCHES.name:
            raise OutsideUnreachable("gone")
        await super().insert(table, columns, rows)


async def filled(stores: Stores, link: ClickHouseLink, *, anew: bool = False) -> tuple[RowCounts, ...]:
    feeding = FeedQueue(stores.database)
    work = Backfill(stores.database, feeding, ClickHouseFeeder(feeding, link, None), link)
    told: list[tuple[str, int, int]] = []
    counts = await work.run(lambda *each: told.append(each), RandomWalk(stores, Random(0)).now, anew=anew)
    assert all(done <= total for _, done, total in told)
    return counts


async def test_the_same_data_is_the_same_history_wherever_it_lies_and_filled_up_at_once(
    stores: Stores, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fed = await ClickHouseFeed.begin(stores, new_database(), 11)
    await fed.steps(120)
    now = fed.walk.now
    wanted = await answers_by_sql(stores, now)
    for name, make in DATABASES.items():
        database = make(tmp_path_factory.mktemp(name))()
        other = Stores.over(database)
        await copied(stores, other)
        assert await answers_by_sql(other, now) == wanted
        link = ClickHouseLink(ClickHouseLocation(new_database()))
        counts = await filled(other, link)
        assert [each.here for each in counts] == [each.there for each in counts]
        assert await answers_by_clickhouse(ClickHouseHistory(link), now) == wanted
        await link.close()
        await database.close()
    await fed.link.close()


async def copied(source: Stores, target: Stores) -> None:
    for name in HISTORY:
        table = metadata.tables[name]
        rows = await source.rows(f"SELECT * FROM {name}")  # noqa: S608 - our own
        statement = Statement(inserting(table, *(column.name for column in table.columns)))
        await target.database.write(partial(_many, statement, rows))


async def _many(statement: Statement, rows: list[dict[str, Any]], tx: Tx) -> None:
    await tx.many(statement, rows)


async def test_a_backfill_that_was_broken_off_goes_on_and_takes_away_what_moved_meanwhile(
    fed: ClickHouseFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crcr.record.clickhouse.backfill.COUNT_STEP", 2)
    stores, walk = fed.walk.stores, fed.walk
    await pushed(walk)
    await fed.feed()
    await fed.feeding.turn_off()
    walk.now += timedelta(days=3)
    await fed.steps(60)
    await run(
        stores, "UPDATE dispatches SET sent_at = sent_at + 7000000 WHERE sent_at IS NOT NULL"
    )  # while nobody fed
    await fed.feeding.turn_on([], walk.now)
    total = (
        await stores.rows("SELECT count(*) AS n FROM dispatches WHERE sent_at IS NOT NULL AND test = 0")
    )[0]["n"]

    breaking = BreaksOff(fed.place)
    with pytest.raises(OutsideUnreachable):
        await filled(stores, breaking)
    await breaking.close()
    assert await fed.feeding.mark(FeedMark.WHOLE) is None
    assert JOBS.name in (await fed.feeding.mark(FeedMark.BACKFILL) or "")
    counts = await filled(stores, fed.link)
    assert await fed.feeding.mark(FeedMark.WHOLE) is not None
    assert {each.table: each.here for each in counts}["crcr_dispatches"] == total
    assert [each.there for each in counts] == [each.here for each in counts]
    assert await count_rows(fed, "crcr_dispatches", "sent = 1") == total


async def test_history_is_whole_at_once_for_who_begins_and_only_after_a_backfill_for_others(
    open_database: OpenDatabase,
) -> None:
    stores = Stores.over(open_database())
    walk, feeding = RandomWalk(stores, Random(0)), FeedQueue(stores.database)
    await walk.begin()
    await feeding.turn_on([], walk.now)
    assert await feeding.mark(FeedMark.WHOLE) is not None
    await pushed(walk)
    assert await feeding.turn_off()  # something was fed until then, and somebody should be told
    assert not await feeding.turn_off()
    assert await walk.rows("SELECT * FROM unfed") == []
    await feeding.turn_on([CORE.key], walk.now)
    assert await feeding.mark(FeedMark.WHOLE) is None
    assert (
        len(await walk.rows("SELECT * FROM effects WHERE kind = 'feed_history' AND state = 'waiting'")) == 1
    )
