"""In-tree checks in the store: the counts of an oracle, one row for a quiet commit, one entry of the change log."""
# ruff: noqa: S608 - every name in these statements is our own

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from sqlalchemy import text

from crcr.decide.dispatch.plan import AcceptedDelivery, AlreadyProcessed, IgnoredEvent, ReceivedDelivery
from crcr.decide.events import InTreeCheckEvent
from crcr.decide.in_tree.checks import Counts, InTreeCheck
from crcr.decide.model import RepoName
from crcr.record.in_tree.recorder import ANNOUNCED_EVERY, InTreeRecorder
from crcr.record.in_tree.upkeep import QUIET_FOR, InTreeUpkeep
from crcr.record.store.database import Database
from crcr.record.store.statement import Statement
from support.data.retention_data import DAY, retention
from support.github.simulated_ci import SimulatedCi
from support.stores.databases import CORE, OTHER, Stores

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
SHA, LATER = "a" * 40, "b" * 40
OWN_APP = "990"
BUILD = InTreeCheck(15_368, "build", 7, None, None, "https://ci.test/7")
BIND = Statement(text("UPDATE upstreams SET repository_id = :repository_id WHERE upstream = :upstream"))
OPEN_PULL = Statement(
    text(
        "INSERT INTO pulls (upstream, number, head_sha, updated_at, is_open, draft, labels, base_ref, title, author)"
        " VALUES (:upstream, 7, :head_sha, 1, 1, 0, '[]', 'main', 'Fix it', 'ann')"
    )
)
Result = AcceptedDelivery | AlreadyProcessed | IgnoredEvent


@pytest.fixture
async def stores(stores: Stores) -> Stores:
    await stores.prepare({}, NOW)
    return stores


async def send(
    database: Database,
    check: InTreeCheck,
    *,
    sha: str = SHA,
    at: datetime = NOW,
    upstream: RepoName = CORE,
    repository_id: int = 1,
    most: int = 5_000,
) -> Result:
    event = InTreeCheckEvent(upstream, repository_id, sha, check, None, 1)
    delivery = ReceivedDelivery("guid", "check_run", "webhook", b"", 2, at, None)
    return await InTreeRecorder(database, OWN_APP, most).record_event(delivery, event)


async def send_all(database: Database, checks: Iterable[InTreeCheck], at: datetime = NOW) -> None:
    await asyncio.gather(*(send(database, check, at=at) for check in checks))


async def counts(stores: Stores, sha: str = SHA) -> Counts:
    [row] = await stores.rows(f"SELECT passed, failed, running FROM in_tree_commits WHERE sha = '{sha}'")
    return Counts(**row)


async def count_rows(stores: Stores, table: str) -> int:
    [row] = await stores.rows(f"SELECT count(*) AS number FROM {table}")
    number: int = row["number"]
    return number


async def test_shuffled_and_repeated_checks_packed_in_between_give_the_counts_of_the_ci(
    stores: Stores,
) -> None:
    ci = SimulatedCi(Random(19), names=60)
    ci.act(1_000)
    arriving, now = ci.shuffled(), NOW
    upkeep = InTreeUpkeep(stores.database)
    for start in range(0, len(arriving), 250):
        await send_all(stores.database, arriving[start : start + 250], now)
        now += QUIET_FOR
        await upkeep.run(now)
        assert await count_rows(stores, "in_tree_checks") == 0
    assert await counts(stores) == ci.count()
    assert await count_rows(stores, "in_tree_commits") == 1


async def test_five_hundred_quiet_checks_are_packed_into_one_row_and_one_change(stores: Stores) -> None:
    checks = [BUILD._replace(name=f"test ({number}, 500)", check_id=number + 1) for number in range(500)]
    await send_all(stores.database, checks)
    ended = [check._replace(conclusion="success", ended_at=1_780_000_000) for check in checks]
    await send_all(stores.database, ended, NOW + ANNOUNCED_EVERY)
    upkeep = InTreeUpkeep(stores.database)
    await upkeep.run(NOW + timedelta(minutes=1))
    assert await count_rows(stores, "in_tree_checks") == 500
    await upkeep.run(NOW + timedelta(hours=1))
    rows = [await count_rows(stores, table) for table in ("in_tree_checks", "in_tree_commits", "changes")]
    assert rows == [0, 1, 1]
    assert await count_rows(stores, "webhook_bodies") == 0
    assert await counts(stores) == Counts(passed=500)


