"""One query of the relay's health serves all readers of a process for a few seconds."""

import asyncio
from datetime import datetime

from crcr.decide.health.relay import Health, HealthState
from crcr.decide.model import RepoName
from crcr.errors import StoreUnavailable
from crcr.show.live.shared_health import SHARED_FOR_S, SharedHealth
from support.clock import ManualClock

UPSTREAM = RepoName("owner/repo")


class Store:
    def __init__(self) -> None:
        self.queries = 0
        self.is_down = False
        self.can_answer = asyncio.Event()
        self.can_answer.set()

    async def health(self, now: datetime) -> dict[RepoName, Health]:
        self.queries += 1
        await asyncio.sleep(0)
        await self.can_answer.wait()
        if self.is_down:
            raise StoreUnavailable(f"no answer at {now}")
        return {UPSTREAM: Health(HealthState.AMBER if self.queries > 1 else HealthState.GREEN)}


async def test_five_hundred_readers_share_one_query_every_few_seconds() -> None:
    store, clock = Store(), ManualClock()
    health = SharedHealth(store, clock)
    answers = await asyncio.gather(*(health.read_upstream(UPSTREAM) for _ in range(500)))
    assert (
        {health_of_upstream.state for health_of_upstream in answers if health_of_upstream},
        store.queries,
    ) == ({HealthState.GREEN}, 1)
    clock.advance(SHARED_FOR_S)
    answers = await asyncio.gather(*(health.read_upstream(UPSTREAM) for _ in range(500)))
    assert store.queries == 2
    assert [health_of_upstream.state for health_of_upstream in answers if health_of_upstream].count(
        HealthState.GREEN
    ) == 499  # the other readers do not wait for the query


async def test_health_is_unknown_and_not_green_during_a_store_outage() -> None:
    store, clock = Store(), ManualClock()
    health = SharedHealth(store, clock)
    await health.read_upstream(UPSTREAM)
    store.is_down = True
    clock.advance(SHARED_FOR_S)
    assert await health.read_upstream(UPSTREAM) is None


async def test_a_slow_health_query_is_not_waited_for_and_serves_the_next_reader() -> None:
    store, clock = Store(), ManualClock()
    health = SharedHealth(store, clock)
    store.can_answer.clear()
    assert [await health.read_within(0.01) for _ in range(3)] == [{}, {}, {}]
    assert store.queries == 1
    store.can_answer.set()
    assert (await health.read_within(5))[UPSTREAM].state is HealthState.GREEN
    assert store.queries == 1

    store.can_answer.clear()
    clock.advance(SHARED_FOR_S)
    answers = await asyncio.gather(*(health.read_within(0.01) for _ in range(50)))
    assert ({answer[UPSTREAM].state for answer in answers}, store.queries) == ({HealthState.GREEN}, 2)
    clock.advance(60)
    assert await health.read_within(0.01) == {}  # too old to be shown
    store.is_down = True
    store.can_answer.set()
    assert await health.read_within(5) == {}


async def test_without_sharing_each_reader_runs_its_own_query() -> None:
    store, clock = Store(), ManualClock()
    health = SharedHealth(store, clock, shared_for_s=0)
    states = [(await health.read_within(0))[UPSTREAM].state for _ in range(2)]
    assert (states, store.queries) == ([HealthState.GREEN, HealthState.AMBER], 2)
