"""Leader election: one process leads at a time; another takes over when the leader is done, dead or frozen for too long."""

import asyncio
from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from crcr.record.outbox.leader_and_workers import LeaderElection
from crcr.record.store.database import Database
from crcr.record.store.statement import Statement
from support.stores.databases import OpenDatabase

NOW = datetime(2026, 8, 3, 12, tzinfo=UTC)
LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
DUTY = "upkeep"


def process(database: Database, name: str, gone: frozenset[str] = frozenset()) -> LeaderElection:
    return LeaderElection(database, name, LEASE, gone.__contains__)


async def test_one_process_leads_and_the_other_stands_by(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")

    assert await ann.take(DUTY, NOW)
    assert not await ben.take(DUTY, NOW + SECOND)
    assert await ann.take(DUTY, NOW + 2 * SECOND)


async def test_of_processes_that_try_concurrently_exactly_one_leads(open_database: OpenDatabase) -> None:
    elections = [process(open_database(), f"process {number}") for number in range(6)]

    for round_number in range(5):
        now = NOW + round_number * 2 * LEASE
        took = await asyncio.gather(*(election.take(DUTY, now) for election in elections))

        assert took.count(True) == 1


async def test_the_leadership_ends_exactly_with_its_lease(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")
    await ann.take(DUTY, NOW)

    assert not await ben.take(DUTY, NOW + LEASE - timedelta(microseconds=1))
    assert await ben.take(DUTY, NOW + LEASE)


async def test_a_leader_that_renews_its_lease_stays_the_leader(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")
    for seconds in range(0, 120, 10):
        assert await ann.take(DUTY, NOW + seconds * SECOND)
        assert not await ben.take(DUTY, NOW + (seconds + 9) * SECOND)


async def test_a_process_that_was_frozen_learns_that_it_lost_the_leadership(
    open_database: OpenDatabase,
) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")
    await ann.take(DUTY, NOW)
    await ben.take(DUTY, NOW + LEASE)

    assert not await ann.take(DUTY, NOW + LEASE + SECOND)


async def test_a_released_leadership_can_be_taken_at_once(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")
    await ann.take(DUTY, NOW)
    await ann.release(DUTY)

    assert await ben.take(DUTY, NOW)
    assert not await ann.take(DUTY, NOW)


async def test_a_process_cannot_release_the_leadership_of_another(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")
    await ann.take(DUTY, NOW)
    await ben.release(DUTY)

    assert not await ben.take(DUTY, NOW)


async def test_a_leader_that_is_known_to_be_gone_is_replaced_at_once(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben", gone=frozenset({"ann"}))
    await ann.take(DUTY, NOW)

    assert await ben.take(DUTY, NOW)


async def test_of_processes_that_see_the_leader_gone_exactly_one_takes_over(
    open_database: OpenDatabase,
) -> None:
    await process(open_database(), "ann").take(DUTY, NOW)
    elections = [process(open_database(), name, gone=frozenset({"ann"})) for name in ("ben", "cem", "dan")]

    assert (await asyncio.gather(*(election.take(DUTY, NOW) for election in elections))).count(True) == 1


async def test_each_duty_has_its_own_leader(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")

    assert await ann.take("one", NOW)
    assert await ben.take("other", NOW)
    assert not await ben.take("one", NOW)


async def test_the_start_of_a_leadership_is_kept_through_renewals(open_database: OpenDatabase) -> None:
    database = open_database()
    ann, ben = process(database, "ann"), process(open_database(), "ben")
    await ann.take(DUTY, NOW)
    await ann.take(DUTY, NOW + 20 * SECOND)
    read = Statement(text("SELECT holder, until_at - since_at AS held_us FROM leaders"))

    assert [tuple(row.values()) for row in map(dict, await database.read(lambda tx: tx.all(read)))] == [
        ("ann", 50_000_000)
    ]
    await ben.take(DUTY, NOW + 50 * SECOND)
    assert [tuple(row.values()) for row in map(dict, await database.read(lambda tx: tx.all(read)))] == [
        ("ben", 30_000_000)
    ]
