"""Conversion of times between Python and the tables: exact to the microsecond, up to the last year of Python."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from crcr.record.store.times import from_us, to_us

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.integers(min_value=-(2**52) - 1_000, max_value=2**57))
def test_a_stored_time_is_exact_to_the_microsecond(us: int) -> None:
    assert from_us(us) == EPOCH + timedelta(microseconds=us)
    assert to_us(from_us(us)) == us
