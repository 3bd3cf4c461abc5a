"""Units of work on a database: committed before they are answered, undone alone when they fail."""

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


def adding(name: str, *, then: Exception | None = None) -> Unit[str]:
    async def unit(tx: Tx) -> str:
        await tx.run(ADD, name=name)
        tx.signal(CHANGES)
        if then is not None:
            raise then
        return name

    return unit


async def names(database: Database) -> list[str]:
    return [row["name"] for row in await database.quick_read(lambda tx: tx.all(NAMES))]


async def test_of_a_group_only_the_unit_that_failed_is_undone(database: Database) -> None:
    units = [
        adding("a/a"),
        adding("b/b", then=NotFound("no")),
        adding("c/c"),
        adding("d/d", then=ValueError("bug")),
    ]
    answers = await asyncio.gather(*map(database.write, units), return_exceptions=True)

    assert [answers[0], answers[2]] == ["a/a", "c/c"]
    assert isinstance(answers[1], NotFound)
    assert isinstance(answers[3], ValueError)
    assert await names(database) == ["a/a", "c/c"]


async def test_sums_of_a_group_are_added_up_by_primary_key_and_keep_the_first_name(
    database: Database,
) -> None:
    """Two reports may name one workflow differently."""
    upsert = SumUpsert.to(job_days, ("success", "execution_sum_s"))

    def counting(backend: str, name: str, seconds: float) -> Unit[None]:
        async def unit(tx: Tx) -> None:
            key = ("a/core", backend, "pull_request", 0, "ci.yml", "build", name)
            rest = dict.fromkeys(upsert.keys[len(key) :], 0)
            tx.add_up(upsert, (*key, *rest.values()), {"success": 1, "execution_sum_s": seconds})

        return unit

    for _ in range(2):
        units = [counting(f"o/b{number % 3}", f"CI {number}", number) for number in range(9)]
        await asyncio.gather(
            *(database.write(unit, lane=f"o/b{number}") for number, unit in enumerate(units))
        )

    rows = await database.quick_read(lambda tx: tx.all(JOB_DAYS))
    assert [tuple(dict(row).values()) for row in rows] == [
        ("o/b0", "CI 0", 6, 18.0),
        ("o/b1", "CI 1", 6, 24.0),
        ("o/b2", "CI 2", 6, 30.0),
    ]


async def test_an_answer_comes_after_its_commit_and_waiters_are_woken_then(
    open_database: OpenDatabase,
) -> None:
    database, other = open_database(), open_database()
    assert isinstance(database, SqliteDatabase | PostgresDatabase)
    woken = database.signals.subscribe(CHANGES)
    await database.write(adding("a/a"))

    assert await names(other) == ["a/a"]
    assert woken.is_set()


async def test_a_caller_who_goes_away_leaves_its_rows_and_harms_nobody(database: Database) -> None:
    gone, stays = asyncio.create_task(database.write(adding("a/a"))), database.write(adding("b/b"))
    await asyncio.sleep(0)
    gone.cancel()

    assert await stays == "b/b"
    assert await names(database) == ["a/a", "b/b"]


async def test_a_closed_store_is_unavailable_and_not_empty(database: Database) -> None:
    await database.close()
    with pytest.raises(StoreUnavailable):
        await database.write(adding("a/a"))


async def test_on_sqlite_a_unit_may_await_nothing_but_its_transaction(tmp_path: Path) -> None:
    place_empty_database(tmp_path / "crcr.db")
    database = SqliteDatabase(tmp_path / "crcr.db", Signals())

    async def waits(_: Tx) -> None:
        await asyncio.sleep(1)

    with pytest.raises(RuntimeError, match="nothing but its transaction"):
        await database.write(waits)
    await database.close()


@pytest.mark.parametrize(("durable", "synchronous"), [(Seams().sqlite_durable, 2), (False, 0)])
async def test_on_sqlite_a_commit_waits_for_the_disk_unless_a_test_says_otherwise(
    tmp_path: Path, *, durable: bool, synchronous: int
) -> None:
    database = SqliteDatabase(tmp_path / "crcr.db", Signals(), durable=durable)
    rows = await database.write(lambda tx: tx.all(Statement(text("PRAGMA synchronous"))))
    assert [row["synchronous"] for row in rows] == [synchronous]
    await database.close()