async def test_a_check_that_changes_after_packing_replaces_the_packed_one_in_the_counts(
    stores: Stores,
) -> None:
    failed, upkeep = BUILD._replace(conclusion="failure", ended_at=9), InTreeUpkeep(stores.database)
    await send_all(stores.database, [failed, BUILD._replace(name="lint", conclusion="success")])
    await upkeep.run(NOW + QUIET_FOR)
    later = NOW + timedelta(hours=3)
    assert await send(stores.database, failed, at=later) == AlreadyProcessed()
    assert await count_rows(stores, "in_tree_checks") == 0
    assert isinstance(await send(stores.database, BUILD._replace(check_id=8), at=later), AcceptedDelivery)
    assert await counts(stores) == Counts(passed=1, running=1)
    await send(stores.database, BUILD._replace(check_id=8, conclusion="success", ended_at=99), at=later)
    await upkeep.run(later + QUIET_FOR)
    assert await send(stores.database, BUILD._replace(check_id=8), at=later) == AlreadyProcessed()
    assert await counts(stores) == Counts(passed=2)
    assert await count_rows(stores, "in_tree_checks") == 0


async def test_own_checks_and_checks_of_another_repository_with_the_name_do_not_count(stores: Stores) -> None:
    own = await send(stores.database, BUILD._replace(app_id=int(OWN_APP)))
    assert own == IgnoredEvent("a check of this relay")
    await stores.database.write(lambda tx: tx.run(BIND, upstream=CORE.key, repository_id=1))
    assert isinstance(await send(stores.database, BUILD, repository_id=2), IgnoredEvent)
    assert isinstance(await send(stores.database, BUILD, repository_id=1), AcceptedDelivery)
    assert await counts(stores) == Counts(running=1)


async def test_checks_are_counted_separately_by_upstream_and_commit(stores: Stores) -> None:
    await send(stores.database, BUILD)
    await send(stores.database, BUILD._replace(conclusion="failure"), sha=LATER)
    await send(stores.database, BUILD._replace(conclusion="success"), upstream=OTHER)
    rows = await stores.rows(
        "SELECT upstream, sha, passed, failed, running FROM in_tree_commits ORDER BY upstream, sha"
    )
    assert [tuple(row.values()) for row in rows] == [
        (OTHER.key, SHA, 1, 0, 0),
        (CORE.key, SHA, 0, 0, 1),
        (CORE.key, LATER, 0, 1, 0),
    ]


async def test_checks_beyond_the_limit_of_a_commit_are_ignored(stores: Stores) -> None:
    names = [BUILD._replace(name=name) for name in ("one", "two", "three")]
    results = [await send(stores.database, check, most=2) for check in names]
    assert isinstance(results[2], IgnoredEvent)
    again = await send(stores.database, names[0]._replace(check_id=9), most=2)
    assert isinstance(again, AcceptedDelivery)
    assert await counts(stores) == Counts(running=2)


async def test_new_checks_are_announced_at_once_and_changes_soon_after_with_the_next_sweep(
    stores: Stores,
) -> None:
    async def read_newest_change() -> int:
        [row] = await stores.rows("SELECT max(change_id) AS newest FROM changes WHERE kind = 'in_tree'")
        number: int = row["newest"]
        return number

    await send(stores.database, BUILD)
    first = await read_newest_change()
    failed = BUILD._replace(conclusion="failure", ended_at=9)
    await send(stores.database, failed, at=NOW + timedelta(seconds=2))
    assert await read_newest_change() == first  # too soon after the one before
    await InTreeUpkeep(stores.database).run(NOW + timedelta(seconds=5))
    second = await read_newest_change()
    assert second > first
    await InTreeUpkeep(stores.database).run(NOW + timedelta(seconds=35))
    assert await read_newest_change() == second  # nothing new
    await send(stores.database, BUILD._replace(check_id=8), at=NOW + timedelta(seconds=40))
    assert await read_newest_change() > second
    assert await count_rows(stores, "changes") == 1


async def test_old_commits_are_deleted_except_heads_of_open_pull_requests(stores: Stores) -> None:
    old = NOW - 101 * DAY
    for sha in (SHA, LATER):
        await send(stores.database, BUILD, sha=sha, at=old)
    await send(stores.database, BUILD, sha="c" * 40, at=NOW - DAY)
    await InTreeUpkeep(stores.database).run(NOW)
    await stores.database.write(lambda tx: tx.run(OPEN_PULL, upstream=CORE.key, head_sha=LATER))
    await retention(stores.database).forget(NOW)
    rows = await stores.rows("SELECT sha FROM in_tree_commits ORDER BY sha")
    assert [row["sha"] for row in rows] == [LATER, "c" * 40]
