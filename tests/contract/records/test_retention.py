"""Retention deletes old rows in small steps, keeps open ones, and does not change any figure."""
# ruff: noqa: S608 - every name in these statements is our own

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.backend import BackendQuery
from crcr.errors import NotFound, NotPossible
from crcr.record.change_and_audit_log import note_act
from crcr.record.store.times import to_us
from crcr.record.views.sql_views import SqlViews
from support.data.random_walk import RandomWalk
from support.data.retention_data import (
    DAY,
    DELIVERY_TABLES,
    ENDED,
    KEEP_ALL,
    all_sums,
    delivery_guids,
    execute_sql,
    random_history,
    retention,
    row_counts,
    sent_push,
)
from support.stores.databases import CORE, OTHER, Stores


async def test_an_old_delivery_is_deleted_with_all_its_rows(stores: Stores) -> None:
    walk = await random_history(stores)
    old = await sent_push(walk, "org/one", "org/two")
    walk.now += 99 * DAY
    new = await sent_push(walk, "org/one", "org/two")
    before = await row_counts(stores, *DELIVERY_TABLES)
    await retention(stores.database).forget(walk.now)
    assert await row_counts(stores, *DELIVERY_TABLES) == before
    await retention(stores.database).forget(walk.now + DAY)
    assert await delivery_guids(stores) == [old, new]  # exactly a hundred days old: still kept
    await retention(stores.database).forget(walk.now + DAY + timedelta(microseconds=1))

    assert await delivery_guids(stores) == [new]
    for table in DELIVERY_TABLES[1:]:
        assert {row["delivery"] for row in await stores.rows(f"SELECT delivery FROM {table}")} == {new}


async def test_nothing_is_deleted_when_everything_is_kept(stores: Stores) -> None:
    walk = await random_history(stores)
    await sent_push(walk, "org/one")
    walk.now += 5_000 * DAY
    await sent_push(walk, "org/one")
    before = await row_counts(stores, *DELIVERY_TABLES, "audit")
    await retention(stores.database, KEEP_ALL).forget(walk.now)

    assert await row_counts(stores, *DELIVERY_TABLES, "audit") == before


async def test_audit_rows_of_an_upstream_that_is_no_longer_configured_are_pruned(stores: Stores) -> None:
    walk = await random_history(stores)
    await walk.stores.database.write(
        lambda tx: note_act(tx, OTHER, who="ann", act="pause", subject=OTHER.key, now=walk.now)
    )
    await retention(stores.database).forget(walk.now + 40 * DAY)

    kept = await stores.rows(f"SELECT act FROM audit WHERE upstream = '{OTHER.key}'")
    assert [row["act"] for row in kept] == ["audit_pruned"]


OPEN: dict[str, Callable[[RandomWalk, str], Awaitable[None]]] = {
    "a job runs": lambda walk, guid: walk.report(
        {"delivery": guid, "downstream": "org/one"}, "b-77", 1, "test", workflow_name="CI"
    ),
    "a dispatch waits": lambda walk, guid: execute_sql(
        walk.stores,
        f"UPDATE dispatches SET state = 'waiting' WHERE delivery = '{guid}' AND downstream = 'org/two'",
    ),
    "a dispatch is held": lambda walk, guid: execute_sql(
        walk.stores,
        f"UPDATE dispatches SET state = 'held' WHERE delivery = '{guid}' AND downstream = 'org/two'",
    ),
    "a dispatch is parked": lambda walk, guid: execute_sql(
        walk.stores,
        f"UPDATE dispatches SET state = 'parked' WHERE delivery = '{guid}' AND downstream = 'org/two'",
    ),
    "an effect is parked": lambda walk, guid: execute_sql(
        walk.stores,
        f"UPDATE effects SET state = 'parked' WHERE delivery = '{guid}'",
    ),
    "its place is in doubt": lambda walk, guid: execute_sql(
        walk.stores,
        f"UPDATE deliveries SET state = 'in_doubt' WHERE guid = '{guid}'",
    ),
    "it is the head of an open pull request": lambda walk, guid: execute_sql(
        walk.stores,
        "INSERT INTO pulls (upstream, number, head_sha, updated_at, is_open, draft, labels, base_ref, title, author)"
        f" SELECT upstream, 7, head_sha, 0, 1, 0, '[]', 'main', 't', 'ann' FROM deliveries WHERE guid = '{guid}'",
    ),
    "its merge group waits in the queue": lambda walk, guid: execute_sql(
        walk.stores,
        "INSERT INTO merge_groups (upstream, head_sha, delivery, head_ref, base_sha, base_ref, created_at)"
        f" SELECT upstream, head_sha, guid, 'q', 'b', 'main', 0 FROM deliveries WHERE guid = '{guid}'",
    ),
}


