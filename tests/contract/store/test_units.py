"""Units of work on a database: committed before the call returns; a failing unit is rolled back alone."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text

from crcr.errors import NotFound, StoreUnavailable
from crcr.record.schema.statistics import job_days
from crcr.record.store.database import Database, Tx, Unit
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.signals import CHANGES, Signals
from crcr.record.store.sqlite.database import SqliteDatabase
from crcr.record.store.statement import Statement, SumUpsert
from crcr.wiring.core import Seams
from support.running_relay import place_empty_database
from support.stores.databases import OpenDatabase

ADD = Statement(text("INSERT INTO upstreams (upstream, name, created_at) VALUES (:name, :name, 0)"))
JOB_DAYS = Statement(
    text("SELECT downstream, workflow_name, success, execution_sum_s FROM job_days ORDER BY downstream")
)
NAMES = Statement(text("SELECT name FROM upstreams ORDER BY name"))


def add_upstream(name: str, *, then: Exception | None = None) -> Unit[str]:
    async def unit(tx: Tx) -> str:
        await tx.run(ADD, name=name)
        tx.signal(CHANGES)
        if then is not None:
            raise then
        return name

    return unit


async def names(database: Database) -> list[str]:
    return [row["name"] for row in await database.quick_read(lambda tx: tx.all(NAMES))]


async def test_only_the_failed_units_of_a_batch_are_rolled_back(database: Database) -> None:
    units = [
        add_upstream("a/a"),
        add_upstream("b/b", then=NotFound("no")),
        add_upstream("c/c"),
        add_upstream("d/d", then=ValueError("bug")),
    ]
    results = await asyncio.gather(*map(database.write, units), return_exceptions=True)

    assert [results[0], results[2]] == ["a/a", "c/c"]
    assert isinstance(results[1], NotFound)
    assert isinstance(results[3], ValueError)
    assert await names(database) == ["a/a", "c/c"]


async def test_sums_of_a_batch_are_added_by_primary_key_and_keep_the_first_name(
    database: Database,
) -> None:
    """Two reports may give one workflow different names."""
    upsert = SumUpsert.to(job_days, ("success", "execution_sum_s"))

    def add_to_sums(backend: str, name: str, seconds: float) -> Unit[None]:
        async def unit(tx: Tx) -> None:
            key = ("a/core", backend, "pull_request", 0, "ci.yml", "build", name)
            rest = dict.fromkeys(upsert.keys[len(key) :], 0)
            tx.add_up(upsert, (*key, *rest.values()), {"success": 1, "execution_sum_s": seconds})

        return unit

    for _ in range(2):
        units = [add_to_sums(f"o/b{number % 3}", f"CI {number}", number) for number in range(9)]
        await asyncio.gather(
            *(database.write(unit, lane=f"o/b{number}") for number, unit in enumerate(units))
        )

    rows = await database.quick_read(lambda tx: tx.all(JOB_DAYS))
    assert [tuple(dict(row).values()) for row in rows] == [
        ("o/b0", "CI 0", 6, 18.0),
        ("o/b1", "CI 1", 6, 24.0),
        ("o/b2", "CI 2", 6, 30.0),
    ]


async def test_a_write_returns_after_its_commit_and_wakes_its_subscribers(
    open_database: OpenDatabase,
) -> None:
    database, other = open_database(), open_database()
    assert isinstance(database, SqliteDatabase | PostgresDatabase)
    woken = database.signals.subscribe(CHANGES)
    await database.write(add_upstream("a/a"))

    assert await names(other) == ["a/a"]
    assert woken.is_set()


async def test_a_cancelled_callers_rows_are_committed_and_other_writes_succeed(database: Database) -> None:
    cancelled, other = (
        asyncio.create_task(database.write(add_upstream("a/a"))),
        database.write(add_upstream("b/b")),
    )
    await asyncio.sleep(0)
    cancelled.cancel()

    assert await other == "b/b"
    assert await names(database) == ["a/a", "b/b"]


async def test_a_closed_store_has_committed_its_queued_writes_and_refuses_others(
    open_database: OpenDatabase,
) -> None:
    database, other = open_database(), open_database()
    queued = asyncio.create_task(database.write(add_upstream("a/a")))
    await asyncio.sleep(0)
    await database.close()
    for use in (database.write, database.read, database.quick_read):
        with pytest.raises(StoreUnavailable, match="the store is closed"):
            await use(add_upstream("b/b"))

    assert await queued == "a/a"
    assert await names(other) == ["a/a"]


async def test_on_sqlite_a_unit_that_awaits_anything_but_its_transaction_fails(tmp_path: Path) -> None:
    place_empty_database(tmp_path / "crcr.db")
    database = SqliteDatabase(tmp_path / "crcr.db", Signals())

    async def waits(_: Tx) -> None:
        await asyncio.sleep(1)

    with pytest.raises(RuntimeError, match="nothing but its transaction"):
        await database.write(waits)
    await database.close()


@pytest.mark.parametrize(("durable", "synchronous"), [(Seams().sqlite_durable, 2), (False, 0)])
async def test_on_sqlite_a_commit_is_synced_to_disk_unless_a_test_turns_that_off(
    tmp_path: Path, *, durable: bool, synchronous: int
) -> None:
    database = SqliteDatabase(tmp_path / "crcr.db", Signals(), durable=durable)
    rows = await database.write(lambda tx: tx.all(Statement(text("PRAGMA synchronous"))))
    assert [row["synchronous"] for row in rows] == [synchronous]
    await database.close()
