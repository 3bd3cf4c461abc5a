"""An allowlist that one process reads decides in all of them from then on, whatever they had in their memory."""
# ruff: noqa: S608 - every name in these statements is our own

import asyncio
from datetime import UTC, datetime

from crcr.decide.allowlist.entries import AllowlistReading
from crcr.decide.dispatch.plan import ReceivedDelivery
from support.data.events_and_reports import a_push
from support.stores.databases import CORE, OpenDatabase, Stores

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BOTH, ONE = "L2: [org/one, org/two]", "L2: [org/one]"


async def listed_backends(stores: Stores) -> list[str]:
    return [each.name.key for each in (await stores.allowlists.current(CORE)).entries]


async def push(stores: Stores, guid: str) -> list[str]:
    await stores.inbox.take(ReceivedDelivery(guid, "push", "test", b"packed", 6, NOW), a_push(upstream=CORE))
    told = await stores.rows(
        f"SELECT downstream FROM dispatches WHERE delivery = '{guid}' ORDER BY downstream"
    )
    return [row["downstream"] for row in told]


async def test_a_list_that_another_process_read_decides_at_once(open_database: OpenDatabase) -> None:
    here, there = Stores.over(open_database()), Stores.over(open_database())
    await here.prepare({CORE: BOTH}, NOW)
    assert await listed_backends(here) == await listed_backends(there) == ["org/one", "org/two"]
    assert await push(there, "before") == ["org/one", "org/two"]

    await here.allowlists.take_reading(CORE, AllowlistReading("test", ONE), NOW)
    assert await push(there, "after") == ["org/one"]
    assert await listed_backends(there) == ["org/one"]


async def test_two_processes_that_read_the_same_at_once_record_it_once(open_database: OpenDatabase) -> None:
    processes = [Stores.over(open_database()) for _ in range(4)]
    await processes[0].acts.register_upstreams((CORE,), NOW)
    await asyncio.gather(
        *(each.allowlists.take_reading(CORE, AllowlistReading("test", BOTH), NOW) for each in processes)
    )

    versions = await processes[0].rows("SELECT version FROM allowlist_versions")
    assert [row["version"] for row in versions] == [1]
    assert [await listed_backends(each) for each in processes] == [["org/one", "org/two"]] * 4