@pytest.mark.parametrize("why", OPEN)
async def test_open_deliveries_are_kept_at_any_age(stores: Stores, why: str) -> None:
    walk = await random_history(stores)
    kept = await sent_push(walk, "org/one")
    walk.now += timedelta(hours=1)
    gone = await sent_push(walk, "org/one")
    await execute_sql(stores, f"UPDATE deliveries SET number = 7 WHERE guid = '{kept}'")
    await OPEN[why](walk, kept)
    rows = await stores.rows(f"SELECT downstream FROM dispatches WHERE delivery = '{kept}' ORDER BY 1")
    walk.now += 200 * DAY
    newest = await sent_push(walk, "org/one")
    await retention(stores.database).forget(walk.now + DAY)

    assert await delivery_guids(stores) == [kept, newest]
    assert gone not in await delivery_guids(stores)
    assert (
        await stores.rows(f"SELECT downstream FROM dispatches WHERE delivery = '{kept}' ORDER BY 1") == rows
    )


async def test_a_delivery_that_was_tested_again_recently_is_kept(stores: Stores) -> None:
    walk = await random_history(stores)
    old = await sent_push(walk, "org/one")
    walk.now += 90 * DAY
    again = {"delivery": old, "downstream": "org/one"}
    await walk.report(again, f"b-{old}-0", 2, "build", workflow_name="CI")
    await walk.report(again, f"b-{old}-0", 2, "build", workflow_name="CI", **ENDED)
    walk.now += 20 * DAY
    await sent_push(walk, "org/one")
    await retention(stores.database).forget(walk.now)

    assert old in await delivery_guids(stores)


async def test_the_newest_result_of_a_silent_backend_is_kept(stores: Stores) -> None:
    walk = await random_history(stores)
    first = await sent_push(walk, "org/one", "org/two")
    walk.now += DAY
    last_of_two = await sent_push(walk, "org/one", "org/two")
    walk.now += 300 * DAY
    newest = await sent_push(walk, "org/one")
    await retention(stores.database).forget(walk.now)

    assert first not in await delivery_guids(stores)
    assert await delivery_guids(stores) == [last_of_two, newest]


async def test_the_rows_of_a_commit_are_deleted_with_its_last_delivery(stores: Stores) -> None:
    walk = await random_history(stores)
    old = await sent_push(walk, "org/one")
    [sha] = [row["head_sha"] for row in await stores.rows("SELECT head_sha FROM deliveries")]
    at = to_us(walk.now)
    later = at + 50 * 86_400_000_000
    await execute_sql(
        stores,
        "INSERT INTO gates (head_sha, upstream, state, title, judged_at)"
        f" VALUES ('{sha}', '{CORE.key}', 'passed', 't', 1)",
    )
    await execute_sql(
        stores,
        "INSERT INTO checks (upstream, head_sha, name, round, tier, incarnation, status, title, digest)"
        f" VALUES ('{CORE.key}', '{sha}', 'crcr/gate', 1, 'gate', 'x', 'completed', 't', 'd')",
    )
    await execute_sql(
        stores,
        "INSERT INTO approvals (head_sha, upstream, number, who, at)"
        f" VALUES ('{sha}', '{CORE.key}', 7, 'ann', {at})",
    )
    await execute_sql(
        stores,
        "INSERT INTO pulls (upstream, number, head_sha, updated_at, is_open, draft, labels, base_ref, title, author)"
        f" VALUES ('{CORE.key}', 7, '{sha}', {at}, 0, 0, '[]', 'main', 't', 'ann')",
    )
    await execute_sql(stores, f"UPDATE deliveries SET number = 7 WHERE guid = '{old}'")
    await execute_sql(
        stores,
        "INSERT INTO deliveries (guid, upstream, event, state, source, number, head_sha, received_at, body_bytes)"
        f" VALUES ('later', '{CORE.key}', 'pull_request', 'accepted', 'test', 7, '{sha}', {later}, 0)",
    )
    tables = ("gates", "checks", "approvals", "pulls")
    walk.now += 101 * DAY
    await sent_push(walk, "org/one")
    await retention(stores.database).forget(walk.now)
    assert old not in await delivery_guids(stores)
    assert await row_counts(stores, *tables) == dict.fromkeys(
        tables, 1
    )  # another delivery has the same commit
    await retention(stores.database).forget(walk.now + 60 * DAY)

    assert await row_counts(stores, *tables) == dict.fromkeys(tables, 0)


