"""History queries on the main store's sums and on ClickHouse: how long each takes, and how many bytes a job takes.

`python -m bench.history.history_queries --jobs 300000 --folder FOLDER` prints one line per query. SQLite is the main store, and
chDB, ClickHouse's engine in this process, is ClickHouse. Every query runs once to warm up and then five times.
"""

import argparse
import asyncio
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.history.history_database import BIG, backends, make_history
from bench.relay_process.relay_setup import UPSTREAM
from crcr.decide.model import RepoName
from crcr.decide.statistics.window import ResultKind, Span, Window
from crcr.record.clickhouse.backfill import Backfill
from crcr.record.clickhouse.connection import ClickHouseLink, ClickHouseLocation
from crcr.record.clickhouse.feeder import ClickHouseFeeder, FeedQueue
from crcr.record.clickhouse.history import ClickHouseHistory
from crcr.record.store.database import Tx
from crcr.record.store.signals import Signals
from crcr.record.store.sqlite.database import SqliteDatabase
from crcr.record.views.backends.figures import FigureScope, read_figures
from crcr.record.views.backends.jobs import read_jobs_by_name

_RUNS = 5
# Queries that no page needs, so that no sums exist for them.
_SLOWEST_JOBS = (
    "SELECT downstream, job_name, avg(execution_s) AS mean_s, count(*) AS number FROM {table}"
    " WHERE ended_as = 'success' GROUP BY downstream, job_name ORDER BY mean_s DESC LIMIT 20"
)
_BY_HOUR_OF_DAY = {
    "jobs": "SELECT in_progress_at / 3600000000 % 24 AS hour, avg(queue_s), count(*) FROM jobs"
    " WHERE ended_as IS NOT NULL GROUP BY 1 ORDER BY 1",
    "crcr_jobs": "SELECT toHour(began_at) AS hour, avg(queue_s), count() FROM crcr_jobs FINAL"
    " WHERE ended_as <> '' GROUP BY hour ORDER BY hour",
}
Query = Callable[[], Awaitable[Any]]


async def measure(folder: Path, jobs: int, console: Console) -> None:
    history = make_history(folder, jobs, console)
    database = SqliteDatabase(history.database, Signals())
    link = ClickHouseLink(ClickHouseLocation(f"chdb://{folder}/chdb-{jobs}"))
    queue = FeedQueue(database)
    began = time.perf_counter()
    await Backfill(database, queue, ClickHouseFeeder(queue, link, None), link).run(
        lambda *_: None, datetime.now(UTC)
    )
    console.print(f"{history.jobs:,} jobs; backfill {time.perf_counter() - began:.0f} s")
    for name, by_sums, by_clickhouse in queries(database, ClickHouseHistory(link), link, history.database):
        medians = [await median_ms(by_sums), await median_ms(by_clickhouse)]
        console.print(f"{name}: main store {medians[0]:.1f} ms, ClickHouse {medians[1]:.1f} ms")
    await print_sizes(history.database, link, history.jobs, console)
    await link.close()
    await database.close()


def queries(
    database: SqliteDatabase, history: ClickHouseHistory, link: ClickHouseLink, path: Path
) -> list[tuple[str, Query, Query]]:
    upstream, big, now = RepoName(UPSTREAM), RepoName(BIG), datetime.now(UTC)
    names = [RepoName(backend.name).key for backend in backends()]

    def figures(span: Span) -> tuple[Query, Query]:
        window = Window.of(span, now)

        async def unit(tx: Tx) -> None:
            for name in names:
                await read_figures(tx, FigureScope(upstream.key, name, ResultKind.PULLS, window))

        return lambda: database.read(unit), lambda: history.figures(upstream.key, ResultKind.PULLS, window)

    def by_name(span: Span) -> tuple[Query, Query]:
        window = Window.of(span, now)
        return (
            lambda: database.read(lambda tx: read_jobs_by_name(tx, upstream, big, ResultKind.PULLS, window)),
            lambda: history.by_name(upstream.key, big.key, ResultKind.PULLS, window),
        )

    def ad_hoc(on_sqlite: str, on_clickhouse: str) -> tuple[Query, Query]:
        def read() -> list[Any]:
            with closing(sqlite3.connect(path)) as connection:
                return connection.execute(on_sqlite).fetchall()

        return lambda: asyncio.to_thread(read), lambda: link.query_slowly(on_clickhouse)

    slowest = ad_hoc(_SLOWEST_JOBS.format(table="jobs"), _SLOWEST_JOBS.format(table="crcr_jobs FINAL"))
    return [
        ("figures of all backends, 14 days", *figures(Span.FORTNIGHT)),
        ("figures of all backends, 90 days", *figures(Span.QUARTER)),
        ("jobs of one backend by name, 24 hours", *by_name(Span.DAY)),
        ("jobs of one backend by name, 90 days", *by_name(Span.QUARTER)),
        ("ad-hoc query: slowest jobs of all time", *slowest),
        ("ad-hoc query: queue time by hour of day", *ad_hoc(*_BY_HOUR_OF_DAY.values())),
    ]


async def median_ms(query: Query) -> float:
    await query()
    took: list[float] = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        await query()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


async def print_sizes(path: Path, link: ClickHouseLink, jobs: int, console: Console) -> None:
    sql = "SELECT sum(bytes_on_disk) AS bytes FROM system.parts WHERE active AND table = 'crcr_jobs'"
    [row] = await link.query_slowly(sql)
    with closing(sqlite3.connect(path)) as connection:
        tables = "SELECT sum(pgsize) FROM dbstat WHERE name = 'jobs' OR name LIKE 'ix_jobs%' OR name LIKE '%jobs_1'"
        in_sqlite = connection.execute(tables).fetchone()[0]
    console.print(f"bytes a job: main store {in_sqlite / jobs:.0f}, ClickHouse {row['bytes'] / jobs:.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300_000)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(measure(options.folder.absolute(), options.jobs, Console(width=120)))
