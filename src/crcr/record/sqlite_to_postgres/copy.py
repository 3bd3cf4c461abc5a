"""Copying an installation from SQLite to PostgreSQL: all rows or none, compared before the commit.

One transaction on PostgreSQL holds the whole copy. It is committed only after every table was read back with the same
number of rows and the same checksum, so an interrupted copy leaves an empty target. The SQLite file is locked
exclusively and only read: the lock is refused while a process of a relay has the file open, and no process can open it
until the copy is over. Why: docs/adr/0025-moving.md.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import LargeBinary, Table

from crcr.errors import CrcrError, NotFound, NotPossible, StoreUnavailable
from crcr.record.migrations.run import head, migrate
from crcr.record.schema.all_tables import metadata
from crcr.record.sqlite_to_postgres.rows import RowConverter, TableChecksum
from crcr.record.store.database import PostgresLocation, PostgresTimeouts
from crcr.record.store.postgres.connection import FAULTS, Connection, as_unavailable, connect

_LOCK_TIMEOUT_S = 5.0
_NOT_COPIED = frozenset({"alembic_version"})


class SqliteSource:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def count(self, table: Table) -> int:
        return int(self._value(f"SELECT count(*) FROM {table.name}"))  # noqa: S608  our own names

    def rows(self, table: Table) -> Generator[Sequence[Any], None, None]:
        """All rows in storage order, one at a time."""
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        try:
            yield from self._connection.execute(f"SELECT {names} FROM {table.name}")  # noqa: S608  our own names
        except sqlite3.Error as fault:
            raise StoreUnavailable(f"the rows of {table.name} cannot be read: {fault}") from fault

    def last_number(self, table: Table) -> int:
        """The highest number that the table has ever used, including deleted rows."""
        [column] = table.primary_key
        last_given = self._value("SELECT max(seq) FROM sqlite_sequence WHERE name = ?", table.name)
        last_stored = self._value(f"SELECT max({column.name}) FROM {table.name}")  # noqa: S608  our own names
        return max(last_given or 0, last_stored or 0)

    def claimed_effects(self) -> int:
        return int(self._value("SELECT count(*) FROM effects WHERE state = 'claimed'"))

    def foreign_tables(self) -> tuple[str, ...]:
        """Tables in the file that are not part of our schema."""
        ask = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
        names = [row[0] for row in self._connection.execute(ask)]
        return tuple(name for name in names if name not in metadata.tables and name not in _NOT_COPIED)

    def _value(self, sql: str, *params: object) -> Any:
        return self._connection.execute(sql, params).fetchone()[0]


@contextmanager
def locked(path: Path) -> Iterator[SqliteSource]:
    """Lock the database exclusively, and require this release's schema."""
    if not path.exists():
        raise NotFound(f"there is no database at {path}", hint="check the address after --from")
    try:
        with closing(_connect(path)) as connection:
            _lock(connection, path)
            _require_this_schema(connection, path)
            yield SqliteSource(connection)
    except sqlite3.Error as fault:
        raise StoreUnavailable(f"the database {path} cannot be read: {fault}") from fault


def _connect(path: Path) -> sqlite3.Connection:
    # `rw`, since the write-ahead log of a killed relay has to be recovered; nothing else is ever written.
    address = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=_LOCK_TIMEOUT_S)
    # Text that is not UTF-8 is reported with its row, not by the driver in the middle of a table.
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    return connection


def _lock(connection: sqlite3.Connection, path: Path) -> None:
    try:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("PRAGMA query_only=ON")
    except sqlite3.OperationalError as fault:
        if "locked" in str(fault):
            raise NotPossible(
                f"the database {path} is in use",
                hint="stop `crcr serve` and `crcr worker`, and whatever else has it open, then move",
            ) from fault
        hint = "run this as the relay's user, who may write the file and its folder"
        raise StoreUnavailable(f"the database {path} cannot be locked: {fault}", hint=hint) from fault


