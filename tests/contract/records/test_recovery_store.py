"""The state of webhook recovery, on every database."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from crcr.decide.github.missed_webhooks import KnownWebhooks, RecoveryOutcome
from crcr.record.deliveries.webhooks import RecoveryStore
from crcr.record.store.database import Database
from crcr.record.store.statement import Statement
from support.stores.databases import OpenDatabase

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_DELIVERY = Statement(
    text(
        "INSERT INTO deliveries (guid, upstream, event, state, source, received_at, body_bytes)"
        " VALUES (:guid, :upstream, 'pull_request', :state, 'webhook', 0, 0)"
    )
)
_UPSTREAM = Statement(
    text(
        "INSERT INTO upstreams (upstream, name, repository_id, created_at)"
        " VALUES (:upstream, :upstream, :repository_id, 0)"
    )
)


async def add(
    database: Database, guids: list[str], *, state: str = "accepted", upstream: str = "a/b"
) -> None:
    rows = [{"guid": guid, "upstream": upstream, "state": state} for guid in guids]
    await database.write(lambda tx: tx.many(_DELIVERY, rows))


async def test_stored_and_recovered_webhooks_are_found_for_any_upstream_and_any_number(
    database: Database,
) -> None:
    store = RecoveryStore(database)
    guids = [f"d{number}" for number in range(250)]
    await add(database, guids[:200])
    await add(database, guids[199:], upstream="c/d")  # one webhook may be stored for two upstreams
    await store.note("r1", RecoveryOutcome.IGNORED, NOW)

    known = await store.find_known([*guids, "r1", "unknown"])
    assert known == KnownWebhooks(frozenset(guids), frozenset({"r1"}))
    assert await store.find_known([]) == KnownWebhooks()
    assert await store.find_known(["d7"]) == KnownWebhooks(frozenset({"d7"}))


async def test_an_outcome_noted_by_two_processes_is_visible_to_both(open_database: OpenDatabase) -> None:
    one, two = RecoveryStore(open_database()), RecoveryStore(open_database())
    await one.note("g", RecoveryOutcome.TAKEN, NOW)
    await two.note("g", RecoveryOutcome.REPEAT, NOW)

    assert (await two.find_known(["g"])).recovered == {"g"}


async def test_the_watermark_only_moves_forward(open_database: OpenDatabase) -> None:
    one, two = RecoveryStore(open_database()), RecoveryStore(open_database())
    assert await one.read_watermark() is None
    await one.complete(NOW, NOW)
    await two.complete(NOW - timedelta(hours=1), NOW)  # a slower run of another process
    assert await one.read_watermark() == NOW
    await two.complete(NOW + timedelta(hours=1), NOW)
    assert await one.read_watermark() == NOW + timedelta(hours=1)


async def test_outcomes_older_than_githubs_delivery_log_are_deleted(database: Database) -> None:
    store = RecoveryStore(database)
    await store.note("old", RecoveryOutcome.TAKEN, NOW - timedelta(days=8, seconds=1))
    await store.note("new", RecoveryOutcome.TAKEN, NOW - timedelta(days=7))
    await store.complete(NOW, NOW)

    assert (await store.find_known(["old", "new"])).recovered == {"new"}


async def test_superseded_deliveries_are_counted(database: Database) -> None:
    await add(database, ["s1", "s2", "s3"], state="superseded")
    await add(database, ["a1"])
    assert await RecoveryStore(database).count_superseded(["s1", "s2", "a1", "unknown"]) == 2


async def test_upstream_ids_are_returned_only_when_all_are_known(database: Database) -> None:
    store = RecoveryStore(database)
    await database.write(lambda tx: tx.run(_UPSTREAM, upstream="a/b", repository_id=1))
    assert await store.read_upstream_ids() == frozenset({1})
    await database.write(lambda tx: tx.run(_UPSTREAM, upstream="c/d", repository_id=None))
    assert await store.read_upstream_ids() is None
