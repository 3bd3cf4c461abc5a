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
class CountingHistory(ClickHouseHistory):
    """ClickHouse history that counts its queries for figures."""

    link: ClickHouseLink
    figure_queries: int = 0

    def __post_init__(self) -> None:
        super().__init__(self.link)

    async def figures(
        self, upstream: str, kind: ResultKind, window: Window, downstream: str | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        self.figure_queries += 1
        return await super().figures(upstream, kind, window, downstream)


@dataclass
class Pages:
    fed: ClickHouseFeed
    source: CountingHistory
    views: SqlViews
    plain: SqlViews

    @classmethod
    async def open(cls, stores: Stores, url: str) -> "Pages":
        fed = await ClickHouseFeed.begin(stores, url, 0)
        source = CountingHistory(ClickHouseLink(ClickHouseLocation(url)))
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
        """Delete the sums of the main store, so that only ClickHouse has them."""
        for table in ("hours", "days", "job_days"):
            await self.fed.walk.stores.database.write(partial(_delete_rows, table))


async def _delete_rows(table: str, tx: Tx) -> None:
    await tx.run(Statement(text(f"DELETE FROM {table}")))  # noqa: S608 - our own


@pytest.fixture
async def pages(stores: Stores) -> AsyncIterator[Pages]:
    opened = await Pages.open(stores, new_database())
    yield opened
    await opened.close()


def passed(summary: Summary, name: RepoName = ONE) -> int:
    [figures] = [backend.figures for backend in summary.backends if backend.name == name]
    assert figures is not None
    return figures.tally.success


async def test_fed_results_are_read_from_clickhouse(pages: Pages) -> None:
    dispatches = await pages.push()
    await pages.result(dispatches["org/one"], "1001")
    await pages.fed.feed()
    plain = await pages.summary(pages.plain)
    await pages.forget_sums()
    summary = await pages.summary()
    assert (summary.history, summary.levels) == (HistoryState.ANSWERED, plain.levels)
    query = BackendQuery(upstream=CORE, downstream=ONE, span=Span.WEEK, kind=ResultKind.PUSH)
    page = await pages.views.backend(query, pages.now)
    assert page.history is HistoryState.ANSWERED
    assert [(job.column.job_name, job.tally.success) for job in page.jobs] == [("build", 1)]
    metrics = await pages.views.metrics(CORE, Span.DAY, pages.now, kind=ResultKind.PUSH)
    assert (metrics.history, metrics.total.tally.success) == (HistoryState.ANSWERED, 1)
    badge = await pages.views.badge(CORE, ONE, ResultKind.PUSH, Span.DAY, pages.now)
    assert badge.tally.success == 1
    results = await pages.views.search(SearchQuery(upstream=CORE, text="buil"), pages.now)
    assert [hit.title for hit in results.hits] == ["build"]


@pytest.mark.parametrize("number", [1, 25])
async def test_percentiles_equal_those_of_the_main_store(pages: Pages, number: int) -> None:
    walk = pages.fed.walk
    for run in (str(1001 + index) for index in range(number)):
        one = (await pages.push())["org/one"]
        await walk.report(dict(one), run, 1, "build")
        walk.now += timedelta(seconds=7)
        await walk.report(dict(one), run, 1, "build", conclusion=Conclusion.SUCCESS, **ENDED)
    await pages.fed.feed()
    for views in (pages.views, pages.plain):
        summary = await pages.summary(views)
        [figures] = [
            backend.figures for backend in summary.backends if backend.name == ONE and backend.figures
        ]
        times = figures.execution
        assert (times.known, times.average_s, times.p50_s, times.p95_s) == (number, 7.0, 7.0, 7.0)
    assert pages.source.figure_queries == 1


async def test_a_result_is_shown_before_it_is_fed_to_clickhouse(pages: Pages) -> None:
    dispatches = await pages.push()
    await pages.fed.feed()
    before = (await pages.summary()).cursor
    await pages.result(dispatches["org/one"], "1001")
    summary = await pages.summary()
    assert (summary.history, passed(summary)) == (HistoryState.ANSWERED, 1)
    assert summary.cursor > before
    await pages.fed.feed()
    assert passed(await pages.summary()) == 1


async def test_the_cursor_of_a_page_is_older_than_its_clickhouse_query(stores: Stores, pages: Pages) -> None:
    """A result that arrives during the ClickHouse query is missing from the page: its change must come after the page's cursor."""
    dispatches = await pages.push()
    await pages.fed.feed()

    class ResultDuringQuery(CountingHistory):
        async def figures(self, *args: Any, **more: Any) -> Any:
            figures_before = await super().figures(*args, **more)
            await pages.result(dispatches["org/one"], "1001")
            await pages.fed.feed()
            return figures_before

    source = ResultDuringQuery(pages.source.link)
    views = SqlViews(
        stores.database, stores.allowlists, (CORE,), history=HistoryReader(stores.database, source)
    )
    page = await pages.summary(views)
    assert passed(page) == 0
    newer = await views.changes(page.cursor, 100)
    assert any(change.downstream == ONE.key for change in newer.items)


async def test_when_clickhouse_lags_the_main_store_is_read_and_the_page_says_so(pages: Pages) -> None:
    dispatches = await pages.push()
    await pages.result(dispatches["org/one"], "1001")
    pages.fed.walk.now += timedelta(minutes=2)
    summary = await pages.summary()
    assert (summary.history, passed(summary), pages.source.figure_queries) == (HistoryState.BEHIND, 1, 0)
    await pages.fed.feed()
    assert (await pages.summary()).history is HistoryState.ANSWERED


async def test_clickhouse_is_not_queried_before_it_is_complete(pages: Pages) -> None:
    await pages.fed.feeding.forget_mark(FeedMark.WHOLE)
    summary = await pages.summary()
    assert (summary.history, pages.source.figure_queries) == (HistoryState.OWN, 0)


@pytest.mark.parametrize("how", ["stop", "hang"])
async def test_when_clickhouse_is_down_the_main_store_is_read_until_clickhouse_recovers(
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
            summary = await pages.summary()
            assert (summary.history, passed(summary)) == (HistoryState.UNREACHABLE, 1)
        assert pages.source.figure_queries == 2  # after a failed query ClickHouse is not queried for a while
        server.go_on() if how == "hang" else server.start()
        pages.fed.walk.now += RETRY_AFTER
        assert (await pages.summary()).history is HistoryState.ANSWERED
    finally:
        await pages.close()
        server.stop()
