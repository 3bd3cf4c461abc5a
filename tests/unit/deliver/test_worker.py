"""The worker with test doubles for its ports: claims, releases, and errors of handlers and store."""

import asyncio
from datetime import datetime, timedelta

import pytest

from crcr.decide.model import EffectKind
from crcr.decide.outbox.effect import ClaimedEffect, FailedAttempt
from crcr.decide.outbox.retry import FIRST_PAUSE_S, TRIPS_AT, TryAgain
from crcr.deliver.worker import Worker, WorkerMonitoring
from crcr.errors import (
    NotFound,
    OutsideLimited,
    OutsideRefused,
    OutsideUnreachable,
    OutsideUnsure,
    StoreUnavailable,
)
from support.clock import ManualClock, settle
from support.data.events_and_reports import NOW, UPSTREAM


class OneEffect:
    """An outbox with one effect, under a lease of this length; it records the outcome."""

    def __init__(self, lease: timedelta) -> None:
        self.effect = ClaimedEffect(
            effect_id=1,
            upstream=UPSTREAM,
            kind=EffectKind.SEND_DISPATCH,
            target="org/backend",
            lane="pull/1",
            delivery="guid",
            payload=None,
            attempts=1,
            unsure=False,
            created_at=NOW,
            first_attempt_at=NOW,
            lease_until=NOW + lease,
        )
        self._waiting = [self.effect]
        self.released: list[ClaimedEffect] = []
        self.failures: list[FailedAttempt] = []

    def put(self) -> None:
        self._waiting = [self.effect]

    async def claim(self, most: int, now: datetime) -> list[ClaimedEffect]:
        claimed, self._waiting = self._waiting[:most], []
        return claimed

    async def finish(
        self, effect: ClaimedEffect, *, began_at: datetime | None, now: datetime, shadowed: bool = False
    ) -> bool:
        return True

    async def fail(self, effect: ClaimedEffect, failure: FailedAttempt, now: datetime) -> None:
        self.failures.append(failure)

    async def postpone(self, effect: ClaimedEffect, until: datetime) -> None: ...

    async def release(self, effects: list[ClaimedEffect]) -> None:
        self.released += effects

    async def renew(self, effect_ids: list[int], now: datetime, *, alone: bool) -> dict[int, datetime]:
        return {}

    async def next_due(self, now: datetime) -> datetime | None:
        return None


class Counted:
    def effect(self, kind: str, outcome: str) -> None: ...
    def dispatch_latency(self, seconds: float) -> None: ...


async def work(outbox: OneEffect, error: Exception | None = None) -> tuple[int, list[Exception]]:
    """Run a worker until it is idle; return the number of effects that it began, and the crashes."""
    begun, crashes = [], list[Exception]()

    async def handle(effect: ClaimedEffect) -> None:
        begun.append(effect)
        if error is not None:
            raise error

    handlers = {EffectKind.SEND_DISPATCH: handle}
    clock = ManualClock(NOW)
    worker = Worker(
        outbox,
        handlers,
        clock=clock,
        chance=lambda: 0.5,
        monitoring=WorkerMonitoring(counters=Counted(), on_crash=crashes.append),
    )
    stopping = asyncio.Event()
    running = asyncio.create_task(worker.run(asyncio.Event(), stopping))
    await settle()
    stopping.set()
    await running
    return len(begun), crashes


@pytest.mark.parametrize(("lease_s", "begun"), [(20, 1), (12, 1), (10, 0), (-1, 0)])
async def test_fault_10_an_effect_with_a_lease_about_to_expire_is_released_without_being_begun(
    lease_s: int, begun: int
) -> None:
    outbox = OneEffect(timedelta(seconds=lease_s))
    assert await work(outbox) == (begun, [])
    assert outbox.released == ([] if begun else [outbox.effect])


async def test_an_effect_that_crashes_is_retried_as_unsure_and_does_not_end_the_worker() -> None:
    outbox, bug = OneEffect(timedelta(seconds=120)), ZeroDivisionError("a bug")
    assert await work(outbox, bug) == (1, [bug])
    [failure] = outbox.failures
    assert failure.unsure
    assert failure.counts


