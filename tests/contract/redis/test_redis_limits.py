"""Rate limit windows in Redis: shared by all replicas, failing closed while Redis is down, recovering by themselves."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from crcr.errors import LimiterUnavailable, RateLimited
from crcr.record.limits.memory import Rule
from crcr.record.limits.redis import RedisLimits
from crcr.record.limits.redis_connection import CALL_S, RedisDown, RedisLink, parse_redis_url
from support.clock import ManualClock
from support.deploy.certificates import Authority
from support.services.redis import RedisServer, new_name, shared_redis

RULES = {"door": Rule(limit=40, window_s=60), "brief": Rule(limit=1, window_s=0.05)}
SOON_S = 10.0
"""A call times out in less than a second (tested below); the rest is for a machine that is busy with other tests."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis server that a test may stop."""
    started = RedisServer.make(password="hunter2-and-more")
    yield started
    started.remove()


@pytest.fixture
async def links() -> AsyncIterator[Callable[..., RedisLink]]:
    opened: list[RedisLink] = []
    name = new_name()

    def open_one(url: str | None = None, ca: Path | None = None) -> RedisLink:
        opened.append(RedisLink(parse_redis_url(url or shared_redis().url, ca), name=name))
        return opened[-1]

    yield open_one
    for link in opened:
        await link.aclose()


async def finish_soon(work: Awaitable[object]) -> None:
    """Await the call, which must end soon with any outcome."""
    async with asyncio.timeout(SOON_S):
        await work


async def retry_until_allowed(limits: RedisLimits) -> None:
    """Retry like a caller that got Retry-After, until the request is allowed."""
    async with asyncio.timeout(20):
        while True:
            with suppress(LimiterUnavailable):
                return await limits.take("door", "org/backend")
            await asyncio.sleep(0.02)


async def keys(link: RedisLink) -> list[str]:
    names = await link.call(lambda redis: redis.keys(link.key("*")))
    return [key.decode() if isinstance(key, bytes) else key for key in names]


async def test_two_replicas_share_a_window(links: Callable[..., RedisLink], clock: ManualClock) -> None:
    one, two = (RedisLimits(RULES, links(), clock) for _ in range(2))
    for _ in range(20):
        await one.take("door", "org/backend")
        await two.take("door", "org/backend")
    for limits in (one, two):
        with pytest.raises(RateLimited):
            await limits.check("door", "org/backend")


async def test_of_100_concurrent_requests_on_two_replicas_exactly_the_limit_is_allowed(
    links: Callable[..., RedisLink], clock: ManualClock
) -> None:
    replicas = [RedisLimits(RULES, links(), clock) for _ in range(2)]
    concurrent_takes = [replicas[number % 2].take("door", "org/backend") for number in range(100)]
    outcomes = await asyncio.gather(*concurrent_takes, return_exceptions=True)
    assert outcomes.count(None) == 40
    assert all(isinstance(outcome, RateLimited) for outcome in outcomes if outcome is not None)


async def test_replicas_with_different_clocks_never_exceed_the_limit(links: Callable[..., RedisLink]) -> None:
    ahead, behind = ManualClock(), ManualClock()
    ahead.advance(30)
    first, second = RedisLimits(RULES, links(), ahead), RedisLimits(RULES, links(), behind)
    await asyncio.gather(*(first.take("door", "s") for _ in range(39)))
    await second.take("door", "s")
    with pytest.raises(RateLimited) as refused:
        await second.take("door", "s")
    assert refused.value.retry_after_s == 60


async def test_windows_written_by_a_clock_hours_ahead_block_no_caller(
    links: Callable[..., RedisLink],
) -> None:
    ahead, correct = ManualClock(), ManualClock()
    ahead.advance(timedelta(hours=5))
    ahead_limits = RedisLimits(RULES, links(), ahead)
    await asyncio.gather(*(ahead_limits.take("door", "s") for _ in range(40)))
    await RedisLimits(RULES, links(), correct).take("door", "s")


async def test_without_a_clock_the_time_of_the_redis_server_is_used(links: Callable[..., RedisLink]) -> None:
    limits = RedisLimits(RULES, links())
    await limits.take("brief", "s")
    with pytest.raises(RateLimited) as refused:
        await limits.take("brief", "s")
    assert 0 < refused.value.retry_after_s <= 0.05
    async with asyncio.timeout(10):
        while True:
            with suppress(RateLimited):
                await limits.take("brief", "s")
                break


@pytest.mark.parametrize("subject", ["a\r\nFLUSHALL\r\n", "x" * 10_000, "\0", "*"])
async def test_a_key_has_a_fixed_length_and_expires(
    links: Callable[..., RedisLink], clock: ManualClock, subject: str
) -> None:
    link = links()
    limits = RedisLimits(RULES, link, clock)
    await limits.check("door", subject)
    assert await keys(link) == []
    await limits.take("door", subject)
    [key] = await keys(link)
    assert len(key) == len(link.key("limit", "door", "")) + 32
    left_ms = await link.call(lambda redis: redis.pttl(key))
    assert 0 < left_ms <= 61_000


async def test_the_limiter_works_after_scripts_were_flushed(
    links: Callable[..., RedisLink], clock: ManualClock
) -> None:
    link = links()
    limits = RedisLimits(RULES, link, clock)
    await limits.take("door", "s")
    await link.call(lambda redis: redis.script_flush())
    await limits.take("door", "s")
    await limits.take("door", "s")


def test_the_timeout_of_a_call_is_less_than_a_second() -> None:
    assert CALL_S < 1


