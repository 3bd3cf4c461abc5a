"""Batched units on one connection: each gets the same result as alone, in far fewer round trips."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text

from crcr.errors import NotFound, StoreUnavailable
from crcr.record.store.database import PostgresLocation, PostgresTimeouts, Tx, Unit
from crcr.record.store.postgres.connection import Connection, PostgresLink
from crcr.record.store.postgres.database import _LANES_FOR_SECOND, PostgresDatabase
from crcr.record.store.signals import Signals
from crcr.record.store.statement import Statement
from support.services.postgres import new_database, run_on
from support.stores.race_harness import empty_unit, pause_before_commit

ADD = Statement(text("INSERT INTO upstreams (upstream, name, created_at) VALUES (:name, :name, 0)"))
ADD_ONCE = Statement(
    text("INSERT INTO upstreams (upstream, name, created_at) VALUES (:name, :name, 0) ON CONFLICT DO NOTHING")
)
RENAME = Statement(
    text("UPDATE upstreams SET name = :new WHERE upstream LIKE :like RETURNING upstream, name")
)
TOUCH = Statement(text("UPDATE upstreams SET created_at = created_at + 1 WHERE upstream LIKE :like"))
NAMED = Statement(text("SELECT upstream FROM upstreams WHERE upstream LIKE :like ORDER BY upstream DESC"))
HELD = Statement(text("SELECT upstream FROM upstreams WHERE upstream = :name FOR UPDATE"))
FOUND = Statement(
    text("WITH found AS (SELECT upstream FROM upstreams WHERE upstream = :name) SELECT upstream FROM found")
)
SLOW = Statement(text("SELECT pg_sleep(60) AS slept"))
BROKEN = Statement(text("SELECT 1 / CAST(:by AS integer) AS part"))


@pytest.fixture
async def database() -> AsyncIterator[PostgresDatabase]:
    opened = PostgresDatabase(PostgresLink(PostgresLocation(new_database())), Signals())
    yield opened
    await opened.close()


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()

    def counting(name: str, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(self: Connection, sql: str, *args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return await original(self, sql, *args, **kwargs)

        return counted

    for name in ("fetch", "fetchrow", "fetchmany", "execute", "executemany"):
        monkeypatch.setattr(asyncpg.Connection, name, counting(name, getattr(asyncpg.Connection, name)))
    return counts


def fetch_one_unit(statement: Statement, **params: Any) -> Unit[Any]:
    return lambda tx: tx.one(statement, **params)


def fetch_all_unit(statement: Statement, **params: Any) -> Unit[Any]:
    return lambda tx: tx.all(statement, **params)


def run_unit(statement: Statement, **params: Any) -> Unit[Any]:
    return lambda tx: tx.run(statement, **params)


async def write_concurrently(database: PostgresDatabase, *units: Unit[Any]) -> list[Any]:
    """Write each unit in its own lane, all at the same time."""
    writes = (database.write(unit, lane=f"lane {lane_index}") for lane_index, unit in enumerate(units))
    return await asyncio.gather(*writes, return_exceptions=True)


async def names(database: PostgresDatabase) -> list[str]:
    return sorted(row["upstream"] for row in await database.quick_read(fetch_all_unit(NAMED, like="%")))


async def test_each_query_returns_its_own_rows_in_order(database: PostgresDatabase) -> None:
    for name in ("a/1", "a/2", "a/3", "b/1"):
        await database.write(run_unit(ADD, name=name))

    async def read_rows(tx: Tx, like: str) -> list[str]:
        first = await tx.one(NAMED, like=like)
        rows = [row["upstream"] for row in await tx.all(NAMED, like=like)]
        assert (first and first["upstream"]) == (rows[0] if rows else None)
        return rows

    units = [lambda tx, like=like: read_rows(tx, like) for like in ("a/%", "none", "b/%", "%1")]
    assert await write_concurrently(database, *units) == [["a/3", "a/2", "a/1"], [], ["b/1"], ["b/1", "a/1"]]


async def test_each_statement_returns_its_own_row_count(database: PostgresDatabase) -> None:
    for name in ("a/1", "a/2", "b/1"):
        await database.write(run_unit(ADD, name=name))
    touch_units = [run_unit(TOUCH, like=like) for like in ("a/%", "b/%", "c/%")]
    assert await write_concurrently(database, *touch_units) == [2, 1, 0]
    add_units = [run_unit(ADD_ONCE, name=name) for name in ("a/1", "d/1", "d/1", "e/1")]
    assert sorted(await write_concurrently(database, *add_units)) == [0, 0, 1, 1]


async def test_each_update_with_returning_gets_its_own_rows(database: PostgresDatabase) -> None:
    for name in ("a/1", "a/2", "b/1"):
        await database.write(run_unit(ADD, name=name))
    rename_units = [fetch_all_unit(RENAME, like=like, new=like.upper()) for like in ("a/%", "b/%", "c/%")]
    results = await write_concurrently(database, *rename_units)
    assert [{(row["upstream"], row["name"]) for row in rows} for rows in results] == [
        {("a/1", "A/%"), ("a/2", "A/%")},
        {("b/1", "B/%")},
        set(),
    ]


@pytest.mark.parametrize(
    "statement", [HELD, FOUND], ids=["rows that are locked", "a statement with a name in it"]
)
async def test_statements_of_other_shapes_return_their_own_rows_too(
    database: PostgresDatabase, statement: Statement
) -> None:
    for name in ("a/1", "a/2"):
        await database.write(run_unit(ADD, name=name))
    units = [fetch_one_unit(statement, name=name) for name in ("a/2", "a/1", "a/0")]
    assert [row and row["upstream"] for row in await write_concurrently(database, *units)] == [
        "a/2",
        "a/1",
        None,
    ]


async def test_units_of_a_lane_see_the_writes_of_earlier_units(database: PostgresDatabase) -> None:
    async def add_next(tx: Tx) -> int:
        number = len(await tx.all(NAMED, like="n/%"))
        await tx.run(ADD, name=f"n/{number}")
        return number

    other_writes = [database.write(run_unit(ADD, name=f"o/{n}"), lane=f"{n}") for n in range(5)]
    counting_writes = [database.write(add_next, lane="one") for _ in range(20)]
    assert await asyncio.gather(*counting_writes) == list(range(20))
    assert await asyncio.gather(*other_writes) == [1] * 5


async def test_thirty_units_with_equal_queries_need_as_many_round_trips_as_one(
    database: PostgresDatabase, round_trips: Counter[str]
) -> None:
    async def unit(tx: Tx, name: str) -> None:
        await tx.one(NAMED, like=name)
        await tx.run(ADD, name=name)
        await tx.many(TOUCH, [{"like": name}])

    await write_concurrently(database, lambda tx: unit(tx, "first"))
    round_trips_of_one = round_trips.total()
    round_trips.clear()
    await write_concurrently(database, *(lambda tx, n=n: unit(tx, f"n/{n}") for n in range(30)))
    assert (
        round_trips.total() <= 2 * round_trips_of_one + 2
    )  # two transactions may share them, each with one query for free lanes
    assert len(await names(database)) == 31


async def test_only_the_failed_units_of_a_batch_are_rolled_back(database: PostgresDatabase) -> None:
    async def unit(tx: Tx, name: str, by: int) -> str:
        await tx.run(ADD, name=name)
        await tx.one(BROKEN, by=by)
        if name == "c":
            raise NotFound("no")
        return name

    units = [
        lambda tx, name=name, by=by: unit(tx, name, by) for name, by in zip("abcd", (1, 0, 1, 1), strict=True)
    ]
    results = await write_concurrently(database, *units)
    assert [results[0], results[3]] == ["a", "d"]
    assert "division by zero" in str(results[1])
    assert isinstance(results[2], NotFound)
    assert await names(database) == ["a", "d"]


async def test_concurrent_quick_reads_share_round_trips_and_fail_alone(
    database: PostgresDatabase, round_trips: Counter[str]
) -> None:
    await database.write(run_unit(ADD, name="a"))
    round_trips.clear()
    reads = [database.quick_read(fetch_one_unit(BROKEN, by=by)) for by in (1, 1, 1, 1)]
    assert [row and row["part"] for row in await asyncio.gather(*reads)] == [1, 1, 1, 1]
    assert round_trips.total() <= 2
    reads_with_failure = [database.quick_read(fetch_one_unit(BROKEN, by=by)) for by in (1, 0, 1)]
    results = await asyncio.gather(*reads_with_failure, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["Record", "DivisionByZeroError", "Record"]


@pytest.mark.parametrize("seconds", [0, 1])
async def test_a_unit_that_awaits_anything_but_its_transaction_fails_alone(
    database: PostgresDatabase, seconds: float
) -> None:
    async def stray(tx: Tx) -> None:
        await tx.run(ADD, name="half")
        await asyncio.sleep(seconds)
        await tx.run(ADD, name="other half")

    results = await write_concurrently(database, stray, run_unit(ADD, name="a"))
    behind = database.write(run_unit(ADD, name="b"), lane="lane 0")
    assert isinstance(results[0], RuntimeError)
    assert (results[1], await behind) == (1, 1)
    assert await names(database) == ["a", "b"]


async def test_a_read_that_times_out_does_not_fail_the_others_of_its_batch() -> None:
    location = PostgresLocation(new_database(), timeouts=PostgresTimeouts(statement_ms=1_000))
    database = PostgresDatabase(PostgresLink(location), Signals())
    reads = (fetch_one_unit(SLOW), read_twice, read_twice, read_twice)
    results = await asyncio.gather(*map(database.quick_read, reads), return_exceptions=True)
    assert isinstance(results[0], StoreUnavailable)
    assert results[1:] == [1, 1, 1]
    await database.close()


async def read_twice(tx: Tx) -> int:
    await tx.one(BROKEN, by=1)
    row = await tx.one(BROKEN, by=1)
    return row["part"] if row else 0


@pytest.mark.parametrize("how", ["glance", "write"])
async def test_an_out_of_range_parameter_fails_only_its_own_unit(
    database: PostgresDatabase, how: str
) -> None:
    units = [fetch_one_unit(BROKEN, by=by) for by in (1, 1, 10**30, 1)]
    if how == "write":
        results = await write_concurrently(database, *units)
    else:
        results = await asyncio.gather(*(database.quick_read(item) for item in units), return_exceptions=True)
    assert [type(item).__name__ for item in results] == ["Record", "Record", "DataError", "Record"]
    assert await write_concurrently(database, run_unit(ADD, name="after")) == [1]


async def test_an_application_error_in_a_quick_read_fails_only_that_read(
    database: PostgresDatabase, round_trips: Counter[str]
) -> None:
    async def fails(tx: Tx) -> None:
        await tx.one(BROKEN, by=1)
        raise NotFound("no")

    await four_concurrent_reads(database)
    round_trips.clear()
    results = await asyncio.gather(
        database.quick_read(fails),
        *(database.quick_read(read_twice) for _ in range(3)),
        return_exceptions=True,
    )
    assert isinstance(results[0], NotFound)
    assert results[1:] == [1, 1, 1]
    assert round_trips.total() <= 8  # four concurrent reads, two queries each


async def four_concurrent_reads(database: PostgresDatabase) -> None:
    await asyncio.gather(*(database.quick_read(read_twice) for _ in range(4)))


@pytest.mark.parametrize(
    ("waiting", "begun"), [(_LANES_FOR_SECOND - 1, False), (_LANES_FOR_SECOND, True), (32, True)]
)
async def test_a_second_transaction_begins_when_enough_lanes_wait(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, waiting: int, begun: bool
) -> None:
    """The running transaction is not slow; with fewer waiting lanes, the writes wait for its end."""
    monkeypatch.setattr("crcr.record.store.postgres.database._SLOW_S", 60)
    held = await pause_before_commit(database, run_unit(ADD, name="held"), lane="x")
    writes = asyncio.gather(
        *(database.write(run_unit(ADD, name=f"{n}"), lane=f"lane {n}") for n in range(waiting))
    )
    await asyncio.sleep(0)
    assert database._committers.running == 1 + begun
    if begun:
        await asyncio.wait_for(writes, 20)
        assert not held.writing.done()
    await held.end()
    await asyncio.wait_for(writes, 20)
    assert len(await names(database)) == waiting + 1


async def test_no_second_transaction_begins_for_units_that_the_first_one_takes(
    database: PostgresDatabase,
) -> None:
    writes = [
        asyncio.create_task(database.write(run_unit(ADD, name=f"{n}"), lane=f"lane {n}")) for n in range(32)
    ]
    await asyncio.sleep(0)
    assert database._committers.running == 1
    await asyncio.wait_for(asyncio.gather(*writes), 20)


# No caller waits forever


class LinkThatFailsOnce(PostgresLink):
    """The server is away for the first connection."""

    has_failed = False

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        if not self.has_failed:
            self.has_failed = True
            raise StoreUnavailable("the server is away")
        async with super().writing() as connection:
            yield connection


async def test_writes_succeed_again_after_a_failed_connection() -> None:
    database = PostgresDatabase(LinkThatFailsOnce(PostgresLocation(new_database())), Signals())
    with pytest.raises(StoreUnavailable):
        await database.write(run_unit(ADD, name="refused"), lane="a")
    await asyncio.wait_for(database.write(run_unit(ADD, name="taken"), lane="a"), 20)
    assert await names(database) == ["taken"]
    await database.close()


async def test_when_the_server_refuses_every_write_every_caller_gets_the_error(
    database: PostgresDatabase,
) -> None:
    """The role lacks the permission for the first statement of every write: not an outage, and a retry cannot help."""
    url = database._link.location.url
    run_on(url, "CREATE ROLE stranger LOGIN")
    try:
        stranger = PostgresDatabase(
            PostgresLink(PostgresLocation(url.replace("crcr@", "stranger@"))), Signals()
        )
        writes = [stranger.write(run_unit(ADD, name=f"{n}"), lane=f"{n}") for n in range(5)]
        results = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), 20)
        assert {type(result) for result in results} == {asyncpg.InsufficientPrivilegeError}
        await asyncio.wait_for(stranger.close(), 20)
    finally:
        run_on(url, "DROP ROLE stranger")


async def test_writes_queued_behind_a_cancelled_write_fail_at_once(database: PostgresDatabase) -> None:
    held = await pause_before_commit(database, empty_unit, lane="x")
    queued = asyncio.create_task(database.write(run_unit(ADD, name="behind"), lane="x"))
    await asyncio.sleep(0)
    for task in database._committers._tasks:
        task.cancel()
    results = await asyncio.wait_for(asyncio.gather(held.writing, queued, return_exceptions=True), 20)
    assert {type(result) for result in results} == {StoreUnavailable}
    await held.holder.close()


async def test_cancelling_the_wait_for_running_commits_cancels_no_write(database: PostgresDatabase) -> None:
    held = await pause_before_commit(database, run_unit(ADD, name="a"), lane="x")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(database._committers.join(), 0.05)
    await held.end()
    assert await names(database) == ["a"]
