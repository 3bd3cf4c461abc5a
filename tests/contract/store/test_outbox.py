"""Contract of the outbox: one holder at a time, order within a lane, and no claimed effect is ever lost."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.dispatch.plan import AcceptedDelivery, ReceivedDelivery
from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import ClaimedEffect, FailedAttempt
from crcr.decide.outbox.retry import GiveUp, TryAgain
from crcr.errors import StoreUnavailable
from crcr.record.admin.operations import ParkedFilter
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from support.data.events_and_reports import a_pull
from support.stores.databases import CORE, LEASE, OTHER, OpenDatabase, Stores

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + LEASE
PULL = a_pull(upstream=CORE, number=1, updated_at=NOW)


def listing(*names: str) -> str:
    return "L1:\n" + "".join(f"  - {name}\n" for name in names)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


async def take(stores: Stores, guid: str, *, at: datetime = NOW, **changes: Any) -> None:
    receipt = ReceivedDelivery(guid, "pull_request", "test", b"packed", 6, at)
    event = replace(PULL, **changes)
    assert isinstance(await stores.inbox.take(receipt, event), AcceptedDelivery)


async def two_targets(stores: Stores) -> Stores:
    await stores.prepare({CORE: listing("org/one", "org/two"), OTHER: listing("org/one")}, NOW)
    return stores


def retry_at(due_at: datetime, *, unsure: bool = False, counts: bool = True) -> FailedAttempt:
    return FailedAttempt(decision=TryAgain(due_at), error="it failed", unsure=unsure, counts=counts)


PARK = FailedAttempt(decision=GiveUp("refused"), error="refused for good", unsure=False, counts=True)


def claimed_deliveries(effects: list[ClaimedEffect]) -> list[tuple[str, str | None]]:
    return sorted((effect.target, effect.delivery) for effect in effects)


async def dispatch(stores: Stores, downstream: str, delivery: str = "d1") -> dict[str, Any]:
    sql = f"SELECT * FROM dispatches WHERE downstream = '{downstream}' AND delivery = '{delivery}'"  # noqa: S608
    [row] = await stores.rows(sql)
    return row


async def test_a_due_effect_is_claimed_once_and_marked_as_attempted_before_it_is_sent(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    first, second = await outbox.claim(10, NOW), await outbox.claim(10, NOW)

    assert (claimed_deliveries(first), second) == ([("org/one", "d1"), ("org/two", "d1")], [])
    assert [(effect.attempts, effect.unsure) for effect in first] == [(1, False)] * 2
    assert (await dispatch(stores, "org/one"))["attempted_at"] is not None


async def test_fault_10_concurrent_workers_never_claim_the_same_effect(open_database: OpenDatabase) -> None:
    one, two = Stores.over(open_database()), Stores.over(open_database())
    names = [f"org/backend{effect}" for effect in range(40)]
    await one.prepare({CORE: listing(*names)}, NOW)
    for number in range(1, 4):
        await take(one, f"d{number}", number=number)
    taken: list[int] = []
    for _ in range(3):
        outboxes = [one.outbox("a"), two.outbox("b"), two.outbox("c"), one.outbox("d")]
        claims = await asyncio.gather(*(outbox.claim(15, NOW) for outbox in outboxes))
        assert sum(map(len, claims)) == 40
        for outbox, claim in zip(outboxes, claims, strict=True):
            taken += [effect.effect_id for effect in claim]
            assert all([await outbox.finish(effect, began_at=NOW, now=NOW) for effect in claim])

    assert sorted(taken) == sorted(set(taken))
    assert len(taken) == 120


async def test_fault_05_effects_of_a_dead_worker_are_claimable_after_the_lease_and_marked_unsure(
    stores: Stores,
) -> None:
    await two_targets(stores)
    await take(stores, "d1")
    lost = await stores.outbox("dead").claim(10, NOW)
    new_holder = stores.outbox("heir")
    assert await new_holder.claim(10, LATER - timedelta(seconds=1)) == []

    inherited = await new_holder.claim(10, LATER)
    assert claimed_deliveries(inherited) == claimed_deliveries(lost)
    assert [(effect.attempts, effect.unsure) for effect in inherited] == [(2, True)] * 2
    assert (await dispatch(stores, "org/one"))["unsure"] == 1


async def test_fault_72_a_late_success_after_the_lease_was_lost_changes_nothing(stores: Stores) -> None:
    await two_targets(stores)
    await take(stores, "d1")
    slow, new_holder = stores.outbox("slow"), stores.outbox("heir")
    [held, *_] = await slow.claim(1, NOW)
    inherited = next(
        effect for effect in await new_holder.claim(10, LATER) if effect.effect_id == held.effect_id
    )

    before = await dispatch(stores, held.target)
    assert await slow.finish(held, began_at=NOW, now=LATER) is False
    assert await slow.renew([held.effect_id], LATER, alone=True) == {}
    assert (await dispatch(stores, held.target)) == before
    assert await new_holder.finish(inherited, began_at=LATER, now=LATER) is True
    row = await dispatch(stores, held.target)
    assert (row["state"], row["sent_at"], row["unsure"]) == ("sent", to_us(LATER), 1)


async def test_a_renewed_lease_keeps_the_effect_from_other_workers(stores: Stores) -> None:
    await two_targets(stores)
    await take(stores, "d1")
    slow, other = stores.outbox("slow"), stores.outbox("other")
    held = await slow.claim(10, NOW)
    numbers = [effect.effect_id for effect in held]
    halfway = NOW + LEASE / 2

    assert await other.renew(numbers, halfway, alone=False) == {}
    assert await slow.renew(numbers[:1], halfway, alone=False) == {numbers[0]: halfway + LEASE}
    assert [effect.effect_id for effect in await other.claim(10, LATER)] == numbers[1:]


async def test_fault_05_a_late_failure_after_the_lease_was_lost_does_not_affect_the_new_holder(
    stores: Stores,
) -> None:
    await two_targets(stores)
    await take(stores, "d1")
    slow, new_holder = stores.outbox("slow"), stores.outbox("heir")
    held = await slow.claim(10, NOW)
    inherited = await new_holder.claim(10, LATER)
    for effect in held:
        await slow.fail(effect, PARK, LATER)
        await slow.release([effect])

    assert all([await new_holder.finish(effect, began_at=LATER, now=LATER) for effect in inherited])


async def test_a_target_has_one_claimed_effect_at_a_time(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1", number=1)
    await take(stores, "d2", number=2)
    first = await outbox.claim(10, NOW)
    assert (claimed_deliveries(first), await outbox.claim(10, NOW)) == (
        [("org/one", "d1"), ("org/two", "d1")],
        [],
    )
    await outbox.finish(first[0], began_at=NOW, now=NOW)

    assert claimed_deliveries(await outbox.claim(10, NOW)) == [(first[0].target, "d2")]


async def test_later_effects_of_a_lane_wait_while_an_earlier_one_is_retried(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    await take(stores, "d2", action="reopened", updated_at=after(1))
    await take(stores, "d3", number=2)
    for effect in await outbox.claim(10, NOW):
        await outbox.fail(effect, retry_at(after(30)), NOW)

    between = await outbox.claim(10, after(1))
    assert claimed_deliveries(between) == [("org/one", "d3"), ("org/two", "d3")]
    for effect in between:
        await outbox.finish(effect, began_at=NOW, now=after(1))
    assert await outbox.claim(10, after(29)) == []
    assert claimed_deliveries(await outbox.claim(10, after(30))) == [("org/one", "d1"), ("org/two", "d1")]


_MOVE_D1 = Statement(text("UPDATE effects SET due_at = due_at + :moved WHERE delivery = 'd1'"))


async def test_of_lanes_due_at_the_same_time_the_oldest_is_claimed_first_in_any_row_order(
    stores: Stores,
) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    await take(stores, "d3", number=2)
    for moved in (1, -1):  # PostgreSQL writes an updated row to another position
        await stores.database.write(lambda tx, moved=moved: tx.run(_MOVE_D1, moved=moved))  # type: ignore[misc]
    assert claimed_deliveries(await outbox.claim(10, NOW)) == [("org/one", "d1"), ("org/two", "d1")]


async def test_a_failure_counts_as_an_attempt_and_a_rate_limit_does_not(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    one, two = sorted(await outbox.claim(10, NOW), key=lambda effect: effect.target)
    await outbox.fail(one, retry_at(after(5), unsure=True), NOW)
    await outbox.fail(two, retry_at(after(5), counts=False), NOW)

    one, two = sorted(await outbox.claim(10, after(5)), key=lambda effect: effect.target)
    assert [(effect.attempts, effect.unsure) for effect in (one, two)] == [(2, True), (1, False)]


async def test_an_effect_that_is_given_up_is_parked_with_its_error_and_can_be_retried(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    for effect in await outbox.claim(10, NOW):
        await outbox.fail(effect, PARK, NOW)
    assert await outbox.claim(10, LATER) == []
    parked = await dispatch(stores, "org/one")
    assert (parked["state"], parked["reason"]) == ("parked", "refused for good")

    assert await stores.acts.retry_parked(CORE, ParkedFilter(), who="ann", now=LATER) == 2
    again = await outbox.claim(10, LATER)
    assert [effect.first_attempt_at for effect in again] == [LATER] * 2


async def test_an_effect_dropped_while_claimed_ends_cancelled_after_a_retry_or_a_park(
    stores: Stores,
) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    retried, parked = await outbox.claim(10, NOW)
    await take(stores, "d2", action="closed", is_open=False, updated_at=after(1))
    await outbox.fail(retried, retry_at(after(5)), after(2))
    await outbox.fail(parked, PARK, after(2))

    effects = await stores.rows("SELECT state FROM effects WHERE delivery = 'd1'")
    assert [effect["state"] for effect in effects] == ["cancelled", "cancelled"]
    assert (await dispatch(stores, "org/one"))["state"] == "cancelled"


async def test_an_effect_dropped_while_claimed_stays_cancelled_if_it_was_not_sent(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    unsent, sent = sorted(await outbox.claim(10, NOW), key=lambda effect: effect.target)
    await take(stores, "d2", action="closed", is_open=False, updated_at=after(1))
    await outbox.finish(unsent, began_at=None, now=after(2))
    await outbox.finish(sent, began_at=NOW, now=after(2))

    assert (await dispatch(stores, "org/one"))["state"] == "cancelled"
    assert (await dispatch(stores, "org/two"))["state"] == "sent"


async def test_a_postponed_effect_holds_back_the_later_effects_of_its_target(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1", number=1)
    await take(stores, "d2", number=2)
    one = next(effect for effect in await outbox.claim(10, NOW) if effect.target == "org/one")
    await outbox.postpone(one, after(60))

    assert [effect for effect in await outbox.claim(10, after(59)) if effect.target == "org/one"] == []
    [probe] = [effect for effect in await outbox.claim(10, after(60)) if effect.target == "org/one"]
    assert (probe.delivery, probe.attempts) == ("d1", 1)


async def test_a_released_effect_is_as_if_never_claimed(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    await outbox.release(await outbox.claim(10, NOW))

    again = await stores.outbox("b").claim(10, NOW)
    assert [(effect.attempts, effect.unsure) for effect in again] == [(1, False)] * 2


async def test_a_claim_returns_at_most_its_limit_and_the_longest_due_first(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    one, two = sorted(await outbox.claim(10, NOW), key=lambda effect: effect.target)
    await outbox.fail(one, retry_at(after(9)), NOW)
    await outbox.fail(two, retry_at(after(3)), NOW)

    assert [effect.target for effect in await outbox.claim(1, after(10))] == ["org/two"]
    assert [effect.target for effect in await outbox.claim(1, after(10))] == ["org/one"]


async def test_a_busy_upstream_does_not_starve_another(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    for number in range(1, 4):
        await take(stores, f"d{number}", number=number)
    await take(stores, "other", upstream=OTHER)
    claims = [await outbox.claim(1, NOW) for _ in range(2)]

    assert {effect.upstream for claim in claims for effect in claim} == {CORE, OTHER}


async def test_a_paused_upstream_sends_nothing_and_the_other_continues(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await stores.acts.pause(CORE, who="ann", now=NOW)
    await take(stores, "d1")
    await take(stores, "other", upstream=OTHER)
    await stores.inbox.refresh((CORE,), NOW)

    assert claimed_deliveries(await outbox.claim(10, NOW)) == [("allowlist", None), ("org/one", "other")]
    await stores.acts.pause(CORE, who="ann", now=NOW, lift=True)
    assert claimed_deliveries(await outbox.claim(10, NOW)) == [("org/one", "d1"), ("org/two", "d1")]


async def test_the_next_due_time_is_a_retry_or_the_end_of_a_lease_and_never_a_paused_effect(
    stores: Stores,
) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    assert await outbox.next_due(NOW) is None
    await take(stores, "d1")
    one, two = await outbox.claim(10, NOW)
    assert await outbox.next_due(NOW) == LATER
    await outbox.fail(one, retry_at(after(30)), NOW)
    assert await outbox.next_due(NOW) == after(30)
    await outbox.finish(two, began_at=NOW, now=NOW)
    await outbox.claim(10, after(30))
    await stores.acts.pause(CORE, who="ann", now=after(30))

    assert (
        await outbox.next_due(after(30) + LEASE) is None
    )  # no worker may claim it, so no worker should poll in a loop


async def test_a_manual_replay_stays_marked_as_unsure_when_it_is_claimed(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    for effect in await outbox.claim(10, NOW):
        await outbox.finish(effect, began_at=NOW, now=NOW)
    assert await stores.acts.replay(CORE, "d1", who="ann", now=NOW, everyone=True) == 2
    await outbox.claim(10, NOW)

    assert (await dispatch(stores, "org/one"))["unsure"] == 1


async def test_a_suspended_target_has_no_claimable_effects(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    await stores.targets.suspend(CORE, RepoName("org/one"), who="ann", now=NOW)

    assert claimed_deliveries(await outbox.claim(10, NOW)) == [("org/two", "d1")]


async def test_a_closed_store_raises_store_unavailable(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await stores.database.close()

    with pytest.raises(StoreUnavailable):
        await outbox.claim(10, NOW)
