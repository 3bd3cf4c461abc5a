"""Times between Python (aware datetimes) and the tables (microseconds since 1970, UTC)."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EXACT_AS_FLOAT = 2**52


def to_us(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    # Twice as fast as a sum, and a page has thousands of times. Later ones would lose microseconds as floats.
    if -_EXACT_AS_FLOAT < us < _EXACT_AS_FLOAT:
        return datetime.fromtimestamp(us / 1_000_000, UTC)
    return _EPOCH + timedelta(microseconds=us)


def from_us_or_none(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def added_up_s(total: float) -> float:
    """A sum of seconds to the microsecond, of which all of them are made: in which order they were added shows no more."""
    return round(total, 6)
