"""Retention: periods, a history with old rows, and a database that counts the rows that each unit changes."""
# ruff: noqa: S608 - every name in these statements is our own

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta
from random import Random
from typing import Any, TypeVar, cast

from sqlalchemy import text

from crcr.decide.jobs.report import ReportStatus
from crcr.decide.model import Conclusion
from crcr.record.store.database import Database, Row, Tx, Unit
from crcr.record.store.statement import Statement
from crcr.record.upkeep.retention import Retention, RetentionPeriods
from support.data.random_walk import RandomWalk
from support.stores.databases import Stores

T = TypeVar("T")

DELIVERY_TABLES = ("deliveries", "dispatches", "runs", "jobs")
SUMS = ("hours", "days", "job_days")
ENDED: dict[str, Any] = {"status": ReportStatus.COMPLETED, "conclusion": Conclusion.SUCCESS}

DAY = timedelta(days=1)
KEEP_ALL = RetentionPeriods(bodies=30 * DAY, effects=7 * DAY, jobs=None, audit=None)
"""Keeps jobs and audit entries for ever."""
KEEP_SOME = RetentionPeriods(bodies=30 * DAY, effects=7 * DAY, jobs=100 * DAY, audit=30 * DAY)


class CountingTx:
    """Counts the rows that a unit changes."""

    def __init__(self, inner: Tx) -> None:
        self._inner = inner
        self.changed = 0

    async def one(self, statement: Statement, **params: Any) -> Row | None:
        return await self._inner.one(statement, **params)

    async def all(self, statement: Statement, **params: Any) -> list[Row]:
        return await self._inner.all(statement, **params)

    async def run(self, statement: Statement, **params: Any) -> int:
        changed = await self._inner.run(statement, **params)
        self.changed += changed
        return changed

    async def many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
        given = list(rows)
        self.changed += len(given)
        await self._inner.many(statement, given)


class CountingDatabase:
    """Records how many rows each unit changed, and can fail after some units."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.units: list[int] = []
        self.ends_after: int | None = None

    async def write(self, unit: Unit[T]) -> T:
        if self.ends_after is not None and len(self.units) >= self.ends_after:
            raise ConnectionAbortedError("killed here")

        async def count_changes(tx: Tx) -> T:
            counting = CountingTx(tx)
            result = await unit(cast("Tx", counting))
            self.units.append(counting.changed)
            return result

        return await self._inner.write(count_changes)

    async def read(self, unit: Unit[T]) -> T:
        return await self._inner.read(unit)

    async def quick_read(self, unit: Unit[T]) -> T:
        return await self._inner.quick_read(unit)


def retention(
    database: Database | CountingDatabase, keeps: RetentionPeriods = KEEP_SOME, **more: Any
) -> Retention:
    return Retention(cast("Database", database), keeps, **more)


async def row_counts(stores: Stores, *tables: str) -> dict[str, int]:
    found = {}
    for table in tables:
        [row] = await stores.rows(f"SELECT count(*) AS number FROM {table}")
        found[table] = row["number"]
    return found


async def all_sums(stores: Stores) -> list[list[dict[str, Any]]]:
    return [await stores.rows(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4") for table in SUMS]


async def random_history(stores: Stores, seed: int = 1) -> RandomWalk:
    walk = RandomWalk(stores, Random(seed))
    await walk.begin()
    return walk


async def sent_push(walk: RandomWalk, *backends: str, jobs: int = 1) -> str:
    """A push that was dispatched, and successful reports of these backends."""
    await walk.push()
    for effect in await walk.workers[0].claim(99, walk.now):
        await walk.workers[0].finish(effect, began_at=walk.now, now=walk.now)
    guid = f"d{walk.numbers}"
    jobs_of_all = [
        ({"delivery": guid, "downstream": backend}, f"b-{guid}-{number}")
        for backend in backends
        for number in range(jobs)
    ]
    for end in ({}, ENDED):  # at the same time, so that many share a transaction
        await asyncio.gather(
            *(walk.report(where, run, 1, "build", workflow_name="CI", **end) for where, run in jobs_of_all)
        )
    return guid


async def delivery_guids(stores: Stores) -> list[str]:
    return [
        row["guid"] for row in await stores.rows("SELECT guid FROM deliveries ORDER BY received_at, guid")
    ]


async def execute_sql(stores: Stores, sql: str) -> None:
    await stores.database.write(lambda tx: tx.run(Statement(text(sql))))
