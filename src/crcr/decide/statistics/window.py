"""What a number covers: the kind of event, the hours, and the store that the history was read from.

A window consists of whole hours, or of whole days (UTC) from a week on, the current one included, because the store
keeps its sums that way: every page, API answer, badge and export that names the same range counts the same jobs.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

HOUR = timedelta(hours=1)


class ResultKind(StrEnum):
    """The source of results. Numbers of different kinds are never mixed."""

    PULLS = "pull_request"
    PUSH = "push"
    """Pushes, and merge groups, which become pushes."""
    NIGHTLY = "nightly"
    INGESTED = "ingested"
    """Received from another relay; shown, without effect on checks and gates."""

    @property
    def events(self) -> tuple[str, ...]:
        return _EVENTS[self]


_EVENTS = {
    ResultKind.PULLS: ("pull_request",),
    ResultKind.PUSH: ("push", "merge_group"),
    ResultKind.NIGHTLY: ("nightly", "periodic"),
    ResultKind.INGESTED: ("ingested",),
}
_KINDS = {event: kind for kind, events in _EVENTS.items() for event in events}


def result_kind(event: str) -> ResultKind | None:
    """Return the kind of an event's results; None for events that are not counted, such as a test."""
    return _KINDS.get(event)


class Span(StrEnum):
    """The range of a view."""

    DAY = "24h"
    WEEK = "7d"
    FORTNIGHT = "14d"
    MONTH = "30d"
    QUARTER = "90d"

    @property
    def length(self) -> timedelta:
        return _LENGTHS[self]


_LENGTHS = {
    Span.DAY: timedelta(hours=24),
    Span.WEEK: timedelta(days=7),
    Span.FORTNIGHT: timedelta(days=14),
    Span.MONTH: timedelta(days=30),
    Span.QUARTER: timedelta(days=90),
}
_PARTS = {Span.DAY: 24, Span.WEEK: 7, Span.FORTNIGHT: 14, Span.MONTH: 30, Span.QUARTER: 90}


@dataclass(frozen=True, slots=True)
class Window:
    """The time from `since` to `until`, in equal parts for strips and charts."""

    since: datetime
    until: datetime
    parts: int

    @classmethod
    def of(cls, span: Span, now: datetime) -> "Window":
        hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        until = hour + HOUR if span is Span.DAY else hour.replace(hour=0) + 24 * HOUR
        return cls(until - span.length, until, _PARTS[span])

    @property
    def whole_days(self) -> bool:
        return self.until - self.since > 24 * HOUR

    @property
    def width(self) -> timedelta:
        return (self.until - self.since) / self.parts

    def starts(self) -> tuple[datetime, ...]:
        """Return the start of each part, the oldest first."""
        width = self.width
        return tuple([self.since + index * width for index in range(self.parts)])


class HistoryState(StrEnum):
    """Whether history is read from ClickHouse, and if not, why."""

    OWN = "own"
    """ClickHouse is not used, or not filled yet: the main store answers."""
    ANSWERED = "told"
    """ClickHouse answered; the main store answered for backends that are not fully copied yet."""
    UNREACHABLE = "unreachable"
    BEHIND = "behind"
    """The newest results have not been copied for a while."""

    @property
    def source(self) -> str:
        """The store that the numbers came from, as the API names it."""
        return "clickhouse" if self is HistoryState.ANSWERED else "database"
