"""Writes without a result are deferred and combined, with no visible difference for the unit, its lane or the caller."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text

from crcr.record.statistics.sums import _HOURS, _JOB_DAYS
from crcr.record.store.database import PostgresLocation, Tx, Unit
from crcr.record.store.postgres.combined_writes import written_table
from crcr.record.store.postgres.connection import Connection, PostgresLink
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.postgres.lane_locks import lane_number
from crcr.record.store.postgres.parameter_arrays import distinct_keys, join_texts, key_parameters, renumbered
from crcr.record.store.signals import Signals
from crcr.record.store.statement import Statement
from support.services.postgres import new_database, run_on
from support.stores.race_harness import empty_unit

ADD = Statement(text("INSERT INTO upstreams (upstream, name, created_at) VALUES (:key, :name, 0)"))
ADD_ONCE = Statement(
    text("INSERT INTO upstreams (upstream, name, created_at) VALUES (:key, :name, 0) ON CONFLICT DO NOTHING")
)
RENAME = Statement(text("UPDATE upstreams SET name = :name WHERE upstream = :key AND name <> :name"))
ACT = Statement(
    text(
        "INSERT INTO audit (upstream, at, who, act, subject, detail) VALUES (:key, 0, 'ann', :name, 's', '{}')"
    )
)
NAME = Statement(text("SELECT name FROM upstreams WHERE upstream = :key"))
DAY = ("up", "owner/one", "pull", 0, "ci.yml", "job", "CI")


@pytest.fixture
async def database() -> AsyncIterator[PostgresDatabase]:
    opened = PostgresDatabase(PostgresLink(PostgresLocation(new_database())), Signals())
    yield opened
    await opened.close()


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of executed statements by their first word."""
    counts: Counter[str] = Counter()

    def counting(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(self: Connection, sql: str, *args: Any, **kwargs: Any) -> Any:
            counts[sql.split(maxsplit=1)[0].rstrip(";")] += 1
            return await original(self, sql, *args, **kwargs)

        return counted

    for name in ("fetch", "fetchrow", "fetchmany", "execute", "executemany"):
        monkeypatch.setattr(asyncpg.Connection, name, counting(getattr(asyncpg.Connection, name)))
    return counts


def rows(database: PostgresDatabase, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in run_on(database._link.location.url, sql)]


def names(database: PostgresDatabase) -> dict[str, str]:
    return dict(rows(database, "SELECT upstream, name FROM upstreams"))


async def write_concurrently(database: PostgresDatabase, *units: Unit[Any]) -> list[Any]:
    """Write each unit in its own lane, all at the same time."""
    writes = (database.write(unit, lane=f"lane {lane_index}") for lane_index, unit in enumerate(units))
    return await asyncio.gather(*writes, return_exceptions=True)


def add_and_act(key: str) -> Unit[None]:
    async def unit(tx: Tx) -> None:
        await tx.many(ADD, [{"key": key, "name": key.upper()}])
        await tx.many(ACT, [{"key": key, "name": "added"}])
        tx.add_up(_JOB_DAYS, DAY, {"success": 1, "execution_sum_s": 0.1})

    return unit


async def test_the_last_writes_of_all_units_are_one_statement(
    database: PostgresDatabase, executed: Counter[str]
) -> None:
    await database.write(empty_unit)  # a new connection prepares its locks
    executed.clear()
    await write_concurrently(database, *(add_and_act(f"n/{number}") for number in range(10)))
    groups = executed["COMMIT"]
    assert executed == {"BEGIN": groups, "WITH": groups, "COMMIT": groups} | (
        {"SELECT": executed["SELECT"]} if executed["SELECT"] else {}
    )
    assert names(database) == {f"n/{number}": f"N/{number}" for number in range(10)}
    assert rows(database, "SELECT count(*) FROM audit") == [(10,)]
    assert rows(database, "SELECT success, failure, workflow_name FROM job_days") == [(10, 0, "CI")]


async def test_a_unit_and_later_units_of_its_lane_see_its_writes(database: PostgresDatabase) -> None:
    async def add_next(tx: Tx) -> str:
        last = await tx.one(NAME, key="a")
        if last is None:
            await tx.many(ADD, [{"key": "a", "name": "0"}])
        else:
            await tx.many(RENAME, [{"key": "a", "name": str(int(last["name"]) + 1)}])
        written = await tx.one(NAME, key="a")
        return written["name"] if written else ""

    counting_writes = [database.write(add_next, lane="one") for _ in range(8)]
    other_writes = [database.write(add_and_act(f"o/{number}"), lane=f"{number}") for number in range(4)]
    assert await asyncio.gather(*counting_writes) == [str(number) for number in range(8)]
    await asyncio.gather(*other_writes)
    assert len(names(database)) == 5


async def test_writes_of_one_table_keep_their_order(database: PostgresDatabase) -> None:
    async def unit(tx: Tx, key: str) -> None:
        await tx.many(ADD_ONCE, [{"key": key, "name": "z first"}])
        await tx.many(ADD_ONCE, [{"key": key, "name": "a second"}])
        await tx.many(RENAME, [{"key": key, "name": "y third"}])
        await tx.many(RENAME, [{"key": key, "name": "b fourth"}])

    await write_concurrently(database, *(lambda tx, key=key: unit(tx, key) for key in "abc"))
    assert names(database) == dict.fromkeys("abc", "b fourth")


async def test_an_update_by_key_changes_each_row_by_its_own_set(database: PostgresDatabase) -> None:
    await write_concurrently(database, *(add_and_act(key) for key in "abcd"))
    rename_units = [
        lambda tx, key=key: tx.many(RENAME, [{"key": key, "name": f"{key} now"}])
        for key in ("a", "b", "none")
    ]
    await write_concurrently(database, *rename_units)
    assert names(database) == {"a": "a now", "b": "b now", "c": "C", "d": "D"}
    await database.write(
        lambda tx: tx.many(RENAME, [{"key": "a", "name": "then"}, {"key": "a", "name": "at last"}]), lane="a"
    )
    assert names(database)["a"] == "at last"


@pytest.mark.parametrize("number", [1, 5])
@pytest.mark.parametrize(
    "value", ["", "\x1f", "\x1e", "a\x1fb", "a\x1e\x1eb", "é 漢 \U0001f600", "{a,NULL}", "NULL", "\\x1f"]
)
async def test_any_text_is_read_back_unchanged(database: PostgresDatabase, value: str, number: int) -> None:
    """The texts of several units are sent as one string with separators."""
    keys = [f"{value}{index}" if index else value for index in range(number)]
    writes = [lambda tx, key=key: tx.many(ADD, [{"key": key, "name": value}]) for key in keys]
    audit_write = [lambda tx: tx.many(ACT, [{"key": value, "name": value}])]
    assert await write_concurrently(database, *writes, *audit_write) == [None] * (number + 1)
    results = await write_concurrently(database, *(lambda tx, key=key: tx.one(NAME, key=key) for key in keys))
    assert [row["name"] for row in results] == [value] * number
    assert names(database) == dict.fromkeys(keys, value)
    assert rows(database, "SELECT upstream, act FROM audit") == [(value, value)]


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        (["a", "b"], "a\x1fb"),
        (["a", None, ""], "a\x1f\x1e\x1f"),
        (["", ""], "\x1f"),
        ([None], "\x1e"),
        ([""], None),
        (["a\x1fb", "c"], None),
        (["\x1e", None], None),
        (["a", 5], None),
    ],
)
def test_texts_are_joined_only_when_they_can_be_split_again(texts: list[Any], joined: str | None) -> None:
    assert join_texts(texts) == joined