def _require_this_schema(connection: sqlite3.Connection, path: Path) -> None:
    try:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.OperationalError:
        row = None
    revision = row[0] if row else None
    if revision == head():
        return
    if revision is None:
        raise NotPossible(f"{path} is not a database of crcr", hint="check the address after --from")
    hint = "run `crcr migrate` on it first; if a newer release has written it, use that one"
    raise NotPossible(f"{path} has schema {revision}, and this release has {head()}", hint=hint)


_MOVING = 0x63726372_6D6F7665
"""The advisory lock: one copy to a database at a time."""
_NO_STATEMENT_TIMEOUT = PostgresTimeouts(statement_ms=0, lock_ms=5_000, idle_in_transaction_ms=0)
_WHOLE_MOVE_S = 7 * 86400.0
"""Longer than any copy: the driver has no way to disable the time-out of one call."""
_CLOSE_S = 5.0
_ROWS_AT_ONCE, _BODIES_AT_ONCE = 1_000, 100
_REPORT_EVERY = 5_000


@dataclass(frozen=True, slots=True)
class CopyProgress:
    table: str
    done: int
    rows: int
    checking: bool
    """Whether rows are being read back and compared, which is the second half."""


@dataclass(frozen=True, slots=True)
class MovedTable:
    name: str
    rows: int
    checksum: str
    replaced: int
    """Values in which a NUL was replaced by U+FFFD."""


@dataclass(frozen=True, slots=True)
class CopyResult:
    tables: tuple[MovedTable, ...]
    claimed: int
    """Effects that a process had claimed and not released when it ended; they are tried again."""
    left: tuple[str, ...]
    """Tables in the file that are not ours; they were not copied."""

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def replaced(self) -> int:
        return sum(table.replaced for table in self.tables)


ReportProgress = Callable[[CopyProgress], None]


async def move(source: Path, target: PostgresLocation, report: ReportProgress = lambda _: None) -> CopyResult:
    """Copy all rows and compare them, or raise and leave the target empty."""
    with locked(source) as held:
        try:
            connection = await connect(replace(target, timeouts=_NO_STATEMENT_TIMEOUT), command_s=None)
            try:
                await _require_fit(connection)
                migrate(target)
                return await _move(held, connection, report)
            finally:
                await connection.close(timeout=_CLOSE_S)
        except FAULTS as fault:
            raise _as_error(fault) from fault


async def _move(source: SqliteSource, connection: Connection, report: ReportProgress) -> CopyResult:
    async with _all_or_nothing(connection):
        await _require_empty(connection)
        moved = [await _move_table(source, connection, table, report) for table in metadata.sorted_tables]
        await _count_on(source, connection)
        await connection.execute(f"ANALYZE {_names()}", timeout=_WHOLE_MOVE_S)
    return CopyResult(tuple(moved), source.claimed_effects(), source.foreign_tables())


@asynccontextmanager
async def _all_or_nothing(connection: Connection) -> AsyncIterator[None]:
    transaction, whole = connection.transaction(), False
    await transaction.start()
    try:
        yield
        whole = True
    finally:
        if not whole:
            connection.terminate()  # which rolls back, whatever the connection was doing
    try:
        await transaction.commit()
    except FAULTS as fault:
        hint = "run the move again: if it reports that the target has rows, all of them had arrived"
        raise StoreUnavailable(f"it is not known whether the move was kept: {fault}", hint=hint) from fault


async def _require_fit(connection: Connection) -> None:
    """Refuse an unsuitable target before anything is changed."""
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        hint = "make one: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        raise NotPossible(f"the target's encoding is {encoding}, and must be UTF8", hint=hint)
    ours = (
        "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename = ANY($1::text[])"
    )
    for row in await connection.fetch(ours, list(metadata.tables)):
        await _require_no_row(connection, row["tablename"])


