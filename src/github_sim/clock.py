"""The simulator's clock: aware UTC times from an injected object with `now()`.

Tests pass a clock that they move by hand; the demo uses the system's.
"""

from datetime import UTC, datetime, timedelta
from typing import Protocol


class SimulatorClock(Protocol):
    def now(self) -> datetime: ...


class WallClock:
    def now(self) -> datetime:
        return datetime.now(UTC)


def stamp(at: datetime) -> str:
    """GitHub's way to write a time: whole seconds and a Z."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stamp_or_none(at: datetime | None) -> str | None:
    return None if at is None else stamp(at)


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, at: datetime = datetime(2026, 8, 3, 9, 0, tzinfo=UTC)) -> None:
        self._at = at

    def now(self) -> datetime:
        return self._at

    def advance(self, seconds: float) -> None:
        self._at += timedelta(seconds=seconds)
