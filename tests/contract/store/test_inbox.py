"""Contract of the inbox: a delivery is accepted once, whole or not at all, and is committed before the response."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from crcr.decide.dispatch.plan import AcceptedDelivery, AlreadyProcessed, IgnoredEvent, ReceivedDelivery
from crcr.decide.model import DeliveryState
from crcr.errors import NoAllowlist, StoreUnavailable
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.signals import EFFECTS
from crcr.record.store.sqlite.database import SqliteDatabase
from support.data.events_and_reports import a_pull, a_push
from support.stores.databases import CORE, OTHER, OpenDatabase, Stores

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LISTED = "L1:\n  - org/one\n  - org/two: {drafts: false}\n"
PULL = a_pull(upstream=CORE, number=1, updated_at=NOW)
PUSH = a_push(upstream=CORE, ref="refs/heads/gh/someone/1/head")


def receipt(guid: str = "d1", event: str = "pull_request") -> ReceivedDelivery:
    return ReceivedDelivery(guid, event, "test", b"packed", 6, NOW)


async def count(stores: Stores) -> tuple[int, int, int]:
    """Deliveries, dispatches and effects."""
    [row] = await stores.rows(
        "SELECT (SELECT count(*) FROM deliveries) AS deliveries,"
        " (SELECT count(*) FROM dispatches) AS dispatches, (SELECT count(*) FROM effects) AS effects"
    )
    return row["deliveries"], row["dispatches"], row["effects"]


async def prepare_allowlists(stores: Stores) -> Stores:
    await stores.prepare({CORE: LISTED, OTHER: LISTED}, NOW)
    return stores


async def test_a_delivery_is_stored_with_its_dispatches_and_effects(stores: Stores) -> None:
    taken = await (await prepare_allowlists(stores)).inbox.take(receipt(), replace(PULL, draft=True))

    assert taken == AcceptedDelivery(2, DeliveryState.ACCEPTED)
    assert await count(stores) == (1, 2, 1)  # the draft is held at one target


async def test_an_accepted_delivery_is_committed_and_visible_to_another_process(
    open_database: OpenDatabase,
) -> None:
    one, two = Stores.over(open_database()), Stores.over(open_database())
    await (await prepare_allowlists(one)).inbox.take(receipt(), PULL)

    assert await count(two) == (1, 2, 2)
    assert await two.inbox.take(receipt(), PULL) == AlreadyProcessed()


async def test_fault_04_of_many_equal_concurrent_deliveries_in_two_processes_one_is_accepted(
    open_database: OpenDatabase,
) -> None:
    one, two = Stores.over(open_database()), Stores.over(open_database())
    await prepare_allowlists(one)
    outcomes = await asyncio.gather(*(item.inbox.take(receipt(), PULL) for item in (one, two) * 25))

    assert sum(isinstance(item, AcceptedDelivery) for item in outcomes) == 1
    assert sum(isinstance(item, AlreadyProcessed) for item in outcomes) == 49
    assert await count(one) == (1, 2, 2)


async def test_many_different_concurrent_deliveries_are_all_accepted(stores: Stores) -> None:
    inbox = (await prepare_allowlists(stores)).inbox
    outcomes = await asyncio.gather(
        *(inbox.take(receipt(f"d{number}"), replace(PULL, number=number)) for number in range(1, 301))
    )

    assert outcomes == [AcceptedDelivery(2, DeliveryState.ACCEPTED)] * 300
    assert await count(stores) == (300, 600, 600)


async def test_one_guid_from_two_upstreams_makes_two_deliveries(stores: Stores) -> None:
    inbox = (await prepare_allowlists(stores)).inbox
    await inbox.take(receipt(), PULL)

    assert isinstance(await inbox.take(receipt(), replace(PULL, upstream=OTHER)), AcceptedDelivery)
    assert await count(stores) == (2, 4, 4)


async def test_an_ignored_event_stores_nothing(stores: Stores) -> None:
    ignored = await (await prepare_allowlists(stores)).inbox.take(receipt(event="push"), PUSH)

    assert isinstance(ignored, IgnoredEvent)
    assert await count(stores) == (0, 0, 0)


async def test_without_an_allowlist_a_delivery_is_refused_and_nothing_is_stored(stores: Stores) -> None:
    await stores.prepare({OTHER: LISTED}, NOW)
    with pytest.raises(NoAllowlist):
        await stores.inbox.take(receipt(), PULL)

    assert await count(stores) == (0, 0, 0)


async def test_a_failing_delivery_does_not_fail_concurrent_ones(stores: Stores) -> None:
    await stores.prepare({CORE: LISTED}, NOW)
    outcomes = await asyncio.gather(
        *(
            stores.inbox.take(receipt(f"d{number}"), replace(PULL, number=number, upstream=upstream))
            for number, upstream in enumerate((CORE, OTHER) * 5, start=1)
        ),
        return_exceptions=True,
    )

    assert [type(outcome) for outcome in outcomes] == [AcceptedDelivery, NoAllowlist] * 5
    assert await count(stores) == (5, 10, 10)


async def test_a_stale_delivery_is_recorded_and_dispatches_nothing(stores: Stores) -> None:
    inbox = (await prepare_allowlists(stores)).inbox
    await inbox.take(receipt("new"), replace(PULL, head_sha="b" * 40, updated_at=NOW + timedelta(seconds=1)))
    old = await inbox.take(receipt("old"), PULL)

    assert old == AcceptedDelivery(0, DeliveryState.SUPERSEDED)
    assert await count(stores) == (2, 2, 2)


async def test_a_delivery_in_doubt_is_recorded_with_an_effect_that_confirms_the_head(stores: Stores) -> None:
    inbox = (await prepare_allowlists(stores)).inbox
    await inbox.take(receipt("one"), PULL)
    push = replace(PULL, action="synchronize", head_sha="c" * 40, before="b" * 40)

    assert await inbox.take(receipt("two"), push) == AcceptedDelivery(2, DeliveryState.IN_DOUBT)
    [effect] = await stores.rows("SELECT kind, target, delivery FROM effects WHERE kind = 'confirm_head'")
    assert effect == {"kind": "confirm_head", "target": CORE.key, "delivery": "two"}


async def test_subscribers_to_effects_are_woken_by_the_commit(stores: Stores) -> None:
    await prepare_allowlists(stores)
    assert isinstance(stores.database, SqliteDatabase | PostgresDatabase)
    woken = stores.database.signals.subscribe(EFFECTS)
    await stores.inbox.take(receipt(event="push"), PUSH)
    assert not woken.is_set()
    await stores.inbox.take(receipt(), PULL)

    assert woken.is_set()


async def test_a_cancelled_caller_does_not_undo_or_block_deliveries(stores: Stores) -> None:
    inbox = (await prepare_allowlists(stores)).inbox
    cancelled = asyncio.create_task(inbox.take(receipt("gone"), PULL))
    await asyncio.sleep(0)
    cancelled.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled

    assert isinstance(await inbox.take(receipt("next"), replace(PULL, number=2)), AcceptedDelivery)
    assert (await inbox.take(receipt("gone"), PULL)) == AlreadyProcessed()


async def test_a_closed_store_raises_store_unavailable(stores: Stores) -> None:
    await prepare_allowlists(stores)
    await stores.database.close()

    with pytest.raises(StoreUnavailable):
        await stores.inbox.take(receipt(), PULL)
