"""A worker's claims: renewed while it works, checked after a pause, dropped when the lease is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

import pytest

from crcr.decide.model import EffectKind
from crcr.decide.outbox.effect import ClaimedEffect, FailedAttempt
from crcr.decide.outbox.worker_presence import GONE_AFTER
from crcr.deliver.held_effects import LEASE
from crcr.deliver.worker import Worker, WorkerMonitoring
from crcr.ports import check_lease
from support.clock import ManualClock, settle
from support.data.events_and_reports import NOW
from unit.deliver.test_worker import Counted, OneEffect


class Store(OneEffect):
    """An outbox with leases that others may take over, and effects of several targets."""

    def __init__(self, targets: int = 1) -> None:
        super().__init__(LEASE)
        self._waiting = [
            replace(self.effect, effect_id=number, target=f"org/{number}") for number in range(1, targets + 1)
        ]
        self.renewed_at: list[datetime] = []
        self.taken_over = False
        self.finished: list[int] = []

    async def renew(self, effect_ids: list[int], now: datetime, *, alone: bool) -> dict[int, datetime]:
        self.renewed_at.append(now)
        return {} if self.taken_over else dict.fromkeys(effect_ids, now + LEASE)

    async def finish(
        self, effect: ClaimedEffect, *, began_at: datetime | None, now: datetime, shadowed: bool = False
    ) -> bool:
        self.finished.append(effect.effect_id)
        return not self.taken_over

    async def fail(self, effect: ClaimedEffect, failure: FailedAttempt, now: datetime) -> None:
        raise AssertionError(failure.error)


class FakePresence:
    """A presence that counts as lapsed when other workers no longer see this worker."""

    def __init__(self, clock: ManualClock, store: Store) -> None:
        self._clock, self._store = clock, store
        self._attended_at = clock.now()
        self.lapses = 0

    @property
    def is_current(self) -> bool:
        return self._clock.now() - self._attended_at < GONE_AFTER

    async def beat(self) -> None:
        self._attended_at = self._clock.now()
        self.lapses += self._store.taken_over

    async def run(self) -> None:
        while True:
            await self._clock.sleep(2)
            await self.beat()


class WorkerSetup:
    """A worker in the middle of effects; their handlers wait, and then make one more outside call."""

    def __init__(self, targets: int = 1, concurrency: int = 64) -> None:
        self.clock, self.store = ManualClock(NOW), Store(targets)
        self.presence = FakePresence(self.clock, self.store)
        self.go_on = asyncio.Event()
        self.calls = 0
        self._worker = Worker(
            self.store,
            {EffectKind.SEND_DISPATCH: self._handle},
            clock=self.clock,
            chance=lambda: 0.5,
            monitoring=WorkerMonitoring(counters=Counted()),
            concurrency=concurrency,
            presence=self.presence,
        )

    async def _handle(self, _: ClaimedEffect) -> None:
        await self.go_on.wait()
        await check_lease.get()()
        self.calls += 1
        await check_lease.get()()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stopping, attending = asyncio.Event(), asyncio.create_task(self.presence.run())
        running = asyncio.create_task(self._worker.run(asyncio.Event(), stopping))
        await settle()
        yield
        self.go_on.set()
        await settle()
        stopping.set()
        await running
        attending.cancel()


async def test_a_lease_is_renewed_until_its_handler_ends() -> None:
    setup = WorkerSetup()
    async with setup.running():
        await setup.clock.pass_time(300)
    times = [NOW, *setup.store.renewed_at, setup.clock.now()]

    assert max(later - earlier for earlier, later in pairwise(times)) < LEASE / 2
    assert (setup.calls, setup.store.finished) == (1, [1])


@pytest.mark.parametrize("frozen_s", [9, 60])
async def test_fault_72_a_thawed_worker_with_a_lost_claim_makes_no_call_and_records_nothing(
    frozen_s: float,
) -> None:
    setup = WorkerSetup()
    async with setup.running():
        setup.store.taken_over = True
        setup.go_on.set()
        setup.clock.advance(frozen_s)  # in one step, as for a process that was frozen

    assert (setup.calls, setup.store.finished) == (0, [])


async def test_fault_72_a_claim_taken_over_after_its_lease_is_detected_before_the_next_call() -> None:
    """No process declared this worker dead, but its lease has expired."""
    setup = WorkerSetup()
    async with setup.running():
        setup.store.taken_over = True
        setup.presence.lapses = -1  # undoes the lapse that `beat` adds for the missing row
        setup.go_on.set()
        setup.clock.advance(LEASE)
        setup.presence.lapses = 0

    assert (setup.calls, setup.store.finished) == (0, [])


async def test_a_freeze_without_a_takeover_changes_nothing() -> None:
    setup = WorkerSetup()
    async with setup.running():
        setup.go_on.set()
        setup.clock.advance(60)

    assert (setup.calls, setup.store.finished) == (1, [1])


async def test_fault_72_claimed_effects_not_yet_begun_are_released_after_a_freeze() -> None:
    setup = WorkerSetup(targets=3, concurrency=1)
    async with setup.running():
        setup.store.taken_over = True
        setup.clock.advance(GONE_AFTER)

    assert setup.calls == 0
    assert sorted(effect.effect_id for effect in setup.store.released) == [2, 3]
