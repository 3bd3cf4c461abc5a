"""What a verdict costs the store: a failing result is recorded and judged with millions of jobs in the database.

The rules' own transaction runs on the database of the pages and is rolled back. The failures of the last month get made-up
fingerprints, a few for each job, and the base's commits the order of its pushes, so that each verdict has a history to read.
"""
# ruff: noqa: S608 - every name in these statements is our own

import sqlite3
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.history.history_database import make_history
from bench.relay_process.relay_setup import Row
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.failures.recorder import FailureRecorder
from crcr.record.migrations.run import migrate
from crcr.record.store.database import Row as StoreRow
from crcr.record.store.sqlite.database import SqliteTx
from crcr.record.store.statement import Statement

_SAMPLES = 200
_KEY = ("delivery", "upstream", "downstream", "workflow", "run_id", "attempt", "job_name")
_ORDER_COMMITS = (
    "INSERT OR IGNORE INTO base_commits (sha, upstream, ref, position, before, pushed_at) SELECT head_sha, upstream, 'main',"
    " row_number() OVER (ORDER BY received_at), '', received_at FROM deliveries WHERE event = 'push' AND head_sha IS NOT NULL"
)
_MAKE_FINGERPRINTS = (
    "UPDATE failures SET fingerprints = printf('%016x', (failure_id % 5) * 1000003 + length(job_name)), rules = 1,"
    " base_ref = 'main', built_on = coalesce(built_on, (SELECT sha FROM base_commits WHERE position = 1 + failure_id % 2000)),"
    " built_on_exact = 1, author = 'author' || (number % 50), trusted = 1 WHERE rules = 0"
)
_NEWEST = (
    "SELECT {} FROM failures WHERE kind = 'pull_request' AND ended = 'failure' ORDER BY failure_id DESC LIMIT ?"
).format(", ".join(_KEY))
_FORGET = "DELETE FROM failures WHERE {}".format(" AND ".join(f"{name} = :{name}" for name in _KEY))


def measure_verdict_cost(folder: Path, cache: Path | None, jobs: int, console: Console) -> Iterator[Row]:
    history = make_history(cache or folder, jobs, console)
    began = time.perf_counter()
    migrate(history.database)
    console.print(f"migrated in {time.perf_counter() - began:.0f} s")
    with sqlite3.connect(history.database, isolation_level=None) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute(_ORDER_COMMITS)
        connection.execute(_MAKE_FINGERPRINTS)
        total = connection.execute("SELECT count(*) FROM failures").fetchone()[0]
        keys = [dict(row) for row in connection.execute(_NEWEST, (_SAMPLES,))]
        costs = [_judge(connection, key) for key in keys]
    store, all_of_it = (sorted(one) for one in zip(*costs, strict=True))
    p50 = statistics.median(store)
    yield (
        f"a failing result is recorded and judged, {history.jobs:,} jobs, {total:,} failures: the store's time",
        _percentiles(store),
        "P50 < 2 ms",
        p50 < 0.002,
    )
    yield "the same with the rules, processor time", _percentiles(all_of_it), "-", True


def _percentiles(costs: list[float]) -> str:
    p50, p95 = statistics.median(costs), costs[int(len(costs) * 0.95)]
    return f"P50 {p50 * 1e3:.2f} ms, P95 {p95 * 1e3:.2f} ms"


class _TimedTx(SqliteTx):
    """Adds up the processor time of its statements."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.spent = 0.0

    async def one(self, statement: Statement, **params: Any) -> StoreRow | None:
        with self._timed():
            return await super().one(statement, **params)

    async def all(self, statement: Statement, **params: Any) -> list[StoreRow]:
        with self._timed():
            return await super().all(statement, **params)

    async def run(self, statement: Statement, **params: Any) -> int:
        with self._timed():
            return await super().run(statement, **params)

    async def many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
        with self._timed():
            await super().many(statement, rows)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.process_time()
        try:
            yield
        finally:
            self.spent += time.process_time() - began


def _judge(connection: sqlite3.Connection, key: dict[str, Any]) -> tuple[float, float]:
    """Record and judge the job's failure as if it had just ended; return the processor time of the store, and of everything."""
    recorder = FailureRecorder(CheckRefresher({}))
    row = connection.execute(
        f"SELECT completed_at FROM jobs WHERE {' AND '.join(f'{name} = :{name}' for name in _KEY)}",
        key,
    ).fetchone()
    now = datetime.fromtimestamp(row[0] / 1e6, UTC)
    connection.execute("BEGIN IMMEDIATE")
    try:
        # The first time it judges the whole past of the job; what a later failure costs is measured.
        for _ in range(2):
            connection.execute(_FORGET, key)
            tx = _TimedTx(connection)
            began = time.process_time()
            with suppress(StopIteration):
                recorder.follow(tx, key, now).send(None)  # a unit never suspends on SQLite
            spent = time.process_time() - began
        return tx.spent, spent
    finally:
        connection.execute("ROLLBACK")
