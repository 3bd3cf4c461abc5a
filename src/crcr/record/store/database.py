"""The store's contract: units of work, committed before their callers are answered; and where a database is.

A unit is an `async` function of a `Tx`. PostgreSQL suspends it at every query; SQLite runs it to its end on the
event loop, so a unit may await nothing but its `Tx`. A unit that raises is rolled back.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from crcr.record.store.statement import Statement, SumUpsert

T = TypeVar("T")
Row = Mapping[str, Any]


def plain_rows(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """The rows of one result as dicts: SQLite's rows compare names one by one, and some rows have sixty columns."""
    names: tuple[str, ...] = ()
    for row in rows:
        if isinstance(row, dict):
            yield row
        else:
            names = names or tuple(row.keys())
            yield dict(zip(names, cast("Iterable[Any]", row), strict=True))


class Tx(Protocol):
    async def one(self, statement: Statement, **params: Any) -> Row | None: ...

    async def all(self, statement: Statement, **params: Any) -> list[Row]: ...

    async def run(self, statement: Statement, **params: Any) -> int:
        """Execute and return how many rows were touched."""
        ...

    async def many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None: ...

    def add_up(self, upsert: SumUpsert, key: tuple[Any, ...], amounts: Mapping[str, float]) -> None:
        """Add to a row of sums, at the latest with the commit; a unit that adds does not read them."""
        ...

    async def settled_change(self) -> int | None:
        """The change up to which no earlier one can still be committed; None where ids are committed in order."""
        ...

    def signal(self, name: str) -> None:
        """Wake the tasks that wait for `name`, once this unit is committed."""
        ...


Unit = Callable[[Tx], Awaitable[T]]


class Database(Protocol):
    async def write(self, unit: Unit[T], *, lane: str | None = None) -> T:
        """Run the unit and return its result after its commit.

        A unit decides as if no other ran: without a lane none does, with a lane none of the same lane, in any
        process. A unit may be run again after it lost a race.
        """
        ...

    async def quick_read(self, unit: Unit[T]) -> T:
        """Read a few committed rows by key, on the event loop where that is possible."""
        ...

    async def read(self, unit: Unit[T]) -> T:
        """Read for a page: one snapshot, outside of the event loop."""
        ...

    async def watch_other_processes(self) -> None:
        """Wake our waiters when another process has committed, until cancelled."""
        ...

    async def renew_connections(self) -> None:
        """Close idle connections, which may be dead after the process was paused; nothing for a file."""
        ...

    async def close(self) -> None: ...


class StoreCounters(Protocol):
    """Receives a database's counts; implemented by the metrics."""

    def committed(self, units: int, seconds: float) -> None:
        """A commit with so many units of work took so long."""
        ...

    def failed(self) -> None:
        """A write failed."""
        ...

    def connections(self, *, pool: str, used: int, most: int) -> None:
        """How many connections of the pool, writing or reading, are in use, and how many it may have."""
        ...


class NoCounters:
    """Counts nothing."""

    def committed(self, units: int, seconds: float) -> None: ...
    def failed(self) -> None: ...
    def connections(self, *, pool: str, used: int, most: int) -> None: ...


@dataclass(frozen=True, slots=True)
class PostgresTimeouts:
    """Time-outs of our connections, in milliseconds; 0 is none. All but `queue_ms` are the server's.

    A webhook or a callback must be answered within 8 s, be it with 503: then the proxy tries the next relay, and after
    10 s GitHub gives up. A frozen process can hold its locks for 3.4 s: it has two transactions, and the second may get
    its lock when the first is ended. A write waits for longer than that in its queue, and for the lock, which is 7.6 s
    together.
    """

    statement_ms: int = 15_000
    lock_ms: int = 3_800
    idle_in_transaction_ms: int = 1_700
    """PostgreSQL ends a writing session that is idle in a transaction for this long, and `postgres.stuck_sessions` one that is
    stuck in the middle of a statement. A reading one may be idle for `statement_ms`."""
    write_ms: int = 5_000
    """For a statement that writes, in place of `statement_ms` where that is longer."""
    queue_ms: int = 3_800
    """A unit that no transaction has taken by then fails with 503."""


NO_TIMEOUTS = PostgresTimeouts(0, 0, 0, 0)
"""For a migration, which takes as long as it takes."""


@dataclass(frozen=True, slots=True)
class PostgresLocation:
    """The server's address, and how many connections one process may have."""

    url: str
    connections: int = 10
    ca: Path | None = None
    timeouts: PostgresTimeouts = PostgresTimeouts()
    pooled: bool = False
    """Whether a pooler gives each transaction any session: a session keeps no statements, settings or LISTEN."""
    new_password: Callable[[], Awaitable[str]] | None = None
    """Called for each new connection, in place of a password in the address."""

    def __repr__(self) -> str:
        return "PostgresLocation(…)"  # the address may hold a password


DatabaseLocation = Path | PostgresLocation
"""A file of SQLite, or a database of PostgreSQL."""
