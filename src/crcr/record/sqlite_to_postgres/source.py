"""The SQLite database that is moved: nobody else has it open, and it is only read.

The lock is asked for as an only user, so it is refused while any process of a relay has the file open, and no
process can open it until the move is over: whatever a relay answered is in the file that is read.
"""

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Table

from crcr.errors import NotFound, NotPossible, StoreUnavailable
from crcr.record.migrations.run import head
from crcr.record.schema.all_tables import metadata

_PATIENCE_S = 5.0
_NOT_OURS_TO_MOVE = frozenset({"alembic_version"})


class Source:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def count(self, table: Table) -> int:
        return int(self._value(f"SELECT count(*) FROM {table.name}"))  # noqa: S608  our own names

    def rows(self, table: Table) -> Generator[Sequence[Any], None, None]:
        """In the order in which they lie, one at a time."""
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        try:
            yield from self._connection.execute(f"SELECT {names} FROM {table.name}")  # noqa: S608  our own names
        except sqlite3.Error as fault:
            raise StoreUnavailable(f"the rows of {table.name} cannot be read: {fault}") from fault

    def last_number(self, table: Table) -> int:
        """The highest number that the table has ever given, also to rows that were deleted since."""
        [column] = table.primary_key
        given = self._value("SELECT max(seq) FROM sqlite_sequence WHERE name = ?", table.name)
        there = self._value(f"SELECT max({column.name}) FROM {table.name}")  # noqa: S608  our own names
        return max(given or 0, there or 0)

    def claimed_effects(self) -> int:
        return int(self._value("SELECT count(*) FROM effects WHERE state = 'claimed'"))

    def foreign_tables(self) -> tuple[str, ...]:
        """Tables that somebody else has put there."""
        ask = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
        names = [row[0] for row in self._connection.execute(ask)]
        return tuple(each for each in names if each not in metadata.tables and each not in _NOT_OURS_TO_MOVE)

    def _value(self, sql: str, *params: object) -> Any:
        return self._connection.execute(sql, params).fetchone()[0]


@contextmanager
def locked(path: Path) -> Iterator[Source]:
    """The database at this release's schema, for us alone."""
    if not path.exists():
        raise NotFound(f"there is no database at {path}", hint="check the address after --from")
    try:
        with closing(_connect(path)) as connection:
            _lock(connection, path)
            _require_this_schema(connection, path)
            yield Source(connection)
    except sqlite3.Error as fault:
        raise StoreUnavailable(f"the database {path} cannot be read: {fault}") from fault


def _connect(path: Path) -> sqlite3.Connection:
    # `rw`, since a log that a killed relay left behind has to be read in; nothing else is ever written.
    address = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=_PATIENCE_S)
    # What is not UTF-8 is found out with its row, not by the driver in the middle of a table.
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
        hint = "run this as the user that the relay runs as, who may write the file and its folder"
        raise StoreUnavailable(f"the database {path} cannot be locked: {fault}", hint=hint) from fault


def _require_this_schema(connection: sqlite3.Connection, path: Path) -> None:
    try:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.OperationalError:
        row = None
    found = row[0] if row else None
    if found == head():
        return
    if found is None:
        raise NotPossible(f"{path} is not a database of crcr", hint="check the address after --from")
    hint = "run `crcr migrate` on it first; if a newer release has written it, use that one"
    raise NotPossible(f"{path} has schema {found}, and this release has {head()}", hint=hint)