async def test_self_reported_jobs_are_deleted_by_age_except_the_newest(stores: Stores) -> None:
    walk = await random_history(stores)
    for _ in range(60):
        await walk.own()
        walk.now += timedelta(hours=3)
    cut = walk.now + 97 * DAY  # 60 reports in 7.5 days: at that time some are older than a hundred days
    before = await stores.rows("SELECT * FROM jobs ORDER BY completed_at")
    figures = await all_sums(stores)
    await retention(stores.database).forget(cut)
    after = await stores.rows("SELECT * FROM jobs ORDER BY completed_at")

    border = to_us(cut - 100 * DAY)
    newest = {(job["downstream"], job["event"]): job["completed_at"] for job in before if job["completed_at"]}
    assert 0 < len(after) < len(before)
    for job in before:
        old = max(job["completed_at"] or 0, job["in_progress_at"]) < border
        last = newest.get((job["downstream"], job["event"])) == job["completed_at"]
        assert (job in after) == (not old or last), job
    assert await all_sums(stores) == figures


@pytest.mark.parametrize("seed", range(4))
async def test_retention_does_not_change_any_figure_of_a_page(stores: Stores, seed: int) -> None:
    walk = await random_history(stores, seed)
    for _ in range(12):
        await sent_push(walk, "org/one", "org/two")
        walk.now += timedelta(seconds=1)
    for _ in range(100):
        await walk.step()
    for _ in range(3):  # jobs that still run time out as silent
        walk.now += timedelta(hours=8)
        await walk.sweeps.time_out_silent(walk.now)
    middle = walk.now
    walk.now += 96 * DAY
    for _ in range(60):
        await walk.step()
    now = max(walk.now, middle + 101 * DAY)
    shown, summed = await _read_pages(walk, now), await all_sums(stores)
    before = await row_counts(stores, *DELIVERY_TABLES)
    await retention(stores.database).forget(now)
    after = await row_counts(stores, *DELIVERY_TABLES)

    assert {
        name: (before[name], after[name]) for name in DELIVERY_TABLES if not 0 < after[name] < before[name]
    } == {}
    assert await all_sums(stores) == summed
    assert await _read_pages(walk, now) == shown
    await _assert_no_orphans_except_self_reports(stores)
    for _ in range(40):  # the relay continues to work
        with suppress(NotPossible):  # a replay needs a body that was deleted
            await walk.step()


async def _assert_no_orphans_except_self_reports(stores: Stores) -> None:
    orphaned_jobs = await stores.rows(
        "SELECT * FROM jobs j WHERE event NOT IN ('nightly', 'periodic') AND NOT EXISTS (SELECT 1 FROM deliveries v"
        " WHERE v.guid = j.delivery)"
    )
    assert orphaned_jobs == []
    orphaned_dispatches = (
        "SELECT * FROM dispatches d WHERE NOT EXISTS (SELECT 1 FROM deliveries v WHERE v.guid = d.delivery)"
    )
    assert await stores.rows(orphaned_dispatches) == []


async def _read_pages(walk: RandomWalk, now: Any) -> list[Any]:
    views = SqlViews(walk.stores.database, walk.stores.allowlists, (CORE,))
    answers: list[Any] = []
    for span, kind in product(Span, (ResultKind.PULLS, ResultKind.PUSH, ResultKind.NIGHTLY)):
        summary = await views.summary(CORE, span, now, kind=kind)
        answers += [summary.levels, summary.health, await views.metrics(CORE, span, now, kind=kind)]
        for backend in summary.backends:
            query = BackendQuery(upstream=CORE, downstream=backend.name, span=span, kind=kind)
            page = await views.backend(query, now)
            badge = await views.badge(CORE, backend.name, kind, span, now)
            answers += [page.summary, page.jobs, page.matrix, badge.tally, badge.stale]
    return answers


async def test_a_page_of_deleted_data_says_that_it_is_no_longer_kept(stores: Stores) -> None:
    walk = await random_history(stores)
    guid = await sent_push(walk, "org/one")
    [sha] = [row["head_sha"] for row in await stores.rows("SELECT head_sha FROM deliveries")]
    walk.now += 300 * DAY
    await sent_push(walk, "org/one")
    await retention(stores.database).forget(walk.now)
    views = SqlViews(walk.stores.database, walk.stores.allowlists, (CORE,))

    for read in (
        lambda: views.delivery(CORE, guid),
        lambda: views.commit(CORE, sha, walk.now),
        lambda: views.pull(CORE, 7, walk.now),
    ):
        with pytest.raises(NotFound) as error:
            await read()
        assert "no longer kept" in str(error.value.hint)
