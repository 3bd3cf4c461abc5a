"""One reading of the relay's health serves all readers of a process for a few seconds."""

import asyncio
from datetime import datetime

from clock import ManualClock
from crcr.decide.health import Health, HealthState
from crcr.decide.model import RepoName
from crcr.errors import StoreUnavailable
from crcr.show.shared_health import SHARED_FOR_S, SharedHealth

UPSTREAM = RepoName("owner/repo")


class Store:
    def __init__(self) -> None:
        self.readings = 0
        self.away = False

    async def health(self, now: datetime) -> dict[RepoName, Health]:
        self.readings += 1
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable(f"no answer at {now}")
        return {UPSTREAM: Health(HealthState.AMBER if self.readings > 1 else HealthState.GREEN)}


async def test_five_hundred_readers_cost_one_reading_every_few_seconds() -> None:
    store, clock = Store(), ManualClock()
    health = SharedHealth(store, clock)
    found = await asyncio.gather(*(health.of(UPSTREAM) for _ in range(500)))
    assert ({each.state for each in found if each}, store.readings) == ({HealthState.GREEN}, 1)
    clock.advance(SHARED_FOR_S)
    found = await asyncio.gather(*(health.of(UPSTREAM) for _ in range(500)))
    assert store.readings == 2
    assert [each.state for each in found if each].count(
        HealthState.GREEN
    ) == 499  # nobody waits for the first


async def test_a_store_that_is_away_is_no_health_and_not_a_green_one() -> None:
    store, clock = Store(), ManualClock()
    health = SharedHealth(store, clock)
    await health.of(UPSTREAM)
    store.away = True
    clock.advance(SHARED_FOR_S)
    assert await health.of(UPSTREAM) is None
