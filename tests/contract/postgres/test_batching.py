"""Batched units on one connection: each gets the same result as alone, in far fewer round trips."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
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
def journeys(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    made: Counter[str] = Counter()

    def counting(name: str, way: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def go(self: Connection, sql: str, *args: Any, **more: Any) -> Any:
            made[name] += 1
            return await way(self, sql, *args, **more)

        return go

    for name in ("fetch", "fetchrow", "fetchmany", "execute", "executemany"):
        monkeypatch.setattr(asyncpg.Connection, name, counting(name, getattr(asyncpg.Connection, name)))
    return made


def asking_one(statement: Statement, **params: Any) -> Unit[Any]:
    return lambda tx: tx.one(statement, **params)


def asking_all(statement: Statement, **params: Any) -> Unit[Any]:
    return lambda tx: tx.all(statement, **params)


def asking_run(statement: Statement, **params: Any) -> Unit[Any]:
    return lambda tx: tx.run(statement, **params)


async def together(database: PostgresDatabase, *units: Unit[Any]) -> list[Any]:
    """Each in a lane of its own, waiting at the same moment."""
    writes = (database.write(unit, lane=f"lane {number}") for number, unit in enumerate(units))
    return await asyncio.gather(*writes, return_exceptions=True)


async def names(database: PostgresDatabase) -> list[str]:
    return sorted(row["upstream"] for row in await database.quick_read(asking_all(NAMED, like="%")))


async def test_each_is_given_its_own_rows_in_their_order(database: PostgresDatabase) -> None:
    for name in ("a/1", "a/2", "a/3", "b/1"):
        await database.write(asking_run(ADD, name=name))

    async def ask(tx: Tx, like: str) -> list[str]:
        first = await tx.one(NAMED, like=like)
        rows = [row["upstream"] for row in await tx.all(NAMED, like=like)]
        assert (first and first["upstream"]) == (rows[0] if rows else None)
        return rows

    asked = [lambda tx, like=like: ask(tx, like) for like in ("a/%", "none", "b/%", "%1")]
    assert await together(database, *asked) == [["a/3", "a/2", "a/1"], [], ["b/1"], ["b/1", "a/1"]]


async def test_each_is_told_how_many_rows_it_touched(database: PostgresDatabase) -> None:
    for name in ("a/1", "a/2", "b/1"):
        await database.write(asking_run(ADD, name=name))
    touching = [asking_run(TOUCH, like=like) for like in ("a/%", "b/%", "c/%")]
    assert await together(database, *touching) == [2, 1, 0]
    adding = [asking_run(ADD_ONCE, name=name) for name in ("a/1", "d/1", "d/1", "e/1")]
    assert sorted(await together(database, *adding)) == [0, 0, 1, 1]


async def test_what_changes_rows_and_returns_them_is_told_apart_as_well(database: PostgresDatabase) -> None:
    for name in ("a/1", "a/2", "b/1"):
        await database.write(asking_run(ADD, name=name))
    renaming = [asking_all(RENAME, like=like, new=like.upper()) for like in ("a/%", "b/%", "c/%")]
    found = await together(database, *renaming)
    assert [{(row["upstream"], row["name"]) for row in rows} for rows in found] == [
        {("a/1", "A/%"), ("a/2", "A/%")},
        {("b/1", "B/%")},
        set(),
    ]


@pytest.mark.parametrize(
    "statement", [HELD, FOUND], ids=["rows that are locked", "a statement with a name in it"]
)
async def test_statements_of_other_shapes_are_answered_too(
    database: PostgresDatabase, statement: Statement
) -> None:
    for name in ("a/1", "a/2"):
        await database.write(asking_run(ADD, name=name))
    asked = [asking_one(statement, name=name) for name in ("a/2", "a/1", "a/0")]
    assert [row and row["upstream"] for row in await together(database, *asked)] == ["a/2", "a/1", None]


async def test_the_units_of_a_lane_see_what_those_before_them_did(database: PostgresDatabase) -> None:
    async def add_next(tx: Tx) -> int:
        number = len(await tx.all(NAMED, like="n/%"))
        await tx.run(ADD, name=f"n/{number}")
        return number

    lanes = [database.write(asking_run(ADD, name=f"o/{n}"), lane=f"{n}") for n in range(5)]
    counted = [database.write(add_next, lane="one") for _ in range(20)]
    assert await asyncio.gather(*counted) == list(range(20))
    assert await asyncio.gather(*lanes) == [1] * 5


async def test_thirty_units_that_ask_alike_make_as_many_journeys_as_one(
    database: PostgresDatabase, journeys: Counter[str]
) -> None:
    async def unit(tx: Tx, name: str) -> None:
        await tx.one(NAMED, like=name)
        await tx.run(ADD, name=name)
        await tx.many(TOUCH, [{"like": name}])

    await together(database, lambda tx: unit(tx, "first"))
    alone = journeys.total()
    journeys.clear()
    await together(database, *(lambda tx, n=n: unit(tx, f"n/{n}") for n in range(30)))
    assert (
        journeys.total() <= 2 * alone + 2
    )  # two transactions may share them, each with one look for free lanes
    assert len(await names(database)) == 31


async def test_of_units_in_step_only_the_one_that_failed_is_undone(database: PostgresDatabase) -> None:
    async def unit(tx: Tx, name: str, by: int) -> str:
        await tx.run(ADD, name=name)
        await tx.one(BROKEN, by=by)
        if name == "c":
            raise NotFound("no")
        return name

    units = [
        lambda tx, name=name, by=by: unit(tx, name, by) for name, by in zip("abcd", (1, 0, 1, 1), strict=True)
    ]
    found = await together(database, *units)
    assert [found[0], found[3]] == ["a", "d"]
    assert "division by zero" in str(found[1])
    assert isinstance(found[2], NotFound)
    assert await names(database) == ["a", "d"]


async def test_glances_at_the_same_moment_share_their_journeys_and_fail_alone(
    database: PostgresDatabase, journeys: Counter[str]
) -> None:
    await database.write(asking_run(ADD, name="a"))
    journeys.clear()
    asked = [database.quick_read(asking_one(BROKEN, by=by)) for by in (1, 1, 1, 1)]
    assert [row and row["part"] for row in await asyncio.gather(*asked)] == [1, 1, 1, 1]
    assert journeys.total() <= 2
    failing = [database.quick_read(asking_one(BROKEN, by=by)) for by in (1, 0, 1)]
    found = await asyncio.gather(*failing, return_exceptions=True)
    assert [type(each).__name__ for each in found] == ["Record", "DivisionByZeroError", "Record"]


@pytest.mark.parametrize("seconds", [0, 1])
async def test_a_unit_may_await_nothing_but_its_transaction(
    database: PostgresDatabase, seconds: float
) -> None:
    async def stray(tx: Tx) -> None:
        await tx.run(ADD, name="half")
        await asyncio.sleep(seconds)
        await tx.run(ADD, name="other half")

    found = await together(database, stray, asking_run(ADD, name="a"))
    behind = database.write(asking_run(ADD, name="b"), lane="lane 0")
    assert isinstance(found[0], RuntimeError)
    assert (found[1], await behind) == (1, 1)
    assert await names(database) == ["a", "b"]


async def test_a_glance_that_takes_too_long_costs_nobody_else_an_answer() -> None:
    place = PostgresLocation(new_database(), timeouts=PostgresTimeouts(statement_ms=1_000))
    database = PostgresDatabase(PostgresLink(place), Signals())
    looks = (asking_one(SLOW), twice, twice, twice)
    found = await asyncio.gather(*map(database.quick_read, looks), return_exceptions=True)
    assert isinstance(found[0], StoreUnavailable)
    assert found[1:] == [1, 1, 1]
    await database.close()


async def twice(tx: Tx) -> int:
    await tx.one(BROKEN, by=1)
    row = await tx.one(BROKEN, by=1)
    return row["part"] if row else 0


@pytest.mark.parametrize("how", ["glance", "write"])
async def test_a_number_that_no_column_can_hold_is_its_askers_trouble_alone(
    database: PostgresDatabase, how: str
) -> None:
    asked = [asking_one(BROKEN, by=by) for by in (1, 1, 10**30, 1)]
    if how == "write":
        found = await together(database, *asked)
    else:
        found = await asyncio.gather(*(database.quick_read(each) for each in asked), return_exceptions=True)
    assert [type(each).__name__ for each in found] == ["Record", "Record", "DataError", "Record"]
    assert await together(database, asking_run(ADD, name="after")) == [1]


async def test_an_error_of_ours_in_a_glance_is_told_to_its_asker_alone(
    database: PostgresDatabase, journeys: Counter[str]
) -> None:
    async def fails(tx: Tx) -> None:
        await tx.one(BROKEN, by=1)
        raise NotFound("no")

    await twice_at_once(database)
    journeys.clear()
    found = await asyncio.gather(
        database.quick_read(fails), *(database.quick_read(twice) for _ in range(3)), return_exceptions=True
    )
    assert isinstance(found[0], NotFound)
    assert found[1:] == [1, 1, 1]
    assert journeys.total() <= 8  # four may look at once, twice each


async def twice_at_once(database: PostgresDatabase) -> None:
    await asyncio.gather(*(database.quick_read(twice) for _ in range(4)))


@pytest.mark.parametrize(
    ("waiting", "begun"), [(_LANES_FOR_SECOND - 1, False), (_LANES_FOR_SECOND, True), (32, True)]
)
async def test_a_second_transaction_begins_when_enough_lanes_wait(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, waiting: int, begun: bool
) -> None:
    """Beside one that is not slow; fewer lanes wait for its end."""
    monkeypatch.setattr("crcr.record.store.postgres.database._SLOW_S", 60)
    held = await pause_before_commit(database, asking_run(ADD, name="held"), lane="x")
    writes = asyncio.gather(
        *(database.write(asking_run(ADD, name=f"{n}"), lane=f"lane {n}") for n in range(waiting))
    )
    await asyncio.sleep(0)
    assert database._committers.running == 1 + begun
    if begun:
        await asyncio.wait_for(writes, 20)
        assert not held.writing.done()
    await held.end()
    await asyncio.wait_for(writes, 20)
    assert len(await names(database)) == waiting + 1


# Nobody waits for ever


async def test_when_the_server_refuses_every_line_is_told(database: PostgresDatabase) -> None:
    """A role that may not do what every write begins with: no outage, and nothing that others could heal."""
    url = database._link.location.url
    run_on(url, "CREATE ROLE stranger LOGIN")
    try:
        stranger = PostgresDatabase(
            PostgresLink(PostgresLocation(url.replace("crcr@", "stranger@"))), Signals()
        )
        writes = [stranger.write(asking_run(ADD, name=f"{n}"), lane=f"{n}") for n in range(5)]
        found = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), 20)
        assert {type(each) for each in found} == {asyncpg.InsufficientPrivilegeError}
        await asyncio.wait_for(stranger.close(), 20)
    finally:
        run_on(url, "DROP ROLE stranger")


async def test_who_waits_behind_a_write_that_is_broken_off_is_told(database: PostgresDatabase) -> None:
    held = await pause_before_commit(database, empty_unit, lane="x")
    behind = asyncio.create_task(database.write(asking_run(ADD, name="behind"), lane="x"))
    await asyncio.sleep(0)
    for task in database._committers._tasks:
        task.cancel()
    found = await asyncio.wait_for(asyncio.gather(held.writing, behind, return_exceptions=True), 20)
    assert {type(each) for each in found} == {StoreUnavailable}
    await held.holder.close()


async def test_whoever_gives_up_waiting_for_the_end_breaks_off_nobody(database: PostgresDatabase) -> None:
    held = await pause_before_commit(database, asking_run(ADD, name="a"), lane="x")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(database._committers.join(), 0.05)
    await held.end()
    assert await names(database) == ["a"]
