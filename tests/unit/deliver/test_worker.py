"""The worker through its ports: what it claims, releases and survives."""

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
    """An outbox that hands out one effect, under a lease of this length, and remembers what became of it."""

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
    """Let a worker run until it has nothing to do; return how often it began, and what crashed."""
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
async def test_fault_10_what_may_soon_be_another_workers_is_given_back_unbegun(
    lease_s: int, begun: int
) -> None:
    outbox = OneEffect(timedelta(seconds=lease_s))
    assert await work(outbox) == (begun, [])
    assert outbox.released == ([] if begun else [outbox.effect])


async def test_an_effect_that_crashes_is_tried_again_as_unsure_and_ends_nobody() -> None:
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
async def test_each_fault_leads_to_its_own_decision(
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

    async def meets(self, result: Exception | bool) -> bool:
        """One more effect, with this result; whether it was begun at all."""
        self._result, self._begun = result, False
        self._outbox.put()
        await self._worker.drain()
        return self._begun


AWAY = OutsideUnreachable("refused")


async def test_an_effect_that_was_pointless_does_not_make_a_failing_target_look_well() -> None:
    target = OneTarget()
    for _ in range(TRIPS_AT - 1):
        await target.meets(AWAY)
    await target.meets(False)
    assert await target.meets(AWAY)
    assert not await target.meets(True)


async def test_an_effect_that_was_pointless_does_not_hold_back_the_next_one() -> None:
    target = OneTarget()
    for _ in range(TRIPS_AT):
        await target.meets(AWAY)
    target.clock.advance(FIRST_PAUSE_S)
    assert await target.meets(False)
    assert await target.meets(AWAY)
    assert not await target.meets(True)


async def test_an_effect_that_was_done_shows_that_the_target_is_well() -> None:
    target = OneTarget()
    for _ in range(TRIPS_AT - 1):
        await target.meets(AWAY)
    await target.meets(True)
    assert await target.meets(AWAY)
    assert await target.meets(True)


class Forgetful(OneEffect):
    """An outbox whose store is away for the next so many outcomes."""

    away = 0

    async def finish(
        self, effect: ClaimedEffect, *, began_at: datetime | None, now: datetime, shadowed: bool = False
    ) -> bool:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("PostgreSQL is away")
        self.finished = True
        return True

    finished = False


@pytest.mark.parametrize(("outages", "finished"), [(1, True), (60, True), (200, False)])
async def test_fault_05_an_outcome_is_written_down_as_soon_as_the_store_is_back_while_the_lease_holds(
    outages: int, finished: bool
) -> None:
    outbox, clock, begun = Forgetful(timedelta(seconds=120)), ManualClock(NOW), list[ClaimedEffect]()
    outbox.away = outages

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