async def test_lanes_with_the_same_number_share_each_round_trip(
    database: PostgresDatabase, executed: Counter[str]
) -> None:
    lanes = [lane for lane in map(str, range(5_000)) if lane_number(lane) == lane_number("0")][:4]
    assert len(lanes) == 4
    await database.write(empty_unit)  # a new connection prepares its locks
    executed.clear()

    async def unit(key: str, tx: Tx) -> None:
        assert await tx.one(NAME, key=key) is None
        await tx.many(ADD, [{"key": key, "name": key}])

    await asyncio.gather(*(database.write(partial(unit, lane), lane=lane) for lane in lanes))
    assert executed == {"BEGIN": 1, "SELECT": 1, "INSERT": 1, "COMMIT": 1}
    assert sorted(names(database)) == sorted(lanes)


async def test_a_deferred_write_that_fails_fails_only_its_own_unit(database: PostgresDatabase) -> None:
    await database.write(add_and_act("known"))
    results = await write_concurrently(database, add_and_act("a"), add_and_act("known"), add_and_act("b"))
    assert [type(result).__name__ for result in results] == ["NoneType", "UniqueViolationError", "NoneType"]
    assert sorted(names(database)) == ["a", "b", "known"]
    assert rows(database, "SELECT count(*) FROM audit") == [(3,)]
    assert rows(database, "SELECT success FROM job_days") == [(3,)]


