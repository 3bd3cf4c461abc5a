"""A random history that is fed to ClickHouse, and the same queries on the main store and on ClickHouse."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product
from random import Random
from typing import Any

from crcr.decide.jobs.ingested import EchoedEvent, IngestedResult
from crcr.decide.jobs.report import Report, ReportStatus
from crcr.decide.model import Conclusion, Level, RepoName
from crcr.decide.statistics.figures import Durations, Figures
from crcr.decide.statistics.window import ResultKind, Span, Window
from crcr.decide.views.search import SearchQuery
from crcr.record.clickhouse.connection import ClickHouseLink, ClickHouseLocation
from crcr.record.clickhouse.feeder import ClickHouseFeeder, FeedQueue
from crcr.record.clickhouse.history import ClickHouseHistory
from crcr.record.jobs.ingested import IngestedResults
from crcr.record.store.database import Tx
from crcr.record.store.times import from_us
from crcr.record.views.backends.figures import FigureScope, make_figures, read_figures
from crcr.record.views.backends.jobs import read_jobs_by_name, sort_worst_first
from crcr.record.views.search.jobs import JOBS_BACK
from crcr.record.views.search.search import search
from crcr.record.views.visibility import visible_backends
from support.data.events_and_reports import a_start
from support.data.random_walk import BACKENDS, JOBS, RandomWalk
from support.stores.databases import CORE, UPSTREAMS, Stores

Answers = dict[tuple[Any, ...], Any]
SPANS = (Span.DAY, Span.WEEK, Span.QUARTER)


@dataclass
class ClickHouseFeed:
    """A main store with a feed to ClickHouse."""

    walk: RandomWalk
    feeding: FeedQueue
    feeder: ClickHouseFeeder
    link: ClickHouseLink
    history: ClickHouseHistory
    place: ClickHouseLocation

    @classmethod
    async def begin(
        cls, stores: Stores, url: str, seed: int, keep_days: int | None = None
    ) -> "ClickHouseFeed":
        place = ClickHouseLocation(url)
        walk, link, feeding = (
            RandomWalk(stores, Random(seed)),
            ClickHouseLink(place),
            FeedQueue(stores.database),
        )
        await walk.begin()
        await feeding.turn_on([], walk.now)
        feeder = ClickHouseFeeder(feeding, link, keep_days)
        await feeder.make_ready()
        return cls(walk, feeding, feeder, link, ClickHouseHistory(link), place)

    async def steps(self, number: int) -> None:
        others = OtherRelay(self.walk)
        for _ in range(number):
            await (others.send_result() if self.walk.random.random() < 0.2 else self.walk.step())

    async def feed(self, at_once: int = 50) -> int:
        fed = 0
        while number := await self.feeder.feed(CORE.key, at_once):
            fed += number
        return fed

    async def unfed(self) -> list[dict[str, Any]]:
        return await self.walk.rows("SELECT * FROM unfed ORDER BY seq")


@dataclass
class OtherRelay:
    """Results of another relay: starts, ends, contradictions, attempts, times that are filled in later."""

    walk: RandomWalk

    async def send_result(self) -> None:
        walk, random = self.walk, self.walk.random
        results = IngestedResults(walk.stores.database, walk.stores.allowlists, UPSTREAMS)
        ended = random.random() < 0.7
        run, attempt = str(random.randrange(1, 4)), random.choice((1, 1, 2))
        ago = timedelta(hours=random.choice((0, 1, 30)))
        report: Report = a_start(
            delivery_id=f"other-{random.randrange(5)}",
            event_type="push",
            run_id=run,
            run_attempt=attempt,
            job_name=random.choice(JOBS),
            workflow_name="Theirs",
            status=ReportStatus.COMPLETED if ended else ReportStatus.IN_PROGRESS,
            conclusion=random.choice(list(Conclusion)) if ended else None,
            check_run_text=None,
            started_at=walk.now - ago if random.random() < 0.5 else None,
        )
        told = IngestedResult(
            repository=RepoName(random.choice(BACKENDS)),
            level=Level.L2,
            queue_s=random.choice((None, 3.0, 61.5)),
            execution_s=random.choice((None, 600.0, 20_000.25)),
            report=report,
            about=EchoedEvent(upstream=CORE.key),
        )
        await results.take(told, "192.0.2.7", walk.now)


ReadFigures = Callable[[str, ResultKind, Window], Awaitable[tuple[Figures, Any]]]


async def collect_answers(now: datetime, read: ReadFigures) -> Answers:
    """All history queries of the pages, for every backend, kind and range."""
    found: Answers = {}
    for downstream, kind, span in product(BACKENDS, ResultKind, SPANS):
        figures, jobs = await read(downstream, kind, Window.of(span, now))
        found[downstream, kind, span] = (_figures(figures), _jobs(jobs))
    return found


async def answers_by_sql(stores: Stores, now: datetime) -> Answers:
    async def read(downstream: str, kind: ResultKind, window: Window) -> tuple[Figures, Any]:
        async def unit(tx: Tx) -> tuple[Figures, Any]:
            figures = await read_figures(tx, FigureScope(CORE.key, downstream, kind, window))
            jobs, _ = await read_jobs_by_name(tx, CORE, RepoName(downstream), kind, window)
            return figures, jobs

        return await stores.database.read(unit)

    return await collect_answers(now, read)


async def answers_by_clickhouse(history: ClickHouseHistory, now: datetime) -> Answers:
    """Figures of all backends in one query, as the pages read them."""
    figures = {
        (kind, span): await history.figures(CORE.key, kind, Window.of(span, now))
        for kind, span in product(ResultKind, SPANS)
    }
    spans = {Window.of(span, now): span for span in SPANS}

    async def read(downstream: str, kind: ResultKind, window: Window) -> tuple[Figures, Any]:
        rows = figures[kind, spans[window]].get(downstream, [])
        jobs, _ = sort_worst_first(await history.by_name(CORE.key, downstream, kind, window))
        return make_figures(rows, window), jobs

    return await collect_answers(now, read)


async def names_by_sql(stores: Stores, part: str, now: datetime) -> set[tuple[str, str, datetime | None]]:
    async def unit(tx: Tx) -> set[tuple[str, str, datetime | None]]:
        query = SearchQuery(upstream=CORE, text=part)
        found = await search(tx, query, await visible_backends(tx, stores.allowlists, CORE), now)
        return {(hit.backend.key, hit.title, hit.at) for hit in found.hits if hit.job and hit.backend}

    return await stores.database.read(unit)


async def names_by_clickhouse(
    history: ClickHouseHistory, part: str, now: datetime
) -> set[tuple[str, str, datetime | None]]:
    last: dict[tuple[str, str], int] = {}
    for row in await history.named(CORE.key, part, now - JOBS_BACK, 21):
        key = (row["downstream"], row["job_name"])
        last[key] = max(row["last_at"], last.get(key, 0))
    return {(*key, from_us(at)) for key, at in last.items()}


def _figures(figures: Figures) -> Any:
    parts = [
        (
            part.at,
            part.tally,
            _durations(part.queue),
            _durations(part.execution),
            part.sent,
            _near(part.delay_s),
        )
        for part in figures.parts
    ]
    return parts, figures.left_out


def _durations(durations: Durations) -> Any:
    return _near(durations.sum_s), durations.known, durations.buckets


def _jobs(jobs: Any) -> Any:
    return sorted(
        (each.column.workflow, each.column.job_name, each.tally, _near(each.execution_s or 0.0))
        for each in jobs
    )


def _near(seconds: float) -> float:
    """Round seconds: their last digits depend on the order of addition."""
    return float(f"{seconds:.7g}") if abs(seconds) > 1e-6 else 0.0
