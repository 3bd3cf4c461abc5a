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
        self.readings = 0
        self.away = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def health(self, now: datetime) -> dict[RepoName, Health]:
        self.readings += 1
        await asyncio.sleep(0)
        await self.answers.wait()
        if self.away:
            raise StoreUnavailable(f"no answer at {now}")
        return {UPSTREAM: Health(HealthState.AMBER if self.readings > 1 else HealthState.GREEN)}


async def test_five_hundred_readers_cost_one_reading_every_few_seconds() -> None:
    store, clock = Store(), ManualClock()
    health = SharedHealth(store, clock)
    found = await asyncio.gather(*(health.read_upstream(UPSTREAM) for _ in range(500)))
    assert ({each.state for each in found if each}, store.readings) == ({HealthState.GREEN}, 1)
    clock.advance(SHARED_FOR_S)
    found = await asyncio.gather(*(health.read_upstream(UPSTREAM) for _ in range(500)))
    assert store.readings == 2
    assert [each.state for each in found if each].count(
        HealthState.GREEN
    ) == 499  # nobody waits for the first


async def test_a_store_that_is_away_is_no_health_and_not_a_green_one() -> None:
    store, clock = Store(), ManualClock()
    health = SharedHealth(store, clock)
    await health.read_upstream(UPSTREAM)
    store.away = True
    clock.advance(SHARED_FOR_S)
    assert await health.read_upstream(UPSTREAM) is None


async def test_a_reading_that_takes_long_is_not_waited_for_and_serves_who_asks_next() -> None:
    store, clock = Store(), ManualClock()
    health = SharedHealth(store, clock)
    store.answers.clear()
    assert [await health.read_within(0.01) for _ in range(3)] == [{}, {}, {}]
    assert store.readings == 1
    store.answers.set()
    assert (await health.read_within(5))[UPSTREAM].state is HealthState.GREEN
    assert store.readings == 1

    store.answers.clear()
    clock.advance(SHARED_FOR_S)
    found = await asyncio.gather(*(health.read_within(0.01) for _ in range(50)))
    assert ({each[UPSTREAM].state for each in found}, store.readings) == ({HealthState.GREEN}, 2)
    clock.advance(60)
    assert await health.read_within(0.01) == {}  # too old to be told
    store.away = True
    store.answers.set()
    assert await health.read_within(5) == {}


async def test_where_nothing_is_shared_each_reads_for_itself() -> None:
    store, clock = Store(), ManualClock()
    health = SharedHealth(store, clock, shared_for_s=0)
    found = [(await health.read_within(0))[UPSTREAM].state for _ in range(2)]
    assert (found, store.readings) == ([HealthState.GREEN, HealthState.AMBER], 2)