@pytest.mark.parametrize(
    ("error", "again", "unsure", "counts"),
    [
        (OutsideUnsure("a time-out"), True, True, True),
        (OutsideUnreachable("refused"), True, False, True),
        (OutsideLimited("wait", retry_after_s=60), True, False, False),
        (StoreUnavailable("PostgreSQL is away"), True, True, False),
        (OutsideRefused("the token was not taken", status=401), True, False, True),
        (OutsideRefused("too large", status=422), False, False, True),
        (NotFound("the body is gone"), False, False, True),
    ],
)
async def test_each_error_leads_to_its_retry_decision(
    error: Exception, again: bool, unsure: bool, counts: bool
) -> None:
    outbox = OneEffect(timedelta(seconds=120))
    await work(outbox, error)
    [failure] = outbox.failures
    assert (isinstance(failure.decision, TryAgain), failure.unsure, failure.counts) == (again, unsure, counts)


class OneTarget:
    """A worker whose effects all go to the same target."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self._outbox = OneEffect(timedelta(days=1))
        self._result: Exception | bool = True
        self._begun = False
        handlers = {EffectKind.SEND_DISPATCH: self._handle}
        self._worker = Worker(
            self._outbox,
            handlers,
            clock=self.clock,
            chance=lambda: 0.5,
            monitoring=WorkerMonitoring(counters=Counted()),
        )

    async def _handle(self, _: ClaimedEffect) -> bool:
        self._begun = True
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    async def run_effect(self, result: Exception | bool) -> bool:
        """Run one more effect with this result; return whether it was begun at all."""
        self._result, self._begun = result, False
        self._outbox.put()
        await self._worker.drain()
        return self._begun


AWAY = OutsideUnreachable("refused")


async def test_a_skipped_effect_does_not_reset_the_failure_count_of_its_target() -> None:
    target = OneTarget()
    for _ in range(TRIPS_AT - 1):
        await target.run_effect(AWAY)
    await target.run_effect(False)
    assert await target.run_effect(AWAY)
    assert not await target.run_effect(True)


async def test_a_skipped_effect_does_not_hold_back_the_next_one() -> None:
    target = OneTarget()
    for _ in range(TRIPS_AT):
        await target.run_effect(AWAY)
    target.clock.advance(FIRST_PAUSE_S)
    assert await target.run_effect(False)
    assert await target.run_effect(AWAY)
    assert not await target.run_effect(True)


async def test_a_successful_effect_resets_the_failure_count_of_its_target() -> None:
    target = OneTarget()
    for _ in range(TRIPS_AT - 1):
        await target.run_effect(AWAY)
    await target.run_effect(True)
    assert await target.run_effect(AWAY)
    assert await target.run_effect(True)


class OutboxWithOutage(OneEffect):
    """An outbox whose store fails for the next `outages_left` outcomes."""

    outages_left = 0

    async def finish(
        self, effect: ClaimedEffect, *, began_at: datetime | None, now: datetime, shadowed: bool = False
    ) -> bool:
        if self.outages_left:
            self.outages_left -= 1
            raise StoreUnavailable("PostgreSQL is away")
        self.finished = True
        return True

    finished = False


@pytest.mark.parametrize(("outages", "finished"), [(1, True), (60, True), (200, False)])
async def test_fault_05_an_outcome_is_stored_once_the_store_is_back_while_the_lease_holds(
    outages: int, finished: bool
) -> None:
    outbox, clock, begun = OutboxWithOutage(timedelta(seconds=120)), ManualClock(NOW), list[ClaimedEffect]()
    outbox.outages_left = outages

    async def handle(effect: ClaimedEffect) -> None:
        begun.append(effect)

    handlers = {EffectKind.SEND_DISPATCH: handle}
    worker = Worker(
        outbox, handlers, clock=clock, chance=lambda: 0.5, monitoring=WorkerMonitoring(counters=Counted())
    )
    draining = asyncio.create_task(worker.drain())
    for _ in range(130):
        await settle()
        clock.advance(1)
    await draining
    assert outbox.finished is finished
    assert len(begun) == 1, "what was done is not done again for the sake of its record"
