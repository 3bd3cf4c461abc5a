"""The hourly limit of an installation: a reserve for urgent calls, a pace for the rest, and the order after a reset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.github.requests_and_answers import Urgency
from crcr.github.http.hour_budget import ANSWER_S, BURST_S, HourCount, Spending, hour_wait_s
from crcr.github.http.rate_limiter import GitHubRateLimiter

T = 1_767_225_600.0
INSTALLATION = 5
FIRST, CHECKS, DETAILS = Urgency
FULL_BURST = Spending(paced_until=T - BURST_S)
NO_BURST = Spending(paced_until=T)


def count(remaining: int, *, minutes: float = 60) -> HourCount:
    return HourCount(remaining, 5_000, T + 60 * minutes)


@pytest.mark.parametrize(
    ("hour", "spending", "waits"),
    [
        pytest.param(count(5_000), FULL_BURST, (0, 0, 0), id="a fresh hour"),
        pytest.param(count(5_000), NO_BURST, (0, 0.9, 450.9), id="4,000 in 3,600 s: a call each 0.9 s"),
        pytest.param(count(3_000, minutes=30), NO_BURST, (0, 0.9, 450.9), id="half of both gone: the same pace"),
        pytest.param(count(4_600, minutes=30), NO_BURST, (0, 0.5, 450.5), id="a quiet half hour: a faster pace"),
        pytest.param(count(4_000, minutes=5), NO_BURST, (0, 0.1, 315), id="a remainder at the end of the hour is not saved"),
        pytest.param(count(1_001), FULL_BURST, (0, 2_700, 3_150), id="the last call above the reserve"),
        pytest.param(count(1_000), FULL_BURST, (0, 3_605, 3_615), id="only the reserve is left"),
        pytest.param(count(1, minutes=10), FULL_BURST, (0, 605, 615), id="the last call of the reserve"),
        pytest.param(count(0, minutes=10), FULL_BURST, (600, 605, 615), id="nothing is left"),
        pytest.param(count(0, minutes=-0.05), FULL_BURST, (0, 2, 12), id="the next hour, before its first answer"),
        pytest.param(count(0, minutes=-1), FULL_BURST, (0, 0, 0), id="a minute into the next hour"),
        pytest.param(count(3), Spending(in_flight=3), (ANSWER_S, 3_605, 3_615), id="as many in flight as are left"),
        pytest.param(count(1_003), Spending(in_flight=3), (0, *[ANSWER_S] * 2), id="the same above the reserve"),
    ],
)  # fmt: skip
def test_the_wait_of_each_urgency(hour: HourCount, spending: Spending, waits: tuple[float, ...]) -> None:
    wait_times = [max(hour_wait_s(hour, spending, urgency, T), 0) for urgency in Urgency]
    assert wait_times == pytest.approx(waits)


class Hour:
    """A rate limiter and a GitHub that counts its calls; responses arrive in any order."""

    def __init__(self, left: int, limit: int = 100) -> None:
        self.now, self.left, self.limit = T, left, limit
        self.governor = GitHubRateLimiter(points_per_minute=1_000_000)
        self.under_way: list[dict[str, str]] = []
        self.governor.observe(INSTALLATION, self._headers(), T)

    def _headers(self) -> dict[str, str]:
        return {
            "x-ratelimit-remaining": str(self.left),
            "x-ratelimit-limit": str(self.limit),
            "x-ratelimit-reset": f"{T + 3600:.0f}",
        }

    def call(self, urgency: Urgency) -> float:
        """Send a call, or return the seconds that it is held back."""
        hold = self.governor.reserve(INSTALLATION, 1, self.now, urgency=urgency)
        if hold is not None:
            return hold.wait_s
        self.left -= 1
        self.under_way.append(self._headers())
        return 0.0

    def answer(self, which: int) -> None:
        if self.under_way:
            headers = self.under_way.pop(which % len(self.under_way))
            self.governor.release(INSTALLATION, 1)
            self.governor.observe(INSTALLATION, headers, self.now)


STEPS = st.lists(
    st.tuples(st.floats(0, 60), st.sampled_from(Urgency), st.integers(1, 40), st.integers(0, 30)), max_size=40
)


@given(st.integers(0, 100), STEPS)
def test_the_reserve_is_kept_for_the_first_urgency_which_only_githubs_count_stops(
    left: int, steps: list[tuple[float, Urgency, int, int]]
) -> None:
    hour = Hour(left)
    for pause, urgency, calls, answers in steps:
        hour.now = min(hour.now + pause, T + 3599)
        for _ in range(calls):
            before, under_way = hour.left, len(hour.under_way)
            wait_s = hour.call(urgency)
            if urgency is FIRST and before > 0:
                assert wait_s == 0 or (under_way and wait_s <= ANSWER_S)
            elif urgency is FIRST:
                assert wait_s > 0
            elif wait_s == 0:
                assert hour.left >= 20
        for which in range(answers):
            hour.answer(which)


@given(st.lists(st.tuples(st.floats(0, 120), st.sampled_from([CHECKS, DETAILS])), max_size=200))
def test_a_call_is_granted_after_the_returned_wait(steps: list[tuple[float, Urgency]]) -> None:
    hour = Hour(100)
    for pause, urgency in steps:
        hour.now += pause
        if wait_s := hour.call(urgency):
            hour.now += wait_s + 1e-3
            assert hour.call(urgency) == 0
        hour.answer(0)


def test_a_burst_is_not_held_back_and_later_calls_get_their_share_of_the_hour() -> None:
    hour, sent = Hour(5_000, 5_000), []
    for _ in range(3_600):
        granted = 0
        while hour.call(CHECKS) == 0:
            granted += 1
            hour.answer(0)
        sent.append(granted)
        hour.now += 1
    assert sent[0] > 850  # a quarter of the 4,000 above the reserve, less what the burst itself uses up
    assert max(sent[1:]) <= 2
    assert sum(sent[-600:]) > 400
    assert hour.left == pytest.approx(1_000, abs=5)


def test_details_leave_half_of_a_burst_to_checks() -> None:
    hour, granted = Hour(5_000, 5_000), dict.fromkeys((DETAILS, CHECKS), 0)
    for urgency in granted:
        while hour.call(urgency) == 0:
            granted[urgency] += 1
            hour.answer(0)
    assert granted == pytest.approx({DETAILS: 470, CHECKS: 430}, abs=20)


def test_each_of_several_workers_keeps_to_its_share_of_the_pace() -> None:
    hour = Hour(5_000, 5_000)
    hour.governor.share_among(4)
    granted = 0
    while hour.call(CHECKS) == 0:
        granted += 1
        hour.answer(0)
    assert granted == pytest.approx(250, abs=20)
