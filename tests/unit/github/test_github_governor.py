"""GitHub's rate limits: points per minute, requests per hour, blocks, and concurrent requests."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.github.requests_and_answers import Urgency
from crcr.errors import HeldBy, OutsideLimited
from crcr.github.api.request_response import READ_POINTS, WRITE_POINTS
from crcr.github.http.hour_budget import ANSWER_S, RETURN_AFTER_S
from crcr.github.http.rate_limiter import APP, KEPT_POINTS, LEAST_WAIT_S, GitHubRateLimiter
from support.clock import settle

T = 1_767_225_600.0
INSTALLATION = 5


def hour(remaining: int, reset: float) -> dict[str, str]:
    return {"x-ratelimit-remaining": str(remaining), "x-ratelimit-reset": f"{reset:.0f}"}


def wait_s(governor: GitHubRateLimiter, installation_id: int, cost: int, now: float, **more: Any) -> float:
    hold = governor.reserve(installation_id, cost, now, **more)
    return 0.0 if hold is None else hold.wait_s


def send_within_limits(
    governor: GitHubRateLimiter, steps: list[tuple[float, int]]
) -> list[tuple[float, int]]:
    now, sent = T, []
    for pause, cost in steps:
        now += pause
        if wait_s(governor, INSTALLATION, cost, now) == 0:
            sent.append((now, cost))
    return sent


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from([WRITE_POINTS, READ_POINTS])), max_size=400))
def test_no_minute_contains_more_points_than_the_budget(steps: list[tuple[float, int]]) -> None:
    sent = send_within_limits(GitHubRateLimiter(points_per_minute=60), steps)
    for start, _ in sent:
        assert sum(cost for at, cost in sent if start <= at < start + 60) <= 60


@given(st.lists(st.floats(0, 2), min_size=200, max_size=600))
def test_no_minute_contains_more_than_180_writes(pauses: list[float]) -> None:
    sent = [
        at for at, _ in send_within_limits(GitHubRateLimiter(), [(pause, WRITE_POINTS) for pause in pauses])
    ]
    for index, start in enumerate(sent):
        assert index + 180 >= len(sent) or sent[index + 180] >= start + 60


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from([5, 1])), max_size=200))
def test_a_request_is_granted_after_the_returned_wait(steps: list[tuple[float, int]]) -> None:
    governor, now = GitHubRateLimiter(points_per_minute=30), T
    for pause, cost in steps:
        now += pause
        wait = wait_s(governor, INSTALLATION, cost, now)
        assert 0 <= wait <= 60
        # Slightly more than the returned wait: sums of floats may fall short by their last digit.
        if wait:
            now += wait + 1e-6
            assert wait_s(governor, INSTALLATION, cost, now) == 0


def test_the_181st_write_waits_until_the_first_is_60_s_old() -> None:
    governor = GitHubRateLimiter()
    assert [wait_s(governor, INSTALLATION, WRITE_POINTS, T + i / 10) for i in range(180)] == [0] * 180
    assert wait_s(governor, INSTALLATION, WRITE_POINTS, T + 20) == 40
    assert wait_s(governor, INSTALLATION + 1, WRITE_POINTS, T + 20) == 0
    assert wait_s(governor, INSTALLATION, WRITE_POINTS, T + 60) == 0


def test_lower_urgencies_leave_room_for_higher_ones() -> None:
    governor = GitHubRateLimiter()

    def writes(urgency: Urgency) -> int:
        sent = 0
        while wait_s(governor, INSTALLATION, WRITE_POINTS, T, urgency=urgency) == 0:
            sent += 1
        return sent

    assert [writes(urgency) for urgency in reversed(Urgency)] == [108, 18, 54]
    assert wait_s(governor, INSTALLATION, WRITE_POINTS, T + 20, urgency=Urgency.DETAILS) == 40
    assert wait_s(governor, INSTALLATION, 0, T, urgency=Urgency.DETAILS) == 0


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from(Urgency)), max_size=200))
def test_every_urgency_is_granted_after_the_returned_wait(steps: list[tuple[float, Urgency]]) -> None:
    governor, now = GitHubRateLimiter(points_per_minute=470), T
    for pause, urgency in steps:
        now += pause
        wait = wait_s(governor, INSTALLATION, WRITE_POINTS, now, urgency=urgency)
        assert 0 <= wait <= 60
        if wait:
            now += wait + 1e-6
            assert wait_s(governor, INSTALLATION, WRITE_POINTS, now, urgency=urgency) == 0


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from(Urgency)), max_size=200))
def test_no_urgency_uses_the_points_reserved_for_higher_ones(steps: list[tuple[float, Urgency]]) -> None:
    governor, now, sent = GitHubRateLimiter(points_per_minute=480), T, list[float]()
    for pause, urgency in steps:
        now += pause
        if wait_s(governor, INSTALLATION, WRITE_POINTS, now, urgency=urgency) == 0:
            sent.append(now)
            assert WRITE_POINTS * sum(at + 60 > now for at in sent) <= 480 - KEPT_POINTS[urgency]


def test_content_has_its_own_limits_per_minute_and_hour() -> None:
    governor = GitHubRateLimiter()

    def comments(now: float) -> int:
        sent = 0
        while wait_s(governor, INSTALLATION, WRITE_POINTS, now, content=True) == 0:
            sent += 1
        return sent

    assert [comments(T + 60 * minute) for minute in range(8)] == [80, 80, 80, 80, 80, 80, 20, 0]
    assert wait_s(governor, INSTALLATION, WRITE_POINTS, T + 480, content=True) == 3120
    assert wait_s(governor, INSTALLATION, WRITE_POINTS, T + 480) == 0
    assert wait_s(governor, INSTALLATION + 1, WRITE_POINTS, T + 480, content=True) == 0
    assert comments(T + 3600) == 80


def test_content_that_is_held_back_costs_no_points() -> None:
    governor = GitHubRateLimiter(points_per_minute=500)
    for _ in range(80):
        assert wait_s(governor, INSTALLATION, WRITE_POINTS, T, content=True) == 0
    for _ in range(50):
        assert wait_s(governor, INSTALLATION, WRITE_POINTS, T, content=True) == 60
    assert [wait_s(governor, INSTALLATION, WRITE_POINTS, T) for _ in range(21)] == [0] * 20 + [60]


def test_an_exhausted_hour_blocks_until_its_reset() -> None:
    governor = GitHubRateLimiter()
    governor.observe(INSTALLATION, hour(2, T + 100), T)
    # The cost of the two in flight is not known yet: the third is checked again when their responses have arrived.
    assert [wait_s(governor, INSTALLATION, READ_POINTS, T) for _ in range(3)] == [0, 0, ANSWER_S]
    for left in (1, 0):
        governor.release(INSTALLATION, READ_POINTS)
        governor.observe(INSTALLATION, hour(left, T + 100), T)
    assert wait_s(governor, INSTALLATION, READ_POINTS, T) == 100
    assert wait_s(governor, INSTALLATION, 0, T) == 100
    assert wait_s(governor, INSTALLATION, READ_POINTS, T + 100) == 0
    governor.observe(INSTALLATION, hour(4999, T + 3700), T + 100)
    assert wait_s(governor, INSTALLATION, READ_POINTS, T + 101) == 0


def test_a_response_out_of_order_does_not_raise_the_count() -> None:
    governor = GitHubRateLimiter()
    governor.observe(INSTALLATION, hour(0, T + 100), T)
    governor.observe(INSTALLATION, hour(1, T + 100), T)
    governor.observe(INSTALLATION, hour(4000, T - 3500), T)
    # Another of GitHub's servers rounds the end of the same hour differently.
    governor.observe(INSTALLATION, hour(2, T + 101), T)
    assert wait_s(governor, INSTALLATION, READ_POINTS, T) == 100


@pytest.mark.parametrize(
    "headers", [{}, {"x-ratelimit-remaining": "0"}, hour(0, T) | {"x-ratelimit-reset": "?"}]
)
def test_missing_or_malformed_headers_are_ignored(headers: dict[str, str]) -> None:
    governor = GitHubRateLimiter()
    governor.observe(INSTALLATION, headers, T)
    assert wait_s(governor, INSTALLATION, READ_POINTS, T) == 0


def test_a_reset_in_the_far_future_blocks_for_an_hour_at_most() -> None:
    governor = GitHubRateLimiter()
    governor.observe(INSTALLATION, hour(0, T * 2), T)
    assert wait_s(governor, INSTALLATION, READ_POINTS, T) == 3600


def test_a_block_affects_one_installation_and_ends() -> None:
    governor = GitHubRateLimiter()
    assert governor.block(INSTALLATION, 7, T) == 7
    assert wait_s(governor, INSTALLATION, 0, T + 2) == 5
    assert wait_s(governor, APP, WRITE_POINTS, T + 2) == 0
    assert wait_s(governor, INSTALLATION, WRITE_POINTS, T + 7) == 0


def test_consecutive_blocks_double_and_a_success_resets_them() -> None:
    governor, now, waits = GitHubRateLimiter(), T, []
    for _ in range(8):
        waits.append(governor.block(INSTALLATION, 60, now))
        now += waits[-1]
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    governor.observe(INSTALLATION, {}, now)
    assert governor.block(INSTALLATION, 60, now) == 60


def test_concurrent_requests_that_hit_one_block_count_once() -> None:
    governor = GitHubRateLimiter()
    assert [governor.block(INSTALLATION, 60, T + i) for i in range(3)] == [60, 60, 60]
    governor.observe(INSTALLATION, {}, T + 3)
    assert wait_s(governor, INSTALLATION, 0, T + 3) == 59
    assert governor.block(INSTALLATION, 60, T + 62) == 120


def test_after_a_block_the_urgencies_resume_one_after_the_other() -> None:
    governor = GitHubRateLimiter()
    governor.block(INSTALLATION, 60, T)
    waits = [wait_s(governor, INSTALLATION, WRITE_POINTS, T, urgency=urgency) for urgency in Urgency]
    assert waits == [60 + RETURN_AFTER_S[urgency] for urgency in Urgency] == sorted(set(waits))
    assert wait_s(governor, INSTALLATION, WRITE_POINTS, T + 60) == 0
    assert (
        wait_s(governor, INSTALLATION, WRITE_POINTS, T + 60, urgency=Urgency.CHECKS)
        == RETURN_AFTER_S[Urgency.CHECKS]
    )


def test_after_an_exhausted_hour_the_urgencies_resume_one_after_the_other() -> None:
    governor = GitHubRateLimiter()
    governor.observe(INSTALLATION, hour(1_000, T), T - 60)
    assert wait_s(governor, INSTALLATION, WRITE_POINTS, T + 1) == 0
    governor.release(INSTALLATION, WRITE_POINTS)
    governor.observe(INSTALLATION, hour(4_999, T + 3600), T + 1)
    waits = [wait_s(governor, INSTALLATION, WRITE_POINTS, T + 1, urgency=urgency) for urgency in Urgency]
    assert waits == [0, *(RETURN_AFTER_S[urgency] - 1 for urgency in Urgency if urgency)]
    assert wait_s(governor, INSTALLATION, WRITE_POINTS, T + 16, urgency=Urgency.DETAILS) == 0


def test_the_end_of_the_hour_is_not_waited_for_twice() -> None:
    governor = GitHubRateLimiter()
    governor.block(INSTALLATION, 60, T)
    assert governor.block(INSTALLATION, 1800, T + 60, by=HeldBy.HOUR, headers=hour(0, T + 1860)) == 1800
    hold = governor.reserve(INSTALLATION, WRITE_POINTS, T + 60)
    assert hold is not None
    assert (hold.by, hold.wait_s) == (HeldBy.HOUR, 1800)


def test_a_queue_that_is_held_back_has_a_minimum_wait() -> None:
    governor = GitHubRateLimiter()
    while wait_s(governor, INSTALLATION, WRITE_POINTS, T) == 0:
        pass
    waits = [wait_s(governor, INSTALLATION, WRITE_POINTS, T + 59.9, urgency=urgency) for urgency in Urgency]
    assert waits == [LEAST_WAIT_S[urgency] for urgency in Urgency] == [0.5, 2, 5]


async def test_concurrent_requests_are_capped() -> None:
    governor = GitHubRateLimiter(concurrent=3)
    end, inside, most = asyncio.Event(), 0, 0

    async def request() -> None:
        nonlocal inside, most
        async with governor.slot():
            inside += 1
            most = max(most, inside)
            await end.wait()
            inside -= 1

    requests = [asyncio.create_task(request()) for _ in range(10)]
    await settle()
    assert inside == 3
    end.set()
    await asyncio.gather(*requests)
    assert most == 3


async def test_a_slot_that_stays_occupied_raises_outside_limited() -> None:
    governor = GitHubRateLimiter(concurrent=1, slot_wait_s=0)
    async with governor.slot():
        with pytest.raises(OutsideLimited):
            async with governor.slot():
                pass
    async with governor.slot():
        pass
