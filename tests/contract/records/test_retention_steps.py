"""Pruning in small units: it lets other writes run in between, and can stop after any unit and continue later."""
# ruff: noqa: S608 - every name in these statements is our own

import json
from datetime import timedelta
from unittest.mock import AsyncMock

import pytest

from crcr.receive.ingest.parse_envelope import parse_envelope
from crcr.record.change_and_audit_log import note_act
from crcr.record.jobs.ingested import IngestedResults
from crcr.record.store.database import Tx
from crcr.record.upkeep.retention import MOST_ROWS
from support.data.random_walk import BACKENDS
from support.data.retention_data import (
    DAY,
    DELIVERY_TABLES,
    CountingDatabase,
    all_sums,
    delivery_guids,
    execute_sql,
    random_history,
    retention,
    row_counts,
    sent_push,
)
from support.stores.databases import CORE, UPSTREAMS, Stores


async def test_no_unit_deletes_many_rows(stores: Stores) -> None:
    walk = await random_history(stores)
    for _ in range(4):
        await sent_push(walk, *BACKENDS[:2], jobs=70)
    walk.now += 300 * DAY
    await sent_push(walk, *BACKENDS)
    await execute_sql(stores, "UPDATE audit SET at = 0")

    async def add_many_acts(tx: Tx) -> None:
        for number in range(450):
            await note_act(tx, CORE, who="ann", act="a", subject=str(number), now=walk.now - 60 * DAY)

    await stores.database.write(add_many_acts)
    counting = CountingDatabase(stores.database)
    pauses: list[int] = []

    async def count_pause() -> None:
        pauses.append(len(counting.units))

    await retention(counting, breathe=count_pause).forget(walk.now)

    assert len(await delivery_guids(stores)) == 1
    assert 0 < max(counting.units) <= MOST_ROWS
    assert sum(counting.units) > 1_000
    assert len(pauses) > 5


@pytest.mark.parametrize("units", [6, 8, 11])
async def test_killed_pruning_leaves_no_orphans_and_the_next_run_completes_it(
    stores: Stores, units: int
) -> None:
    walk = await random_history(stores)
    for _ in range(4):
        await sent_push(walk, *BACKENDS[:2], jobs=70)
    walk.now += 300 * DAY
    newest = await sent_push(walk, *BACKENDS)
    figures = await all_sums(stores)
    killed = CountingDatabase(stores.database)
    killed.ends_after = units
    with pytest.raises(ConnectionAbortedError):
        await retention(killed).forget(walk.now)
    left = await row_counts(stores, *DELIVERY_TABLES)
    assert left["jobs"] > 4
    await _assert_no_orphans(stores)
    await retention(stores.database).forget(walk.now)

    assert await delivery_guids(stores) == [newest]
    assert (await row_counts(stores, *DELIVERY_TABLES))["jobs"] == 4
    assert await all_sums(stores) == figures


async def _assert_no_orphans(stores: Stores) -> None:
    """Every row that a page links to exists: of a job its run and dispatch, of a dispatch its delivery."""
    for child, parent in (
        ("jobs", "SELECT 1 FROM runs p WHERE p.run_id = c.run_id AND p.downstream = c.downstream"),
        ("jobs", "SELECT 1 FROM dispatches p WHERE p.delivery = c.delivery AND p.downstream = c.downstream"),
        ("runs", "SELECT 1 FROM dispatches p WHERE p.delivery = c.delivery AND p.downstream = c.downstream"),
        ("dispatches", "SELECT 1 FROM deliveries p WHERE p.guid = c.delivery"),
    ):
        assert await stores.rows(f"SELECT * FROM {child} c WHERE NOT EXISTS ({parent})") == []


async def test_pruning_ends_between_two_units_when_the_process_stops(stores: Stores) -> None:
    walk = await random_history(stores)
    for _ in range(3):
        await sent_push(walk, *BACKENDS[:2], jobs=70)
    walk.now += 300 * DAY
    await sent_push(walk, "org/one")
    counting = CountingDatabase(stores.database)
    await retention(counting, goes_on=lambda: len(counting.units) < 7).forget(walk.now)

    assert len(counting.units) == 7
    assert 1 < len(await delivery_guids(stores)) < 5


async def test_no_further_backends_are_queried_once_the_process_stops(stores: Stores) -> None:
    walk = await random_history(stores)
    await sent_push(walk, *BACKENDS[:2])
    database = AsyncMock(wraps=stores.database)
    await retention(database, goes_on=lambda: not database.quick_read.called).forget(walk.now + 300 * DAY)

    assert database.quick_read.call_count == 1


async def test_the_audit_log_is_pruned_by_age_and_records_the_pruning_once(stores: Stores) -> None:
    walk = await random_history(stores)
    noon = walk.now.replace(hour=12, minute=0)
    await execute_sql(stores, "DELETE FROM audit")
    for age in (32, 31, 30, 29):
        await stores.database.write(
            lambda tx, a=age: note_act(tx, CORE, who="ann", act="pause", subject=str(a), now=noon - a * DAY)  # type: ignore[misc]
        )
    for hours in (0, 1, 2):
        await retention(stores.database).forget(noon + timedelta(hours=hours))

    kept = await stores.rows("SELECT who, act, subject, detail FROM audit ORDER BY audit_id")
    assert [row["subject"] for row in kept] == ["30", "29", CORE.key]
    assert (kept[-1]["who"], kept[-1]["act"]) == ("crcr", "audit_pruned")
    assert kept[-1]["detail"] == f'{{"lines": 2, "before": "{(noon - 30 * DAY).date().isoformat()}"}}'


def ingested_body(delivery: str, job_name: str) -> bytes:
    """A successful result in the format of another relay."""
    workflow: dict[str, object] = {"name": "CI", "run_id": "77", "run_attempt": 1, "job_name": job_name}
    workflow |= {"status": "completed", "conclusion": "success"}
    body = {"event_type": "push", "delivery_id": delivery, "payload": {}, "workflow": workflow}
    trusted = {"verified_repo": "org/one", "downstream_repo_level": "L2", "ci_metrics": {}}
    return json.dumps({"trusted": trusted, "untrusted": {"callback_payload": body}}).encode()


async def test_ingested_results_are_pruned_except_the_newest_of_a_backend(stores: Stores) -> None:
    walk = await random_history(stores)
    results = IngestedResults(stores.database, stores.allowlists, UPSTREAMS)
    for days, delivery in ((0, "old"), (1, "newest of a silent one")):
        for job in ("build", "test"):
            now = walk.now + days * DAY + timedelta(seconds=job == "test")
            await results.take(parse_envelope(ingested_body(delivery, job)), "192.0.2.7", now)
    figures = await all_sums(stores)
    await retention(stores.database).forget(walk.now + 100 * DAY)
    assert await row_counts(stores, "ingested") == {"ingested": 4}
    await retention(stores.database).forget(walk.now + 300 * DAY)

    kept = await stores.rows("SELECT delivery, job_name FROM ingested")
    assert [tuple(row.values()) for row in kept] == [("newest of a silent one", "test")]
    assert await all_sums(stores) == figures
