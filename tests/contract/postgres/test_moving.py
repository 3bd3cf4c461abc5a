"""A database moves from SQLite to PostgreSQL with every row unchanged, or not at all."""

import asyncio
import signal
import sqlite3
import tracemalloc
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import Column, LargeBinary, MetaData, Table, Text

from crcr.errors import CrcrError, NotFound, NotPossible, StoreUnavailable
from crcr.record.migrations.run import revision
from crcr.record.schema.all_tables import metadata
from crcr.record.sqlite_to_postgres.copy import CopyProgress, CopyResult, move
from crcr.record.sqlite_to_postgres.rows import RowConverter, TableChecksum
from crcr.record.store.database import PostgresLocation
from crcr.record.store.signals import Signals
from crcr.record.store.sqlite.database import SqliteDatabase
from support.data.every_table import (
    HOSTILE,
    execute_sql,
    filled_database,
    postgresql_rows,
    row_counts,
    sqlite_rows,
)
from support.process import crcr
from support.services.postgres import cluster, new_database, run_on

SERIALS = {
    table.name: table.autoincrement_column.name
    for table in metadata.sorted_tables
    if table.autoincrement_column is not None
}


async def move_database(path: Path, url: str) -> CopyResult:
    return await move(path, PostgresLocation(url))


async def refusal_text(path: Path, url: str, kind: type[CrcrError] = NotPossible) -> str:
    """The text of the refusal; asserts that nothing was written."""
    before = row_counts(url)
    with pytest.raises(kind) as fault:
        await move_database(path, url)
    assert row_counts(url) == before
    return f"{fault.value.detail} {fault.value.hint}"


async def test_every_row_of_every_table_is_moved_unchanged(tmp_path: Path) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database(empty=True)
    done = await move_database(path, url)
    for table in metadata.tables:
        assert postgresql_rows(url, table) == sqlite_rows(path, table), table
    assert {table_copy.name: table_copy.rows for table_copy in done.tables} == dict.fromkeys(
        metadata.tables, 7
    )
    assert (done.rows, done.replaced, done.left) == (7 * len(metadata.tables), 0, ())


async def test_the_sqlite_file_is_not_changed(tmp_path: Path) -> None:
    path = filled_database(tmp_path / "crcr.db")
    before = path.read_bytes()
    await move_database(path, new_database())
    assert path.read_bytes() == before


async def test_rows_in_the_write_ahead_log_of_a_killed_relay_are_moved(tmp_path: Path) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database()
    killed = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('PRAGMA journal_mode=WAL');"
        "c.execute('PRAGMA wal_autocheckpoint=0'); c.execute('UPDATE upstreams SET name = 2'); c.commit(); os._exit(9)"
    )
    process = await asyncio.create_subprocess_exec("python3", "-c", killed, str(path))
    assert await process.wait() == 9
    assert path.with_name("crcr.db-wal").stat().st_size > 0
    await move_database(path, url)
    assert {row["name"] for row in postgresql_rows(url, "upstreams")} == {"2"}


async def test_an_empty_installation_moves(tmp_path: Path) -> None:
    done = await move_database(filled_database(tmp_path / "crcr.db", rows=0), new_database(empty=True))
    assert done.rows == 0


async def test_a_nul_becomes_a_replacement_character_and_is_counted(tmp_path: Path) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database()
    execute_sql(path, "UPDATE pulls SET title = ?, labels = ? WHERE number = 1", "a\0b\0", "\0")
    done = await move_database(path, url)
    [row] = run_on(url, "SELECT title, labels FROM pulls WHERE number = 1")
    assert row == {"title": "a\ufffdb\ufffd", "labels": "\ufffd"}
    assert {table_copy.name: table_copy.replaced for table_copy in done.tables if table_copy.replaced} == {
        "pulls": 2
    }


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("merged = 'text'", "merged holds text where a whole number belongs"),
        ("merged = 40000", "merged holds a whole number that is out of its range"),
        ("merged = 1.5", "merged holds a broken number where a whole number belongs"),
        ("merged = x'00'", "merged holds bytes where a whole number belongs"),
        ("title = x'00'", "title holds bytes where text belongs"),
        ("title = CAST(x'61ff' AS TEXT)", "title holds text that is not UTF-8"),
        ("merged = 'a', title = x'00'", "title holds bytes where text belongs; merged holds text"),
    ],
)
async def test_a_row_that_postgresql_cannot_hold_stops_the_move_and_is_named_by_its_key(
    tmp_path: Path, value: str, words: str
) -> None:
    path = filled_database(tmp_path / "crcr.db")
    execute_sql(path, f"UPDATE pulls SET {value} WHERE number = 3")  # noqa: S608
    message = await refusal_text(path, new_database())
    assert words in message
    assert "a row of pulls (upstream " in message
    assert "number 3)" in message