async def test_sums_with_any_text_as_key_are_stored_exactly_with_minimum_and_maximum(
    database: PostgresDatabase,
) -> None:
    hostile = 'quote " and \\ and é and 漢 and \U0001f600 and a NUL \0 and \ud800'
    key = ("up", hostile, "pull", 0)

    def adding(low: float | None, queue_s: float) -> Unit[None]:
        async def unit(tx: Tx) -> None:
            extremes = {} if low is None else {"queue_low_s": low, "queue_high_s": low}
            tx.add_up(_HOURS, key, {"success": 1, "queue_sum_s": queue_s, **extremes})

        return unit

    for low, queue_s in ((None, 0.1), (5.5, 0.2), (2.25, 1e-7), (None, 1e15)):
        await database.write(adding(low, queue_s))
    [(downstream, success, failure, queue_sum_s, *extremes)] = rows(
        database, "SELECT downstream, success, failure, queue_sum_s, queue_low_s, queue_high_s FROM hours"
    )
    assert downstream == hostile.replace("\0", "\ufffd").replace("\ud800", "\ufffd")
    assert (success, failure, extremes) == (4, 0, [2.25, 5.5])
    assert queue_sum_s == 0.1 + 0.2 + 1e-7 + 1e15


@pytest.mark.parametrize(
    ("sql", "table"),
    [
        ("INSERT INTO a (x) VALUES ($1)", "a"),
        ("INSERT INTO a (x) VALUES ($1) ON CONFLICT DO NOTHING", "a"),
        ("INSERT INTO a (x) VALUES ((SELECT max(x) FROM b))", None),
        ("INSERT INTO a (x) SELECT $1 WHERE EXISTS (SELECT 1 FROM b)", None),
        ("INSERT INTO a (x) VALUES ($1) RETURNING x", None),
        ("UPDATE a SET x = $1 WHERE y = $2 AND z IS NULL", "a"),
        ("UPDATE a SET x = $1 WHERE y = $2 OR z = $3", None),
        ("UPDATE a SET x = $1 WHERE y > $2", None),
        ("UPDATE a SET x = $1 WHERE y IN ($2, $3)", None),
        ("UPDATE a SET x = b.x FROM b WHERE y = $1", None),
        ("UPDATE a SET x = $1", None),
        ("DELETE FROM a WHERE x = $1", None),
    ],
)
def test_only_writes_that_read_no_other_rows_are_deferred(sql: str, table: str | None) -> None:
    assert written_table(sql) == table


def test_parameter_sets_that_may_update_the_same_row_are_detected() -> None:
    sql = "UPDATE a SET x = $1 WHERE a.y = $2::VARCHAR AND z = $3 AND w != $4"
    assert key_parameters(sql) == (1, 2)
    assert distinct_keys(sql, [[0, "y", 1, 0], [0, "y", 2, 0]])
    assert not distinct_keys(sql, [[1, "y", 1, 3], [2, "y", 1, 4]])


def test_parameters_of_combined_statements_are_renumbered() -> None:
    assert renumbered(["a $1 $2 $1", "b", "c $1 $12"]) == ["a $1 $2 $1", "b", "c $3 $14"]
