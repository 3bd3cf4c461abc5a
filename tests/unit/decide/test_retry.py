"""When to retry, when to give up, and when the circuit breaker of a target opens."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.outbox.retry import (
    FIRST_PAUSE_S,
    GIVE_UP_AFTER,
    LONGEST_DELAY_S,
    LONGEST_PAUSE_S,
    TRIPS_AT,
    CircuitBreaker,
    GiveUp,
    TryAgain,
    retry_after_fault,
    retry_after_limit,
)

T = datetime(2026, 9, 1, tzinfo=UTC)
CHANCE = st.floats(min_value=0, max_value=1, exclude_max=True)


def delay_s(decision: TryAgain | GiveUp, now: datetime = T) -> float:
    assert isinstance(decision, TryAgain)
    return (decision.due_at - now).total_seconds()


def failing(times: int) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(times):
        breaker = breaker.failed(T)
    return breaker


def test_delays_double_from_two_seconds_to_fifteen_minutes() -> None:
    waits = [
        delay_s(retry_after_fault(attempts=attempts, first_attempt_at=T, now=T, chance=0.5))
        for attempts in range(1, 13)
    ]

    assert waits[:4] == [1.5, 3.0, 6.0, 12.0]
    assert waits[-1] == LONGEST_DELAY_S * 0.75


@given(attempts=st.integers(1, 10_000), chance=CHANCE)
def test_a_retry_is_never_immediate_and_never_later_than_the_longest_delay(
    attempts: int, chance: float
) -> None:
    wait = delay_s(retry_after_fault(attempts=attempts, first_attempt_at=T, now=T, chance=chance))

    assert 1.0 <= wait <= LONGEST_DELAY_S


@given(one=CHANCE, other=CHANCE)
def test_random_jitter_spreads_the_retries(one: float, other: float) -> None:
    first, second = (
        delay_s(retry_after_fault(attempts=3, first_attempt_at=T, now=T, chance=chance))
        for chance in (one, other)
    )

    assert (first < second) <= (one < other)


def test_an_effect_is_given_up_after_24_hours_and_not_before() -> None:
    before, then = T + GIVE_UP_AFTER - timedelta(seconds=1), T + GIVE_UP_AFTER

    assert isinstance(retry_after_fault(attempts=1, first_attempt_at=T, now=before, chance=0), TryAgain)
    assert isinstance(retry_after_fault(attempts=1, first_attempt_at=T, now=then, chance=0), GiveUp)
    assert isinstance(retry_after_limit(retry_after_s=1, first_attempt_at=T, now=before, chance=0), TryAgain)
    assert isinstance(retry_after_limit(retry_after_s=1, first_attempt_at=T, now=then, chance=0), GiveUp)


@given(wait=st.floats(min_value=1, max_value=3600), chance=CHANCE)
def test_a_rate_limit_delays_the_retry_in_full_and_by_at_most_a_second_more(
    wait: float, chance: float
) -> None:
    actual = delay_s(retry_after_limit(retry_after_s=wait, first_attempt_at=T, now=T, chance=chance))

    assert wait - 1e-5 <= actual <= wait + 1.0 + 1e-5


def test_a_breaker_opens_at_the_fifth_fault_in_a_row() -> None:
    assert [failing(times).blocks(T) for times in range(TRIPS_AT + 2)] == [False] * TRIPS_AT + [True] * 2


def test_the_pause_doubles_up_to_ten_minutes() -> None:
    pauses = [failing(times).open_until for times in range(TRIPS_AT, TRIPS_AT + 7)]

    assert [(until - T).total_seconds() for until in pauses if until] == [30, 60, 120, 240, 480, 600, 600]
    assert not failing(TRIPS_AT).blocks(T + timedelta(seconds=FIRST_PAUSE_S))
    assert failing(500).open_until == T + timedelta(seconds=LONGEST_PAUSE_S)


def test_a_probe_blocks_other_calls_until_its_outcome_is_known() -> None:
    open_until = failing(TRIPS_AT).open_until
    assert open_until is not None
    probing = failing(TRIPS_AT).probing(open_until)

    assert probing.blocks(open_until)
    assert CircuitBreaker().probing(T) == CircuitBreaker()
    assert probing.failed(open_until).open_until == open_until + timedelta(seconds=2 * FIRST_PAUSE_S)