async def test_numbers_texts_and_bytes_of_the_wrong_type_are_refused_with_their_own_words(
    tmp_path: Path,
) -> None:
    for sql, words in (
        ("UPDATE deliveries SET number = 3000000000", "number holds a whole number that is out of its range"),
        ("UPDATE deliveries SET body = 'text'", "body holds text where bytes belongs"),
        ("UPDATE jobs SET queue_s = 'soon'", "queue_s holds text where a number belongs"),
    ):
        path = filled_database(tmp_path / f"{len(sql)}.db", rows=1)
        execute_sql(path, sql)
        assert words in await refusal_text(path, new_database())


def test_a_null_in_a_not_null_column_is_refused() -> None:
    table = Table(
        "things",
        MetaData(),
        Column("name", Text, primary_key=True),
        Column("body", LargeBinary, nullable=False),
    )
    with pytest.raises(NotPossible, match=r"things \(name 'a'\).*body holds nothing where a value belongs"):
        list(RowConverter(table).convert(iter([("a", None)])))


def test_a_table_checksum_ignores_the_order_of_rows_and_nothing_else() -> None:
    def checksum_of(*rows: tuple[object, ...]) -> str:
        checksum = TableChecksum()
        for row in rows:
            checksum.add(row)
        return checksum.checksum

    assert checksum_of((1, "a"), (2, "b")) == checksum_of((2, "b"), (1, "a"))
    others = [
        ((1, "a"), (2, None)),
        ((1, "b"), (2, "a")),
        ((1, "a"), (2, b"b")),
        ((1, "a"), (2.0, "b")),
        ((1, "a"),),
    ]
    assert checksum_of((1, "a"), (2, "b")) not in {checksum_of(*rows) for rows in others}
    assert checksum_of((1, "a"), (1, "a")) != checksum_of()


async def test_a_target_with_rows_is_refused(tmp_path: Path) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database()
    run_on(url, "INSERT INTO watermarks (name, at) VALUES ('here', 1)")
    assert "the target is not empty: watermarks holds rows" in await refusal_text(path, url)
    assert row_counts(url) == {"watermarks": 1}


async def test_moving_twice_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database()
    await move_database(path, url)
    assert "not empty" in await refusal_text(path, url)


async def test_a_target_in_another_encoding_is_refused(tmp_path: Path) -> None:
    cluster()
    run_on(
        cluster().admin_url,
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    )
    url = cluster().url("latin")
    assert "encoding is LATIN1" in await refusal_text(filled_database(tmp_path / "crcr.db"), url)
    assert revision(PostgresLocation(url)) is None


async def test_a_database_with_the_schema_of_another_release_is_not_moved(tmp_path: Path) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database(empty=True)
    execute_sql(path, "UPDATE alembic_version SET version_num = '0003'")
    assert "schema 0003" in await refusal_text(path, url)
    execute_sql(path, "DROP TABLE alembic_version")
    assert "not a database of crcr" in await refusal_text(path, url)
    assert revision(PostgresLocation(url)) is None


async def test_a_missing_file_or_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    assert "there is no database" in await refusal_text(tmp_path / "none.db", new_database(), NotFound)
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "letter.db").write_text("dear grandmother\n" * 400)
    assert "cannot be read: file is not a database" in await refusal_text(
        tmp_path / "letter.db", new_database(), StoreUnavailable
    )


async def test_the_error_about_an_unreachable_target_does_not_contain_its_password(tmp_path: Path) -> None:
    path = filled_database(tmp_path / "crcr.db")
    with pytest.raises(StoreUnavailable) as fault:
        await move_database(path, "postgresql://crcr:hush-hush@127.0.0.1:9/crcr")
    assert "hush" not in f"{fault.value.detail} {fault.value.hint} {fault.value!r}"
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await move_database(path, cluster().url("nowhere"))


async def test_a_file_that_a_relay_has_open_is_not_moved(tmp_path: Path) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database()
    relay = SqliteDatabase(path, Signals())
    try:
        assert "is in use" in await refusal_text(path, url)
    finally:
        await relay.close()
    assert (await move_database(path, url)).rows


async def test_the_file_is_locked_against_writes_during_the_move(tmp_path: Path) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database()
    await SqliteDatabase(path, Signals()).close()  # it now has a write-ahead log, like a relay's database
    errors: set[str] = set()

    def write(_: CopyProgress) -> None:
        try:
            with closing(sqlite3.connect(path, timeout=0)) as connection, connection:
                connection.execute("DELETE FROM audit")
        except sqlite3.OperationalError as fault:
            errors.add(str(fault))

    await move(path, PostgresLocation(url), write)
    assert errors == {"database is locked"}
    assert len(sqlite_rows(path, "audit")) == 7


async def test_sequences_continue_after_the_highest_number_ever_assigned(tmp_path: Path) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database()
    assert {"effects", "changes", "audit", "checks", "refusals", "waivers"} <= set(SERIALS)
    for table in SERIALS:
        execute_sql(path, "UPDATE sqlite_sequence SET seq = 1000 WHERE name = ?", table)
    execute_sql(path, "DELETE FROM waivers")
    execute_sql(path, "DELETE FROM sqlite_sequence WHERE name = 'checks'")
    await move_database(path, url)
    expected = {**dict.fromkeys(SERIALS, 1001), "checks": 8}
    assert {table: next_number(url, table) for table in SERIALS} == expected


