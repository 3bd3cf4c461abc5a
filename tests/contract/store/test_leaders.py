"""The lead: one process has it at a time, and it moves on when that one is done, dead, or away for too long."""

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


async def test_two_that_try_at_once_do_not_both_lead(open_database: OpenDatabase) -> None:
    everybody = [process(open_database(), f"process {number}") for number in range(6)]

    for round_number in range(5):
        now = NOW + round_number * 2 * LEASE
        took = await asyncio.gather(*(each.take(DUTY, now) for each in everybody))

        assert took.count(True) == 1


async def test_the_lead_lasts_for_the_lease_and_not_a_moment_longer(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")
    await ann.take(DUTY, NOW)

    assert not await ben.take(DUTY, NOW + LEASE - timedelta(microseconds=1))
    assert await ben.take(DUTY, NOW + LEASE)


async def test_a_lead_that_is_renewed_does_not_move(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")
    for seconds in range(0, 120, 10):
        assert await ann.take(DUTY, NOW + seconds * SECOND)
        assert not await ben.take(DUTY, NOW + (seconds + 9) * SECOND)


async def test_one_that_was_away_finds_out_that_it_leads_no_more(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")
    await ann.take(DUTY, NOW)
    await ben.take(DUTY, NOW + LEASE)

    assert not await ann.take(DUTY, NOW + LEASE + SECOND)


async def test_a_lead_that_is_given_up_is_taken_at_once(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")
    await ann.take(DUTY, NOW)
    await ann.release(DUTY)

    assert await ben.take(DUTY, NOW)
    assert not await ann.take(DUTY, NOW)


async def test_nobody_gives_up_what_another_leads(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")
    await ann.take(DUTY, NOW)
    await ben.release(DUTY)

    assert not await ben.take(DUTY, NOW)


async def test_a_leader_that_is_seen_to_be_gone_is_not_waited_for(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben", gone=frozenset({"ann"}))
    await ann.take(DUTY, NOW)

    assert await ben.take(DUTY, NOW)


async def test_of_two_that_see_the_leader_gone_one_takes_over(open_database: OpenDatabase) -> None:
    await process(open_database(), "ann").take(DUTY, NOW)
    heirs = [process(open_database(), name, gone=frozenset({"ann"})) for name in ("ben", "cem", "dan")]

    assert (await asyncio.gather(*(each.take(DUTY, NOW) for each in heirs))).count(True) == 1


async def test_two_duties_have_leaders_of_their_own(open_database: OpenDatabase) -> None:
    ann, ben = process(open_database(), "ann"), process(open_database(), "ben")

    assert await ann.take("one", NOW)
    assert await ben.take("other", NOW)
    assert not await ben.take("one", NOW)


async def test_since_when_somebody_leads_is_kept_through_renewals(open_database: OpenDatabase) -> None:
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
