"""One effect held back by a GitHub limit: which other effects wait with it, and in which order they resume."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol

import pytest

from crcr.decide.github.requests_and_answers import Urgency
from crcr.decide.model import EffectKind
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.deliver.worker import Worker, WorkerMonitoring
from crcr.errors import HeldBy, OutsideLimited
from crcr.record.outbox.effects import add_effects, add_once, add_paced, effect_row
from crcr.record.store.database import Tx
from crcr.show.metrics.registry import RelayMetrics
from support.clock import ManualClock
from support.stores.databases import CORE, Stores

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GATES, BACKENDS, JOBS, BACKEND = "checks/gate", "checks/backend", "checks/job", "org/backend"
PUBLISH, SEND, LOOK_UP = EffectKind.PUBLISH_CHECKS, EffectKind.SEND_DISPATCH, EffectKind.LOOK_UP


class LimitedWorker:
    """A worker whose calls of some urgencies are held back until a time; records its attempts."""

    def __init__(self, stores: Stores, urgency_of: Callable[[ClaimedEffect], Urgency]) -> None:
        self.clock = ManualClock()
        self.tried: list[ClaimedEffect] = []
        self.held: dict[Urgency, HeldBy] = {}
        self.until = NOW + timedelta(minutes=30)
        self._urgency_of = urgency_of
        handlers: dict[EffectKind, Callable[[ClaimedEffect], Awaitable[bool | None]]]
        handlers = dict.fromkeys((PUBLISH, SEND, LOOK_UP), self._do)
        outbox = stores.outbox("one")
        self.worker = Worker(
            outbox,
            handlers,
            clock=self.clock,
            chance=lambda: 0.0,
            monitoring=WorkerMonitoring(counters=RelayMetrics()),
        )

    async def _do(self, effect: ClaimedEffect) -> None:
        self.tried.append(effect)
        urgency = self._urgency_of(effect)
        if urgency in self.held and self.clock.now() < self.until:
            wait_s = (self.until - self.clock.now()).total_seconds()
            held_by = self.held[urgency]
            raise OutsideLimited("held", retry_after_s=wait_s, held_by=held_by, urgency=urgency)


async def add(stores: Stores, *queues: tuple[EffectKind, str], times: int) -> None:
    async def unit(tx: Tx) -> None:
        rows = [
            effect_row(CORE, kind, target=target, lane=f"{kind} {number}", now=NOW)
            for number in range(times)
            for kind, target in queues
        ]
        await add_effects(tx, rows)

    await stores.database.write(unit)


async def held_effects(stores: Stores, target: str) -> list[dict[str, Any]]:
    return await stores.rows(
        "SELECT effect_id, kind, held_by, attempts, due_at FROM effects"  # noqa: S608
        f" WHERE target = '{target}' AND state = 'waiting' ORDER BY due_at"
    )


def effect_urgency(effect: ClaimedEffect) -> Urgency:
    return {GATES: Urgency.FIRST, BACKENDS: Urgency.CHECKS, JOBS: Urgency.DETAILS}[effect.target]


async def test_held_job_checks_cost_one_attempt_and_resume_in_order(stores: Stores) -> None:
    await stores.prepare({CORE: ""}, NOW)
    await add(stores, (PUBLISH, JOBS), (PUBLISH, GATES), times=30)
    limited = LimitedWorker(stores, effect_urgency)
    limited.held = {Urgency.DETAILS: HeldBy.HOUR}
    await limited.worker.drain()

    assert [effect.target for effect in limited.tried].count(JOBS) == 1
    assert [effect.target for effect in limited.tried].count(GATES) == 30
    held = await held_effects(stores, JOBS)
    assert {row["held_by"] for row in held} == {"hour"}
    assert len(held) == 30
    assert all(row["attempts"] == 0 for row in held)

    limited.clock.advance(30 * 60 + 1)
    limited.tried.clear()
    await limited.worker.drain()
    ids = [effect.effect_id for effect in limited.tried]
    assert ids == sorted(ids)
    assert len(ids) == 30


@pytest.mark.parametrize(
    ("queue", "urgency", "held_by", "tried"),
    [
        pytest.param((PUBLISH, GATES), Urgency.FIRST, HeldBy.HOUR, 1, id="a gate holds the other gates"),
        pytest.param((PUBLISH, BACKENDS), Urgency.CHECKS, HeldBy.MINUTE, 1, id="a backend's check holds the others"),
        pytest.param((SEND, BACKEND), Urgency.FIRST, HeldBy.SECONDARY, 1, id="a dispatch holds the others"),
        pytest.param((LOOK_UP, BACKEND), Urgency.DETAILS, HeldBy.HOUR, 3, id="an L3 look-up holds none of a gate"),
        pytest.param((SEND, BACKEND), Urgency.FIRST, HeldBy.CONTENT, 3, id="the limit on comments holds nothing else"),
    ],
)  # fmt: skip
async def test_the_limit_and_the_urgency_decide_which_effects_wait_with_a_held_one(
    stores: Stores, queue: tuple[EffectKind, str], urgency: Urgency, held_by: HeldBy, tried: int
) -> None:
    await stores.prepare({CORE: ""}, NOW)
    await add(stores, queue, times=3)
    limited = LimitedWorker(stores, lambda _: urgency)
    limited.held = {urgency: held_by}
    await limited.worker.drain()

    assert len(limited.tried) == tried
    assert [row["held_by"] for row in await held_effects(stores, queue[1])] == [held_by] * 3


PACE = timedelta(minutes=2)


class AddEffect(Protocol):
    def __call__(self, tx: Tx, row: dict[str, Any]) -> Awaitable[None]: ...


async def add_one_once(tx: Tx, row: dict[str, Any]) -> None:
    await add_once(tx, row)


@pytest.mark.parametrize(
    "adding",
    [
        pytest.param(add_one_once, id="add_once"),
        pytest.param(lambda tx, row: add_paced(tx, row, PACE), id="add_paced"),
        pytest.param(lambda tx, row: add_paced(tx, row, timedelta()), id="add_paced without a pace"),
    ],
)
async def test_new_facts_neither_advance_nor_duplicate_a_held_effect(
    stores: Stores, adding: AddEffect
) -> None:
    await stores.prepare({CORE: ""}, NOW)
    await add(stores, (PUBLISH, GATES), times=3)
    limited = LimitedWorker(stores, effect_urgency)
    limited.held = {Urgency.FIRST: HeldBy.HOUR}
    await limited.worker.drain()
    held = await held_effects(stores, GATES)
    limited.tried.clear()

    for _ in range(5):
        limited.clock.advance(5 * 60)
        for number in range(3):
            row = effect_row(CORE, PUBLISH, target=GATES, lane=f"{PUBLISH} {number}", now=limited.clock.now())
            await stores.database.write(partial(adding, row=row))
        await limited.worker.drain()
    assert limited.tried == []
    assert await held_effects(stores, GATES) == held

    limited.clock.advance(5 * 60 + 1)
    await limited.worker.drain()
    assert [effect.effect_id for effect in limited.tried] == [row["effect_id"] for row in held]
    assert await held_effects(stores, GATES) == []


async def test_a_held_effect_restarted_by_a_new_fact_is_retried_when_the_limit_ends(stores: Stores) -> None:
    await stores.prepare({CORE: ""}, NOW)
    await add(stores, (LOOK_UP, BACKEND), times=1)
    limited = LimitedWorker(stores, lambda _: Urgency.FIRST)
    limited.held = {Urgency.FIRST: HeldBy.HOUR}
    await limited.worker.drain()
    later = NOW + timedelta(minutes=20)
    row = effect_row(CORE, LOOK_UP, target=BACKEND, lane=f"{LOOK_UP} 0", now=later)
    await stores.database.write(lambda tx: add_paced(tx, row, PACE))

    limited.clock.advance(30 * 60 + 1)
    await limited.worker.drain()
    assert [effect.first_attempt_at for effect in limited.tried] == [NOW, limited.clock.now()]


async def test_a_held_look_up_does_not_hold_dispatches_to_the_same_backend(stores: Stores) -> None:
    await stores.prepare({CORE: ""}, NOW)
    await add(stores, (LOOK_UP, BACKEND), (SEND, BACKEND), times=2)
    limited = LimitedWorker(
        stores, lambda effect: Urgency.DETAILS if effect.kind is LOOK_UP else Urgency.FIRST
    )
    limited.held = {Urgency.DETAILS: HeldBy.HOUR}
    await limited.worker.drain()

    assert {row["kind"] for row in await held_effects(stores, BACKEND)} == {LOOK_UP}


async def test_of_effects_due_at_the_same_time_gates_are_claimed_first(stores: Stores) -> None:
    await stores.prepare({CORE: ""}, NOW)
    await add(stores, (PUBLISH, JOBS), (PUBLISH, BACKENDS), (PUBLISH, GATES), times=1)
    claimed = await stores.outbox("one").claim(10, NOW)
    assert [effect.target for effect in claimed] == [GATES, BACKENDS, JOBS]
