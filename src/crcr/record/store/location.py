"""Where a database is."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Limits:
    """How long PostgreSQL lets one of our connections do something, in milliseconds; 0 is without end.

    A webhook or a callback must be answered within 8 s, be it with 503: then the proxy asks the next relay, and after
    10 s GitHub gives up. Of these a write waits for up to 2.5 s in line (`postgres`), and then for one lock.
    """

    statement_ms: int = 15_000
    lock_ms: int = 4_500
    idle_in_transaction_ms: int = 2_000
    """A process that froze in a transaction holds its locks no longer than this. It has two transactions at once
    (`postgres`), and the second may get its lock when the first is ended: others wait for a lock for longer than both.
    """
    write_ms: int = 5_000
    """For a statement that writes, in place of `statement_ms` where that is longer."""


FOR_EVER = Limits(0, 0, 0, 0)
"""For a migration, which takes as long as it takes."""


@dataclass(frozen=True, slots=True)
class PostgresPlace:
    """Where the server is, and how many connections one process may have."""

    url: str
    connections: int = 10
    ca: Path | None = None
    limits: Limits = Limits()

    def __repr__(self) -> str:
        return "PostgresPlace(…)"  # the address may hold a password


Place = Path | PostgresPlace
"""A file of SQLite, or a database of PostgreSQL."""
