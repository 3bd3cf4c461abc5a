"""What every store asks of a database: units of work, committed before they are answered.

A unit is an `async` function of a `Tx`. PostgreSQL really waits in it; SQLite runs it straight through on the
event loop, so a unit may await nothing but its `Tx`. A unit that raises leaves no trace.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from crcr.record.statement import Adding, Statement

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

    def signal(self, name: str) -> None:
        """Wake those who wait for `name`, once this unit is committed."""
        ...


Unit = Callable[[Tx], Awaitable[T]]


class Database(Protocol):
    async def write(self, unit: Unit[T]) -> T:
        """Run the unit and return its result after its commit."""
        ...

    async def glance(self, unit: Unit[T]) -> T:
        """Read a few rows by key from what is committed, without leaving the event loop where that is possible."""
        ...

    async def read(self, unit: Unit[T]) -> T:
        """Read for a page, beside the event loop."""
        ...

    async def close(self) -> None: ...