async def _require_empty(connection: Connection) -> None:
    """Check again, now that no other session can write."""
    try:
        await connection.execute(f"SELECT pg_advisory_xact_lock({_MOVING})")
        await connection.execute(f"LOCK TABLE {_names()} IN EXCLUSIVE MODE")
    except asyncpg.LockNotAvailableError as fault:
        hint = "another move may be under way, or a relay may use it already: wait, or stop it"
        raise NotPossible("the target is in use", hint=hint) from fault
    for name in metadata.tables:
        await _require_no_row(connection, name)


async def _require_no_row(connection: Connection, name: str) -> None:
    if await connection.fetchval(f"SELECT EXISTS (SELECT 1 FROM {name})"):  # noqa: S608  our own names
        raise NotPossible(
            f"the target is not empty: {name} holds rows",
            hint="nothing was written; a move needs a database of its own, without rows",
        )


async def _move_table(
    source: SqliteSource, connection: Connection, table: Table, report: ReportProgress
) -> MovedTable:
    expected, converter = source.count(table), RowConverter(table)
    with closing(source.rows(table)) as rows:
        await connection.copy_records_to_table(
            table.name,
            columns=[column.name for column in table.columns],
            records=_reporting(converter.convert(rows), table.name, expected, report),
            timeout=_WHOLE_MOVE_S,
        )
    copied = await _read_back(connection, table, expected, report)
    _compare(table.name, expected, converter.checksum, copied)
    return MovedTable(str(table.name), copied.rows, copied.checksum, converter.replaced)


def _reporting(rows: Iterator[Any], name: str, expected: int, report: ReportProgress) -> Iterator[Any]:
    for done, row in enumerate(rows):
        if done % _REPORT_EVERY == 0:
            report(CopyProgress(name, done, expected, checking=False))
        yield row


async def _read_back(
    connection: Connection, table: Table, expected: int, report: ReportProgress
) -> TableChecksum:
    checksum = TableChecksum()
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    cursor = await connection.cursor(f"SELECT {names} FROM {table.name}")  # noqa: S608  our own names
    wide = any(isinstance(column.type, LargeBinary) for column in table.columns)
    while rows := await cursor.fetch(_BODIES_AT_ONCE if wide else _ROWS_AT_ONCE, timeout=_WHOLE_MOVE_S):
        for row in rows:
            checksum.add(tuple(row.values()))
        if checksum.rows % _REPORT_EVERY == 0:
            report(CopyProgress(table.name, checksum.rows, expected, checking=True))
    report(CopyProgress(table.name, checksum.rows, expected, checking=True))
    return checksum


def _compare(name: str, expected: int, read: TableChecksum, copied: TableChecksum) -> None:
    if not expected == read.rows == copied.rows:
        counts = f"{expected} were counted, {read.rows} were read, {copied.rows} arrived"
        raise NotPossible(f"the rows of {name} do not agree: {counts}", hint="nothing was kept")
    if read.total != copied.total:
        raise NotPossible(f"the rows of {name} arrived changed", hint="nothing was kept")


async def _count_on(source: SqliteSource, connection: Connection) -> None:
    """Continue each sequence where SQLite would have: a number is never reused, because pages hold them as cursors."""
    for table in metadata.sorted_tables:
        if table.autoincrement_column is not None:
            name = table.autoincrement_column.name
            sequence = await connection.fetchval("SELECT pg_get_serial_sequence($1, $2)", table.name, name)
            # Unlike `setval`, this is rolled back with the transaction.
            await connection.execute(
                f"ALTER SEQUENCE {sequence} RESTART WITH {source.last_number(table) + 1}"
            )


def _names() -> str:
    return ", ".join(metadata.tables)


def _as_error(fault: BaseException) -> CrcrError:
    unavailable = as_unavailable(fault)
    if unavailable is not None:
        return StoreUnavailable(
            unavailable.detail, hint="the move was not kept; the target is as empty as it was"
        )
    detail = getattr(fault, "detail", None)
    return NotPossible(
        f"PostgreSQL refused: {fault}{f' ({detail})' if detail else ''}", hint="nothing was kept"
    )
