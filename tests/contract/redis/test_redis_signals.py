"""Wake-ups through Redis: every replica hears of every commit, and nobody waits for Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
from redis.asyncio import Redis

from crcr.record.redis.connection import RedisLink, parse_redis_url
from crcr.record.redis.signals import RedisSignals
from crcr.record.store.signals import ALLOWLIST, CHANGES, EFFECTS, Signals
from support.services.redis import RedisServer, new_name, shared_redis

ENOUGH_S = 20


@asynccontextmanager
async def replica(name: str, url: str | None = None) -> AsyncIterator[tuple[Signals, RedisSignals]]:
    signals = Signals()
    link = RedisLink(parse_redis_url(url or shared_redis().url), name=name)
    carried = RedisSignals(link, signals)
    signals.forward_to(carried.carry)
    running = asyncio.create_task(carried.run())
    yield signals, carried
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await link.aclose()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    made = RedisServer.make()
    yield made
    made.remove()


async def woken(event: asyncio.Event) -> None:
    async with asyncio.timeout(ENOUGH_S):
        await event.wait()
    event.clear()


async def test_what_one_commits_wakes_the_others(signals_name: str) -> None:
    async with replica(signals_name) as (one, here), replica(signals_name) as (two, there):
        await woken_both(here, there)
        heard = {name: two.subscribe(name) for name in (CHANGES, EFFECTS, ALLOWLIST)}
        one.notify(CHANGES)
        one.notify(ALLOWLIST)
        await woken(heard[CHANGES])
        await woken(heard[ALLOWLIST])
        assert not heard[EFFECTS].is_set()


@pytest.fixture
def signals_name() -> str:
    return new_name()


async def woken_both(*replicas: RedisSignals) -> None:
    async with asyncio.timeout(ENOUGH_S):
        for each in replicas:
            await each.listening.wait()


async def test_what_was_heard_is_not_told_again(signals_name: str) -> None:
    async with replica(signals_name) as (one, here), replica(signals_name) as (two, there):
        await woken_both(here, there)
        mine, theirs = one.subscribe(CHANGES), two.subscribe(CHANGES)
        one.notify(CHANGES)
        await woken(mine)
        await woken(theirs)
        later = one.subscribe(EFFECTS)
        two.notify(EFFECTS)  # comes after an echo of the other, if there was one
        await woken(later)
        assert not mine.is_set()
        assert not theirs.is_set()


async def test_a_storm_of_commits_is_a_few_messages(signals_name: str) -> None:
    watcher = RedisLink(parse_redis_url(shared_redis().url), name=signals_name)
    async with (
        replica(signals_name) as (one, here),
        watcher.alone() as client,
        client.pubsub(ignore_subscribe_messages=True) as subscription,
    ):
        await subscription.subscribe(watcher.key("signals"))
        await woken_both(here)
        for _ in range(5_000):
            one.notify(CHANGES)
        one.notify(EFFECTS)
        messages: list[bytes] = []
        async with asyncio.timeout(ENOUGH_S):
            while not messages or b"effects" not in messages[-1]:
                found = await subscription.get_message(timeout=5)
                messages += [found["data"]] if found else []
        assert len(messages) <= 2
    await watcher.aclose()


async def test_after_an_outage_everybody_looks_once_and_hears_again(server: RedisServer) -> None:
    async with replica("crcr", server.url) as (one, here), replica("crcr", server.url) as (two, there):
        await woken_both(here, there)
        heard = two.subscribe(CHANGES)
        server.stop()
        one.notify(CHANGES)  # nobody waits for it, and nothing fails
        server.start()
        await woken(heard)
        await woken_both(here, there)
        heard.clear()
        one.notify(CHANGES)
        await woken(heard)


async def published(redis: Redis, channel: str, message: bytes) -> None:
    await redis.publish(channel, message)


async def test_strange_messages_wake_nobody_and_break_nothing(signals_name: str) -> None:
    stranger = RedisLink(parse_redis_url(shared_redis().url), name=signals_name)
    async with replica(signals_name) as (one, here):
        await woken_both(here)
        heard, other = one.subscribe(CHANGES), one.subscribe("made-up")
        for message in (b"", b"\xff\xfe", b"changes", b"x:made-up", b"x:" + b"changes," * 10_000):
            await stranger.call(partial(published, channel=stranger.key("signals"), message=message))
        assert not heard.is_set()
        await stranger.call(partial(published, channel=stranger.key("signals"), message=b"x:changes"))
        await woken(heard)
        assert not other.is_set()
    await stranger.aclose()


async def test_a_replica_that_stops_in_the_midst_of_telling_does_stop(signals_name: str) -> None:
    for turns in range(30):
        async with asyncio.timeout(ENOUGH_S), replica(signals_name) as (one, here):
            await here.listening.wait()
            one.notify(CHANGES)
            for _ in range(turns):
                await asyncio.sleep(0)