async def test_a_failed_move_leaves_the_sequences_unchanged(tmp_path: Path) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database()
    execute_sql(path, "UPDATE watermarks SET at = 'never'")  # the last of the tables
    await refusal_text(path, url)
    assert {next_number(url, table) for table in SERIALS} == {1}


def next_number(url: str, table: str) -> int:
    [row] = run_on(url, f"SELECT nextval(pg_get_serial_sequence('{table}', '{SERIALS[table]}')) AS n")
    return int(row["n"])


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("NEW.detail = 'other'; RETURN NEW;", "the rows of audit arrived changed"),
        ("RETURN NULL;", "7 were counted, 7 were read, 0 arrived"),
    ],
)
async def test_rows_that_arrive_changed_or_not_at_all_undo_the_move(
    tmp_path: Path, act: str, words: str
) -> None:
    path, url = filled_database(tmp_path / "crcr.db"), new_database()
    run_on(url, f"CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {act} END $$")
    run_on(url, "CREATE TRIGGER meddle BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION meddle()")
    assert words in await refusal_text(path, url)


async def test_a_cancelled_move_leaves_no_rows(tmp_path: Path) -> None:
    path, url, steps = filled_database(tmp_path / "crcr.db"), new_database(), count()

    def stop(_: CopyProgress) -> None:
        if next(steps) == 20:
            move_task.cancel()  # as Ctrl-C does

    move_task = asyncio.create_task(move(path, PostgresLocation(url), stop))
    with pytest.raises(asyncio.CancelledError):
        await move_task
    assert row_counts(url) == {}
    assert (await move_database(path, url)).rows


async def test_a_connection_lost_during_the_move_leaves_no_rows(tmp_path: Path) -> None:
    path, url, steps = filled_database(tmp_path / "crcr.db"), new_database(), count()
    name = url.rpartition("/")[2]

    def cut(_: CopyProgress) -> None:
        if next(steps) == 20:
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ?"
            run_on(cluster().admin_url, end, name)

    with pytest.raises(StoreUnavailable) as fault:
        await move(path, PostgresLocation(url), cut)
    assert "not kept" in str(fault.value.hint)
    assert row_counts(url) == {}


async def test_of_two_concurrent_moves_exactly_one_completes(tmp_path: Path) -> None:
    first, second = filled_database(tmp_path / "first.db"), filled_database(tmp_path / "second.db", rows=5)
    url = new_database(empty=True)
    results = await asyncio.gather(
        move_database(first, url), move_database(second, url), return_exceptions=True
    )
    [done] = [result for result in results if isinstance(result, CopyResult)]
    [fault] = [result for result in results if not isinstance(result, CopyResult)]
    assert isinstance(fault, NotPossible)
    assert "not empty" in fault.detail or "in use" in fault.detail
    assert sum(row_counts(url).values()) == done.rows


async def test_foreign_tables_in_the_file_are_reported_and_not_moved(tmp_path: Path) -> None:
    path = filled_database(tmp_path / "crcr.db")
    execute_sql(path, "CREATE TABLE notes (a)")
    assert (await move_database(path, new_database())).left == ("notes",)


@pytest.mark.slow
async def test_a_killed_move_leaves_an_empty_target_and_the_next_move_completes(tmp_path: Path) -> None:
    path, url = large_database(tmp_path / "crcr.db"), new_database(empty=True)
    words = ("migrate", "--from", f"sqlite:///{path}", "--to", url)
    async with crcr(*words, folder=tmp_path, environ={}) as process:
        assert "moving 0 of 50,000 rows" in await process.next_error_line()
        assert await process.stop(signal.SIGKILL) == -signal.SIGKILL
    assert row_counts(url) == {}
    assert (await move_database(path, url)).rows == sum(row_counts(url).values()) == 52_000


@pytest.mark.slow
async def test_a_large_database_is_moved_in_little_memory(tmp_path: Path) -> None:
    path, url = large_database(tmp_path / "crcr.db"), new_database()
    assert path.stat().st_size > 60 << 20
    tracemalloc.start()
    try:
        await move_database(path, url)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
    assert row_counts(url) == {"audit": 50_000, "deliveries": 2_000}


def large_database(path: Path) -> Path:
    """50,000 small rows and 2,000 bodies of 32 KiB."""
    filled_database(path, rows=0)
    with closing(sqlite3.connect(path)) as connection, connection:
        small = [
            ("a/b", number, "ada", "pause", text, "{}")
            for number, text in zip(range(50_000), HOSTILE * 10_000, strict=False)
        ]
        connection.executemany(
            "INSERT INTO audit (upstream, at, who, act, subject, detail) VALUES (?, ?, ?, ?, ?, ?)", small
        )
        bodies = [(str(number), bytes(32 << 10)) for number in range(2_000)]
        connection.executemany(
            "INSERT INTO deliveries (guid, upstream, event, state, source, received_at, body_bytes, body)"
            " VALUES (?, 'a/b', 'push', 'accepted', 'webhook', 1, 1, ?)",
            bodies,
        )
    return path
