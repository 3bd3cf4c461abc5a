"""What every store asks of a database: units of work, committed before they are answered.

A unit is an `async` function of a `Tx`. PostgreSQL really waits in it; SQLite runs it straight through on the
event loop, so a unit may await nothing but its `Tx`. A unit that raises leaves no trace.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from crcr.record.store.statement import Adding, Statement

T = TypeVar("T")
Row = Mapping[str, Any]


class Tx(Protocol):
    async def one(self, statement: Statement, **params: Any) -> Row | None: ...

    async def all(self, statement: Statement, **params: Any) -> list[Row]: ...

    async def run(self, statement: Statement, **params: Any) -> int:
        """Execute and return how many rows were touched."""
        ...

    async def many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None: ...

    def add_up(self, adding: Adding, key: tuple[Any, ...], amounts: Mapping[str, float]) -> None:
        """Add to a row of sums, at the latest with the commit; a unit that adds does not read them."""
        ...

    async def settled_change(self) -> int | None:
        """Up to which change nothing can come any more, where changes can come out of their order; else None."""
        ...

    def signal(self, name: str) -> None:
        """Wake those who wait for `name`, once this unit is committed."""
        ...


Unit = Callable[[Tx], Awaitable[T]]


class Database(Protocol):
    async def write(self, unit: Unit[T], *, lane: str | None = None) -> T:
        """Run the unit and return its result after its commit.

        A unit decides as if no other ran: without a lane none does, with one none of that lane, in any process. A
        unit may be run again after a race that it lost.
        """
        ...

    async def glance(self, unit: Unit[T]) -> T:
        """Read a few rows by key from what is committed, without leaving the event loop where that is possible."""
        ...

    async def read(self, unit: Unit[T]) -> T:
        """Read for a page, beside the event loop."""
        ...

    async def watch_other_processes(self) -> None:
        """Wake our waiters when another process has committed, for as long as this runs."""
        ...

    async def close(self) -> None: ...
