"""Pages read ClickHouse where it is complete, else the main store, and never fail because of it."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.jobs.report import ReportStatus
from crcr.decide.model import Conclusion, RepoName
from crcr.decide.statistics.window import HistoryState, ResultKind, Span, Window
from crcr.decide.views.backend import BackendQuery
from crcr.decide.views.overview import Summary
from crcr.decide.views.search import SearchQuery
from crcr.record.clickhouse.connection import ClickHouseLink, ClickHouseLocation
from crcr.record.clickhouse.history import RETRY_AFTER, ClickHouseHistory, HistoryReader
from crcr.record.schema.statistics import FeedMark
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.views.sql_views import SqlViews
from support.data.clickhouse_feed import ClickHouseFeed
from support.services.clickhouse import ClickHouseServer, new_database
from support.stores.databases import CORE, Stores

ONE = RepoName("org/one")
ENDED = {"status": ReportStatus.COMPLETED}


@dataclass
class Counting(ClickHouseHistory):
    """ClickHouse, with how often it was asked for figures."""

    link: ClickHouseLink
    asked: int = 0

    def __post_init__(self) -> None:
        super().__init__(self.link)

    async def figures(
        self, upstream: str, kind: ResultKind, window: Window, downstream: str | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        self.asked += 1
        return await super().figures(upstream, kind, window, downstream)


@dataclass
class Pages:
    fed: ClickHouseFeed
    source: Counting
    views: SqlViews
    plain: SqlViews

    @classmethod
    async def open(cls, stores: Stores, url: str) -> "Pages":
        fed = await ClickHouseFeed.begin(stores, url, 0)
        source = Counting(ClickHouseLink(ClickHouseLocation(url)))
        views = SqlViews(
            stores.database, stores.allowlists, (CORE,), history=HistoryReader(stores.database, source)
        )
        return cls(fed, source, views, SqlViews(stores.database, stores.allowlists, (CORE,)))

    async def close(self) -> None:
        await self.fed.link.close()
        await self.source.link.close()

    @property
    def now(self) -> datetime:
        return self.fed.walk.now

    async def push(self) -> dict[str, dict[str, Any]]:
        walk = self.fed.walk
        await walk.push()
        for effect in await walk.workers[0].claim(20, walk.now):
            await walk.workers[0].finish(effect, began_at=walk.now, now=walk.now)
        rows = await walk.rows("SELECT * FROM dispatches ORDER BY created_at, delivery")
        return {row["downstream"]: row for row in rows}

    async def result(self, dispatch: Mapping[str, Any], run: str) -> None:
        walk = self.fed.walk
        await walk.report(dict(dispatch), run, 1, "build")
        await walk.report(dict(dispatch), run, 1, "build", conclusion=Conclusion.SUCCESS, **ENDED)

    async def summary(self, views: SqlViews | None = None) -> Summary:
        return await (views or self.views).summary(CORE, Span.DAY, self.now, kind=ResultKind.PUSH)

    async def forget_sums(self) -> None:
        """Take the sums away, so that only ClickHouse can know."""
        for table in ("hours", "days", "job_days"):
            await self.fed.walk.stores.database.write(partial(_emptied, table))


async def _emptied(table: str, tx: Tx) -> None:
    await tx.run(Statement(text(f"DELETE FROM {table}")))  # noqa: S608 - our own


@pytest.fixture
async def pages(stores: Stores) -> AsyncIterator[Pages]:
    found = await Pages.open(stores, new_database())
    yield found
    await found.close()


def passed(summary: Summary, name: RepoName = ONE) -> int:
    [figures] = [each.figures for each in summary.backends if each.name == name]
    assert figures is not None
    return figures.tally.success


async def test_what_is_fed_is_answered_by_clickhouse(pages: Pages) -> None:
    dispatches = await pages.push()
    await pages.result(dispatches["org/one"], "1001")
    await pages.fed.feed()
    plain = await pages.summary(pages.plain)
    await pages.forget_sums()
    told = await pages.summary()
    assert (told.history, told.levels) == (HistoryState.ANSWERED, plain.levels)
    query = BackendQuery(upstream=CORE, downstream=ONE, span=Span.WEEK, kind=ResultKind.PUSH)
    page = await pages.views.backend(query, pages.now)
    assert page.history is HistoryState.ANSWERED
    assert [(job.column.job_name, job.tally.success) for job in page.jobs] == [("build", 1)]
    metrics = await pages.views.metrics(CORE, Span.DAY, pages.now, kind=ResultKind.PUSH)
    assert (metrics.history, metrics.total.tally.success) == (HistoryState.ANSWERED, 1)
    badge = await pages.views.badge(CORE, ONE, ResultKind.PUSH, Span.DAY, pages.now)
    assert badge.tally.success == 1
    found = await pages.views.search(SearchQuery(upstream=CORE, text="buil"), pages.now)
    assert [hit.title for hit in found.hits] == ["build"]


@pytest.mark.parametrize("number", [1, 25])
async def test_percentiles_are_those_of_the_main_store(pages: Pages, number: int) -> None:
    walk = pages.fed.walk
    for run in (str(1001 + place) for place in range(number)):
        one = (await pages.push())["org/one"]
        await walk.report(dict(one), run, 1, "build")
        walk.now += timedelta(seconds=7)
        await walk.report(dict(one), run, 1, "build", conclusion=Conclusion.SUCCESS, **ENDED)
    await pages.fed.feed()
    for views in (pages.views, pages.plain):
        summary = await pages.summary(views)
        [figures] = [each.figures for each in summary.backends if each.name == ONE and each.figures]
        times = figures.execution
        assert (times.known, times.average_s, times.p50_s, times.p95_s) == (number, 7.0, 7.0, 7.0)
    assert pages.source.asked == 1


async def test_a_result_is_on_the_page_before_clickhouse_is_told(pages: Pages) -> None:
    dispatches = await pages.push()
    await pages.fed.feed()
    before = (await pages.summary()).cursor
    await pages.result(dispatches["org/one"], "1001")
    told = await pages.summary()
    assert (told.history, passed(told)) == (HistoryState.ANSWERED, 1)
    assert told.cursor > before
    await pages.fed.feed()
    assert passed(await pages.summary()) == 1


async def test_a_page_goes_on_from_the_change_before_it_asked(stores: Stores, pages: Pages) -> None:
    """A result that comes while ClickHouse is being asked is in neither answer: its change must come after the page."""
    dispatches = await pages.push()
    await pages.fed.feed()

    class Meanwhile(Counting):
        async def figures(self, *args: Any, **more: Any) -> Any:
            answer = await super().figures(*args, **more)
            await pages.result(dispatches["org/one"], "1001")
            await pages.fed.feed()
            return answer

    source = Meanwhile(pages.source.link)
    views = SqlViews(
        stores.database, stores.allowlists, (CORE,), history=HistoryReader(stores.database, source)
    )
    old = await pages.summary(views)
    assert passed(old) == 0
    newer = await views.changes(old.cursor, 100)
    assert any(change.downstream == ONE.key for change in newer.items)


async def test_far_behind_the_main_store_answers_and_the_page_says_so(pages: Pages) -> None:
    dispatches = await pages.push()
    await pages.result(dispatches["org/one"], "1001")
    pages.fed.walk.now += timedelta(minutes=2)
    told = await pages.summary()
    assert (told.history, passed(told), pages.source.asked) == (HistoryState.BEHIND, 1, 0)
    await pages.fed.feed()
    assert (await pages.summary()).history is HistoryState.ANSWERED


async def test_before_it_holds_everything_clickhouse_is_not_asked(pages: Pages) -> None:
    await pages.fed.feeding.forget_mark(FeedMark.WHOLE)
    told = await pages.summary()
    assert (told.history, pages.source.asked) == (HistoryState.OWN, 0)


@pytest.mark.parametrize("how", ["stop", "hang"])
async def test_without_clickhouse_the_main_store_answers_and_it_heals_by_itself(
    stores: Stores, tmp_path: Path, how: str
) -> None:
    server = ClickHouseServer(tmp_path / "engine")
    server.start()
    pages = await Pages.open(stores, server.url)
    try:
        dispatches = await pages.push()
        await pages.result(dispatches["org/one"], "1001")
        await pages.fed.feed()
        assert (await pages.summary()).history is HistoryState.ANSWERED
        getattr(server, how)()
        for _ in range(3):
            told = await pages.summary()
            assert (told.history, passed(told)) == (HistoryState.UNREACHABLE, 1)
        assert pages.source.asked == 2  # after one that failed it is left alone
        server.go_on() if how == "hang" else server.start()
        pages.fed.walk.now += RETRY_AFTER
        assert (await pages.summary()).history is HistoryState.ANSWERED
    finally:
        await pages.close()
        server.stop()
