"""Contract of all adapters of `ports.RequestLimiter`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.errors import LimiterUnavailable, RateLimited
from crcr.ports import Clock, RequestLimiter
from crcr.receive.callback.intake import CALLBACK, FAILED_AUTHENTICATION
from crcr.record.limits.memory import MemoryLimits, Rule
from crcr.record.limits.redis import RedisLimits
from crcr.record.limits.redis_connection import RedisLink, parse_redis_url
from support.clock import ManualClock
from support.services.redis import new_name, shared_redis

RULES = {CALLBACK: Rule(limit=300, window_s=60), FAILED_AUTHENTICATION: Rule(limit=30, window_s=60)}

Build = Callable[[Mapping[str, Rule], Clock], AbstractAsyncContextManager[RequestLimiter]]
"""Makes a limiter whose windows are all empty."""


@asynccontextmanager
async def in_memory(rules: Mapping[str, Rule], clock: Clock) -> AsyncIterator[RequestLimiter]:
    yield MemoryLimits(rules, clock)


@asynccontextmanager
async def in_redis(rules: Mapping[str, Rule], clock: Clock) -> AsyncIterator[RequestLimiter]:
    link = RedisLink(parse_redis_url(shared_redis().url), name=new_name())
    yield RedisLimits(rules, link, clock)
    await link.aclose()


ADAPTERS: dict[str, Build] = {"memory": in_memory, "redis": in_redis}


@pytest.fixture(params=ADAPTERS, scope="module")
def build(request: pytest.FixtureRequest) -> Build:
    return ADAPTERS[request.param]


@pytest.fixture
async def limits(build: Build, clock: ManualClock) -> AsyncIterator[RequestLimiter]:
    async with build(RULES, clock) as limiter:
        yield limiter


async def take(
    limits: RequestLimiter, times: int, *, subject: str = "org/backend", scope: str = CALLBACK
) -> None:
    for _ in range(times):
        await limits.take(scope, subject)


async def refusal(
    limits: RequestLimiter, *, subject: str = "org/backend", scope: str = CALLBACK
) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        await limits.take(scope, subject)
    return caught.value


async def test_sixty_matrix_jobs_that_start_at_the_same_time_are_allowed(limits: RequestLimiter) -> None:
    """Fault 21, with `in_progress` and `completed` of each job within the same minute."""
    await asyncio.gather(*(limits.take(CALLBACK, "org/backend") for _ in range(120)))


async def test_the_301st_request_in_a_minute_is_refused_until_its_retry_after_time(
    limits: RequestLimiter, clock: ManualClock
) -> None:
    await take(limits, 1)
    clock.advance(12.345678)
    await take(limits, 299)
    refused = await refusal(limits)
    assert 0 < refused.retry_after_s <= 60
    clock.advance(refused.retry_after_s - 0.000_01)
    await refusal(limits)
    clock.advance(0.000_01)
    await take(limits, 1)
    assert (await refusal(limits)).retry_after_s == pytest.approx(12.345678)


async def test_of_300_concurrent_requests_for_the_last_slot_one_is_allowed(limits: RequestLimiter) -> None:
    await take(limits, 299)
    concurrent_takes = [limits.take(CALLBACK, "org/backend") for _ in range(300)]
    outcomes = await asyncio.gather(*concurrent_takes, return_exceptions=True)
    assert outcomes.count(None) == 1


async def test_a_refused_take_does_not_count(limits: RequestLimiter, clock: ManualClock) -> None:
    await take(limits, 300)
    for _ in range(59):
        clock.advance(1)
        await refusal(limits)
    clock.advance(1)
    await take(limits, 300)


async def test_each_subject_and_scope_has_its_own_window(limits: RequestLimiter) -> None:
    await take(limits, 30, subject="192.0.2.1", scope=FAILED_AUTHENTICATION)
    await refusal(limits, subject="192.0.2.1", scope=FAILED_AUTHENTICATION)
    await take(limits, 1, subject="192.0.2.2", scope=FAILED_AUTHENTICATION)
    await take(limits, 1, subject="192.0.2.1", scope=CALLBACK)


async def test_check_refuses_like_take_and_counts_nothing(limits: RequestLimiter, clock: ManualClock) -> None:
    for _ in range(1_000):
        await limits.check(CALLBACK, "org/backend")
    await take(limits, 300)
    with pytest.raises(RateLimited) as caught:
        await limits.check(CALLBACK, "org/backend")
    clock.advance(caught.value.retry_after_s)
    await limits.check(CALLBACK, "org/backend")


async def test_a_refusal_names_the_limit_the_window_and_what_to_do(limits: RequestLimiter) -> None:
    await take(limits, 30, scope=FAILED_AUTHENTICATION)
    refused = await refusal(limits, scope=FAILED_AUTHENTICATION)
    assert refused.detail == f"more than 30 in 60 s ({FAILED_AUTHENTICATION})"
    assert refused.retry_after_s == 60
    assert refused.hint
    assert "Retry-After" in refused.hint


@pytest.mark.parametrize("subject", ["", "a:b", "a b", "é", "a\nb", "*", "x" * 10_000, "\ud800", "\0"])
async def test_any_text_can_be_a_subject(limits: RequestLimiter, subject: str) -> None:
    await take(limits, 300, subject=subject)
    await refusal(limits, subject=subject)
    await take(limits, 1, subject=subject + "!")


@given(
    limit=st.integers(1, 5),
    pauses=st.lists(st.integers(0, 12_000).map(lambda ms: ms / 1000), max_size=60),
)
async def test_no_window_ever_holds_more_than_its_limit(
    build: Build, limit: int, pauses: list[float]
) -> None:
    clock = ManualClock()
    taken: list[datetime] = []
    async with build({"scope": Rule(limit, 10)}, clock) as limits:
        for pause in pauses:
            now = clock.advance(pause)
            recent = [moment for moment in taken if (now - moment).total_seconds() < 10]
            if len(recent) < limit:
                await limits.take("scope", "subject")
                taken.append(now)
            else:
                refused = await refusal(limits, scope="scope", subject="subject")
                assert refused.retry_after_s == pytest.approx(10 - (now - recent[0]).total_seconds())


async def test_in_memory_empty_windows_are_forgotten(clock: ManualClock) -> None:
    limits = MemoryLimits(RULES, clock, max_subjects=100)
    for round_number in range(3):
        for number in range(100):
            await limits.take(CALLBACK, f"org/{round_number}-{number}")
        clock.advance(60)
    await limits.take(CALLBACK, "org/last")
    assert list(limits._scopes[CALLBACK]._taken) == ["org/last"]


async def test_in_memory_too_many_live_subjects_fail_closed_and_evict_no_subject(clock: ManualClock) -> None:
    limits = MemoryLimits({CALLBACK: Rule(1, 60)}, clock, max_subjects=2)
    await limits.take(CALLBACK, "org/first")
    await limits.take(CALLBACK, "org/second")
    with pytest.raises(LimiterUnavailable):
        await limits.take(CALLBACK, "org/third")
    await refusal(limits, subject="org/first")


@pytest.mark.parametrize(("limit", "window_s"), [(0, 60), (-1, 60), (1, 0), (1, -1)])
def test_a_rule_with_a_non_positive_limit_or_window_is_invalid(limit: int, window_s: float) -> None:
    with pytest.raises(ValueError, match="limit"):
        Rule(limit, window_s)
