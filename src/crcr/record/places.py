"""Where a database is."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PostgresPlace:
    """Where the server is, and how many connections one process may have."""

    url: str
    connections: int = 10
    ca: Path | None = None

    def __repr__(self) -> str:
        return "PostgresPlace(…)"  # the address may hold a password


Place = Path | PostgresPlace
"""A file of SQLite, or a database of PostgreSQL."""