async def test_a_stopped_redis_refuses_calls_soon_and_recovers(
    server: RedisServer, links: Callable[..., RedisLink]
) -> None:
    limits = RedisLimits(RULES, links(server.url))
    await limits.take("door", "org/backend")
    server.stop()
    for _ in range(3):
        with pytest.raises(LimiterUnavailable) as refused:
            await finish_soon(limits.take("door", "org/backend"))
        assert refused.value.retry_after_s
        assert "hunter2" not in str(refused.value)
    server.start()
    await retry_until_allowed(limits)


async def test_a_hanging_redis_refuses_all_calls_soon_and_recovers(
    server: RedisServer, links: Callable[..., RedisLink]
) -> None:
    limits = RedisLimits(RULES, links(server.url))
    await limits.take("door", "org/backend")
    server.freeze()
    began = time.monotonic()
    outcomes = await asyncio.gather(
        *(limits.take("door", f"org/{number}") for number in range(1_000)), return_exceptions=True
    )
    took_s = time.monotonic() - began
    server.thaw()
    assert all(isinstance(outcome, LimiterUnavailable) for outcome in outcomes)
    assert took_s < SOON_S
    await retry_until_allowed(limits)


async def test_an_unreachable_redis_is_unavailable_at_once(links: Callable[..., RedisLink]) -> None:
    limits = RedisLimits(RULES, links("redis://:hunter2@127.0.0.1:1/0"))
    for _ in range(2):
        with pytest.raises(LimiterUnavailable, match=r"redis://127\.0\.0\.1:1/0"):
            await finish_soon(limits.check("door", "s"))


async def test_a_wrong_password_is_refused_and_appears_in_no_error_or_output(
    server: RedisServer, links: Callable[..., RedisLink], capsys: pytest.CaptureFixture[str]
) -> None:
    limits = RedisLimits(RULES, links(server.url.replace("hunter2-and-more", "hunter3-and-less")))
    with pytest.raises(LimiterUnavailable) as refused:
        await limits.take("door", "s")
    assert "hunter" not in f"{refused.value!r} {refused.value.detail} {capsys.readouterr()}"
    assert refused.value.__cause__ is None


async def test_cancelled_callers_do_not_cancel_the_others(
    links: Callable[..., RedisLink], clock: ManualClock
) -> None:
    limits = RedisLimits(RULES, links(), clock)
    cancelled, other = (asyncio.create_task(limits.take("door", "s")) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    await other


async def test_tls_accepts_only_the_configured_authority_and_the_right_host_name(
    links: Callable[..., RedisLink], tmp_path: Path
) -> None:
    right, wrong = Authority.make(), Authority.make()
    for name, authority in (("right", right), ("wrong", wrong)):
        (tmp_path / name).write_bytes(authority.pem)
    server = RedisServer.make(authority=right)
    try:
        assert server.url.startswith("rediss://")
        await RedisLimits(RULES, links(server.url, tmp_path / "right")).take("door", "s")
        for ca in (tmp_path / "wrong", None):
            with pytest.raises(LimiterUnavailable):
                await finish_soon(RedisLimits(RULES, links(server.url, ca)).take("door", "s"))
        # The server listens on that address too, but its certificate is not valid for it.
        other_name = server.url.replace("127.0.0.1", "127.0.0.2")
        with pytest.raises(LimiterUnavailable):
            await finish_soon(RedisLimits(RULES, links(other_name, tmp_path / "right")).take("door", "s"))
    finally:
        server.remove()


class FailingLink(RedisLink):
    """A link whose calls raise an unexpected exception."""

    async def call(self, command: object) -> NoReturn:
        raise ValueError("a fault of ours")


async def test_an_unexpected_exception_leaves_no_caller_waiting() -> None:
    link = FailingLink(parse_redis_url("redis://127.0.0.1:1/0"))
    limits = RedisLimits(RULES, link)
    for _ in range(2):
        takes = [limits.take("door", str(number)) for number in range(200)]  # more than fit into one batch
        async with asyncio.timeout(SOON_S):
            outcomes = await asyncio.gather(*takes, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {LimiterUnavailable}
        assert limits._task is not None
        with pytest.raises(ValueError, match="of ours"):
            await limits._task
    await link.aclose()


async def test_new_connections_sign_in_with_the_rotated_password_or_the_next_token(
    server: RedisServer,
) -> None:
    link = RedisLink(parse_redis_url(server.url), name=new_name())
    tokens = ["first-token-of-iam", "second-token-of-iam"]
    by_token = RedisLink(
        replace(
            parse_redis_url(server.url), username="iam-user", password=None, make_token=lambda: tokens[0]
        ),
        name=new_name(),
    )

    async def execute(*words: str) -> object:
        return await link.call(lambda redis: redis.execute_command(*words))  # type: ignore[no-untyped-call]

    async def end_connections() -> None:
        for client in (link, by_token):
            await client._pool.disconnect()

    try:
        await execute("ACL", "SETUSER", "iam-user", "on", f">{tokens[0]}", "+@all", "~*")
        assert await by_token.call(lambda redis: redis.ping())
        await execute("ACL", "SETUSER", "iam-user", "resetpass", f">{tokens[1]}")
        await execute("CONFIG", "SET", "requirepass", "the-next-password")
        await end_connections()
        for client in (link, by_token):
            with pytest.raises(RedisDown):
                await client.call(lambda redis: redis.ping())
        tokens.pop(0)
        link.sign_in_as(parse_redis_url(server.url.replace("hunter2-and-more", "the-next-password")))
        async with asyncio.timeout(SOON_S):
            for client in (link, by_token):
                while True:
                    with suppress(RedisDown):
                        assert await client.call(lambda redis: redis.ping())
                        break
                    await asyncio.sleep(0.05)
    finally:
        await link.aclose()
        await by_token.aclose()
