"""Worker presence: a dead worker is noticed within 10 s, its claims are taken over, and its late results are void."""

from datetime import UTC, datetime, timedelta

import pytest

from contract.store.test_outbox import dispatch, take, two_targets
from crcr.decide.outbox.worker_presence import ROLL_CALL_EVERY_S, WorkerRoll
from crcr.record.outbox.leader_and_workers import LeaderElection, WorkerRegistry
from crcr.record.store.database import Database
from support.stores.databases import UPSTREAMS, OpenDatabase, Stores

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EVERY = timedelta(seconds=ROLL_CALL_EVERY_S)
NOTICED_WITHIN = timedelta(seconds=10)
UPKEEP = "upkeep"


def worker(database: Database, name: str, ended: frozenset[str] = frozenset()) -> WorkerRegistry:
    return WorkerRegistry(database, name, tuple(upstream.key for upstream in UPSTREAMS), ended.__contains__)


async def watch_until_gone(watcher: WorkerRegistry, since: datetime) -> tuple[WorkerRoll, datetime]:
    """Call the roll on schedule until a worker is found gone."""
    now = since
    for _ in range(20):
        now += EVERY
        if (roll := await watcher.attend(now)).gone:
            return roll, now
    raise AssertionError("nobody was found gone")


async def test_workers_count_each_other_and_not_a_worker_that_has_left(open_database: OpenDatabase) -> None:
    ann, ben = worker(open_database(), "ann"), worker(open_database(), "ben")

    assert (await ann.attend(NOW)).workers == 1
    assert (await ben.attend(NOW)).workers == 2
    assert (await ann.attend(NOW + EVERY)).workers == 2
    await ben.leave()
    assert await ann.attend(NOW + 2 * EVERY) == WorkerRoll(workers=1, was_listed=True, gone={})


@pytest.mark.parametrize("ahead_s", [-300, 0, 5])
async def test_fault_72_a_silent_worker_is_noticed_within_10_s_despite_clock_skew(
    open_database: OpenDatabase, ahead_s: int
) -> None:
    ann, ben = worker(open_database(), "ann"), worker(open_database(), "ben")
    clock_offset = timedelta(seconds=ahead_s)
    for number in range(30):
        now = NOW + number * EVERY
        assert (await ben.attend(now + clock_offset)).workers == min(number + 1, 2)
        assert (await ann.attend(now)).gone == {}
    roll, noticed_at = await watch_until_gone(ann, now)

    assert (roll.workers, list(roll.gone)) == (1, ["ben"])
    assert noticed_at - now <= NOTICED_WITHIN - EVERY  # ben may have been alive until its next round


async def test_a_worker_that_was_frozen_itself_declares_no_other_worker_gone(
    open_database: OpenDatabase,
) -> None:
    """Both workers' machine was suspended: the first to resume sees an old heartbeat."""
    ann, ben = worker(open_database(), "ann"), worker(open_database(), "ben")
    for now in (NOW, NOW + EVERY):
        await ben.attend(now)
        await ann.attend(now)
    awake = NOW + timedelta(minutes=5)

    assert (await ann.attend(awake)).gone == {}
    await ben.attend(awake)
    assert (await ann.attend(awake + EVERY)).gone == {}


async def test_fault_72_effects_and_leadership_of_a_gone_worker_are_taken_over_and_marked_unsure(
    open_database: OpenDatabase,
) -> None:
    stores, other = Stores.over(open_database()), Stores.over(open_database())
    await two_targets(stores)
    await take(stores, "d1")
    dead, new_holder = worker(stores.database, "dead"), worker(other.database, "heir")
    lead = timedelta(minutes=10)
    await dead.attend(NOW)
    await new_holder.attend(NOW)
    await LeaderElection(stores.database, "dead", lead, lambda _: False).take(UPKEEP, NOW)
    lost = await stores.outbox("dead").claim(10, NOW)
    roll, now = await watch_until_gone(new_holder, NOW)
    assert await other.outbox("heir").claim(10, now) == []

    assert await new_holder.take_over(roll.gone, now) == len(lost) == 2
    inherited = await other.outbox("heir").claim(10, now)
    assert sorted(effect.effect_id for effect in inherited) == sorted(effect.effect_id for effect in lost)
    assert [effect.unsure for effect in inherited] == [True, True]
    assert (await dispatch(stores, "org/one"))["unsure"] == 1
    assert await LeaderElection(other.database, "heir", lead, lambda _: False).take(UPKEEP, now)


async def test_fault_72_a_thawed_worker_learns_that_it_was_removed_and_its_late_result_is_ignored(
    open_database: OpenDatabase,
) -> None:
    stores, other = Stores.over(open_database()), Stores.over(open_database())
    await two_targets(stores)
    await take(stores, "d1")
    frozen, new_holder = worker(stores.database, "frozen"), worker(other.database, "heir")
    await frozen.attend(NOW)
    await new_holder.attend(NOW)
    outbox = stores.outbox("frozen")
    held = await outbox.claim(10, NOW)
    roll, now = await watch_until_gone(new_holder, NOW)
    await new_holder.take_over(roll.gone, now)

    assert await outbox.renew([effect.effect_id for effect in held], now, alone=True) == {}
    assert [await outbox.finish(effect, began_at=NOW, now=now) for effect in held] == [False, False]
    assert (await frozen.attend(now)).was_listed is False
    assert (await frozen.attend(now + EVERY)).was_listed is True
    assert (await dispatch(stores, "org/one"))["state"] == "waiting"
    assert len(await other.outbox("heir").claim(10, now)) == 2


async def test_a_worker_that_returns_before_the_take_over_keeps_its_effects(
    open_database: OpenDatabase,
) -> None:
    stores, other = Stores.over(open_database()), Stores.over(open_database())
    await two_targets(stores)
    await take(stores, "d1")
    slow, eager = worker(stores.database, "slow"), worker(other.database, "eager")
    await slow.attend(NOW)
    await eager.attend(NOW)
    [held, *_] = await stores.outbox("slow").claim(10, NOW)
    roll, now = await watch_until_gone(eager, NOW)
    await slow.attend(now)

    assert await eager.take_over(roll.gone, now) == 0
    assert await stores.outbox("slow").finish(held, began_at=NOW, now=now) is True


async def test_an_ended_process_of_the_same_machine_is_noticed_at_once(
    open_database: OpenDatabase,
) -> None:
    ann, ben = worker(open_database(), "ann", frozenset({"ben"})), worker(open_database(), "ben")
    await ben.attend(NOW)

    assert list((await ann.attend(NOW)).gone) == ["ben"]


async def test_worker_presence_alone_takes_no_leadership(open_database: OpenDatabase) -> None:
    await worker(open_database(), "ann").attend(NOW)
    assert await LeaderElection(open_database(), "ben", EVERY, lambda _: False).take(UPKEEP, NOW)
