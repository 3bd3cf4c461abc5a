"""What every outbox promises: one holder at a time, order within a lane, and that nothing claimed is forgotten."""

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
    return sorted((each.target, each.delivery) for each in effects)


async def dispatch(stores: Stores, downstream: str, delivery: str = "d1") -> dict[str, Any]:
    sql = f"SELECT * FROM dispatches WHERE downstream = '{downstream}' AND delivery = '{delivery}'"  # noqa: S608
    [row] = await stores.rows(sql)
    return row


async def test_what_is_due_is_claimed_once_and_marked_attempted_before_it_is_sent(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    first, second = await outbox.claim(10, NOW), await outbox.claim(10, NOW)

    assert (claimed_deliveries(first), second) == ([("org/one", "d1"), ("org/two", "d1")], [])
    assert [(each.attempts, each.unsure) for each in first] == [(1, False)] * 2
    assert (await dispatch(stores, "org/one"))["attempted_at"] is not None


async def test_fault_10_two_workers_never_take_the_same_effect(open_database: OpenDatabase) -> None:
    one, two = Stores.over(open_database()), Stores.over(open_database())
    names = [f"org/backend{each}" for each in range(40)]
    await one.prepare({CORE: listing(*names)}, NOW)
    for number in range(1, 4):
        await take(one, f"d{number}", number=number)
    taken: list[int] = []
    for _ in range(3):
        boxes = [one.outbox("a"), two.outbox("b"), two.outbox("c"), one.outbox("d")]
        claims = await asyncio.gather(*(box.claim(15, NOW) for box in boxes))
        assert sum(map(len, claims)) == 40
        for box, claim in zip(boxes, claims, strict=True):
            taken += [each.effect_id for each in claim]
            assert all([await box.finish(each, began_at=NOW, now=NOW) for each in claim])

    assert sorted(taken) == sorted(set(taken))
    assert len(taken) == 120


async def test_fault_05_what_a_dead_worker_held_returns_after_its_lease_and_is_marked(stores: Stores) -> None:
    await two_targets(stores)
    await take(stores, "d1")
    lost = await stores.outbox("dead").claim(10, NOW)
    heir = stores.outbox("heir")
    assert await heir.claim(10, LATER - timedelta(seconds=1)) == []

    inherited = await heir.claim(10, LATER)
    assert claimed_deliveries(inherited) == claimed_deliveries(lost)
    assert [(each.attempts, each.unsure) for each in inherited] == [(2, True)] * 2
    assert (await dispatch(stores, "org/one"))["unsure"] == 1


async def test_fault_72_the_late_success_of_a_lost_lease_changes_nothing(stores: Stores) -> None:
    await two_targets(stores)
    await take(stores, "d1")
    slow, heir = stores.outbox("slow"), stores.outbox("heir")
    [held, *_] = await slow.claim(1, NOW)
    inherited = next(each for each in await heir.claim(10, LATER) if each.effect_id == held.effect_id)

    before = await dispatch(stores, held.target)
    assert await slow.finish(held, began_at=NOW, now=LATER) is False
    assert await slow.renew([held.effect_id], LATER, alone=True) == {}
    assert (await dispatch(stores, held.target)) == before
    assert await heir.finish(inherited, began_at=LATER, now=LATER) is True
    row = await dispatch(stores, held.target)
    assert (row["state"], row["sent_at"], row["unsure"]) == ("sent", to_us(LATER), 1)


async def test_a_lease_that_is_renewed_keeps_the_effect_from_others(stores: Stores) -> None:
    await two_targets(stores)
    await take(stores, "d1")
    slow, other = stores.outbox("slow"), stores.outbox("other")
    held = await slow.claim(10, NOW)
    numbers = [each.effect_id for each in held]
    halfway = NOW + LEASE / 2

    assert await other.renew(numbers, halfway, alone=False) == {}
    assert await slow.renew(numbers[:1], halfway, alone=False) == {numbers[0]: halfway + LEASE}
    assert [each.effect_id for each in await other.claim(10, LATER)] == numbers[1:]


async def test_fault_05_the_late_failure_of_a_lost_lease_does_not_touch_the_heirs(stores: Stores) -> None:
    await two_targets(stores)
    await take(stores, "d1")
    slow, heir = stores.outbox("slow"), stores.outbox("heir")
    held = await slow.claim(10, NOW)
    inherited = await heir.claim(10, LATER)
    for each in held:
        await slow.fail(each, PARK, LATER)
        await slow.release([each])

    assert all([await heir.finish(each, began_at=LATER, now=LATER) for each in inherited])


async def test_a_target_has_one_effect_under_way_and_the_next_when_it_is_over(stores: Stores) -> None:
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


async def test_in_one_lane_the_later_waits_while_the_earlier_is_retried(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    await take(stores, "d2", action="reopened", updated_at=after(1))
    await take(stores, "d3", number=2)
    for each in await outbox.claim(10, NOW):
        await outbox.fail(each, retry_at(after(30)), NOW)

    between = await outbox.claim(10, after(1))
    assert claimed_deliveries(between) == [("org/one", "d3"), ("org/two", "d3")]
    for each in between:
        await outbox.finish(each, began_at=NOW, now=after(1))
    assert await outbox.claim(10, after(29)) == []
    assert claimed_deliveries(await outbox.claim(10, after(30))) == [("org/one", "d1"), ("org/two", "d1")]


_MOVE_D1 = Statement(text("UPDATE effects SET due_at = due_at + :moved WHERE delivery = 'd1'"))


async def test_of_lanes_that_are_due_at_once_the_oldest_is_claimed_wherever_its_row_is(
    stores: Stores,
) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    await take(stores, "d3", number=2)
    for moved in (1, -1):  # PostgreSQL writes a changed row to another place
        await stores.database.write(lambda tx, moved=moved: tx.run(_MOVE_D1, moved=moved))  # type: ignore[misc]
    assert claimed_deliveries(await outbox.claim(10, NOW)) == [("org/one", "d1"), ("org/two", "d1")]


async def test_a_fault_counts_as_an_attempt_and_a_limit_does_not(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    one, two = sorted(await outbox.claim(10, NOW), key=lambda each: each.target)
    await outbox.fail(one, retry_at(after(5), unsure=True), NOW)
    await outbox.fail(two, retry_at(after(5), counts=False), NOW)

    one, two = sorted(await outbox.claim(10, after(5)), key=lambda each: each.target)
    assert [(each.attempts, each.unsure) for each in (one, two)] == [(2, True), (1, False)]


async def test_what_is_given_up_is_parked_with_its_error_and_can_be_retried(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    for each in await outbox.claim(10, NOW):
        await outbox.fail(each, PARK, NOW)
    assert await outbox.claim(10, LATER) == []
    parked = await dispatch(stores, "org/one")
    assert (parked["state"], parked["reason"]) == ("parked", "refused for good")

    assert await stores.acts.retry_parked(CORE, ParkedFilter(), who="ann", now=LATER) == 2
    again = await outbox.claim(10, LATER)
    assert [each.first_attempt_at for each in again] == [LATER] * 2


async def test_what_was_dropped_while_claimed_ends_cancelled_whether_it_failed_or_was_given_up(
    stores: Stores,
) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    retried, parked = await outbox.claim(10, NOW)
    await take(stores, "d2", action="closed", is_open=False, updated_at=after(1))
    await outbox.fail(retried, retry_at(after(5)), after(2))
    await outbox.fail(parked, PARK, after(2))

    effects = await stores.rows("SELECT state FROM effects WHERE delivery = 'd1'")
    assert [each["state"] for each in effects] == ["cancelled", "cancelled"]
    assert (await dispatch(stores, "org/one"))["state"] == "cancelled"


async def test_what_was_dropped_while_claimed_and_not_sent_stays_dropped(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    unsent, sent = sorted(await outbox.claim(10, NOW), key=lambda each: each.target)
    await take(stores, "d2", action="closed", is_open=False, updated_at=after(1))
    await outbox.finish(unsent, began_at=None, now=after(2))
    await outbox.finish(sent, began_at=NOW, now=after(2))

    assert (await dispatch(stores, "org/one"))["state"] == "cancelled"
    assert (await dispatch(stores, "org/two"))["state"] == "sent"


async def test_a_postponed_target_waits_with_all_that_is_behind_it(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1", number=1)
    await take(stores, "d2", number=2)
    one = next(each for each in await outbox.claim(10, NOW) if each.target == "org/one")
    await outbox.postpone(one, after(60))

    assert [each for each in await outbox.claim(10, after(59)) if each.target == "org/one"] == []
    [probe] = [each for each in await outbox.claim(10, after(60)) if each.target == "org/one"]
    assert (probe.delivery, probe.attempts) == ("d1", 1)


async def test_what_is_released_is_as_if_never_claimed(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    await outbox.release(await outbox.claim(10, NOW))

    again = await stores.outbox("b").claim(10, NOW)
    assert [(each.attempts, each.unsure) for each in again] == [(1, False)] * 2


async def test_a_claim_takes_no_more_than_asked_and_the_longest_due_first(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    one, two = sorted(await outbox.claim(10, NOW), key=lambda each: each.target)
    await outbox.fail(one, retry_at(after(9)), NOW)
    await outbox.fail(two, retry_at(after(3)), NOW)

    assert [each.target for each in await outbox.claim(1, after(10))] == ["org/two"]
    assert [each.target for each in await outbox.claim(1, after(10))] == ["org/one"]


async def test_a_busy_upstream_does_not_keep_another_from_its_turn(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    for number in range(1, 4):
        await take(stores, f"d{number}", number=number)
    await take(stores, "other", upstream=OTHER)
    claims = [await outbox.claim(1, NOW) for _ in range(2)]

    assert {each.upstream for claim in claims for each in claim} == {CORE, OTHER}


async def test_a_paused_upstream_sends_nothing_and_the_other_goes_on(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await stores.acts.pause(CORE, who="ann", now=NOW)
    await take(stores, "d1")
    await take(stores, "other", upstream=OTHER)
    await stores.inbox.refresh((CORE,), NOW)

    assert claimed_deliveries(await outbox.claim(10, NOW)) == [("allowlist", None), ("org/one", "other")]
    await stores.acts.pause(CORE, who="ann", now=NOW, lift=True)
    assert claimed_deliveries(await outbox.claim(10, NOW)) == [("org/one", "d1"), ("org/two", "d1")]


async def test_the_next_due_time_is_a_retry_or_the_end_of_a_lease_and_never_past(stores: Stores) -> None:
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

    assert await outbox.next_due(after(30) + LEASE) is None  # nobody may take it, so nobody should spin


async def test_a_repeat_by_hand_keeps_its_mark_when_it_is_claimed(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    for each in await outbox.claim(10, NOW):
        await outbox.finish(each, began_at=NOW, now=NOW)
    assert await stores.acts.replay(CORE, "d1", who="ann", now=NOW, everyone=True) == 2
    await outbox.claim(10, NOW)

    assert (await dispatch(stores, "org/one"))["unsure"] == 1


async def test_a_suspended_target_has_nothing_left_to_claim(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await take(stores, "d1")
    await stores.targets.suspend(CORE, RepoName("org/one"), who="ann", now=NOW)

    assert claimed_deliveries(await outbox.claim(10, NOW)) == [("org/two", "d1")]


async def test_an_outage_is_said_to_be_one(stores: Stores) -> None:
    outbox = (await two_targets(stores)).outbox("a")
    await stores.database.close()

    with pytest.raises(StoreUnavailable):
        await outbox.claim(10, NOW)
