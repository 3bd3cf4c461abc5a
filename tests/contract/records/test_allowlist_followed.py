"""An allowlist that one process reads applies in all processes at once, whatever they have cached."""
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
    return [entry.name.key for entry in (await stores.allowlists.current(CORE)).entries]


async def push(stores: Stores, guid: str) -> list[str]:
    await stores.inbox.take(ReceivedDelivery(guid, "push", "test", b"packed", 6, NOW), a_push(upstream=CORE))
    dispatches = await stores.rows(
        f"SELECT downstream FROM dispatches WHERE delivery = '{guid}' ORDER BY downstream"
    )
    return [row["downstream"] for row in dispatches]


async def test_an_allowlist_read_by_another_process_applies_at_once(open_database: OpenDatabase) -> None:
    reader, other = Stores.over(open_database()), Stores.over(open_database())
    await reader.prepare({CORE: BOTH}, NOW)
    assert await listed_backends(reader) == await listed_backends(other) == ["org/one", "org/two"]
    assert await push(other, "before") == ["org/one", "org/two"]

    await reader.allowlists.take_reading(CORE, AllowlistReading("test", ONE), NOW)
    assert await push(other, "after") == ["org/one"]
    assert await listed_backends(other) == ["org/one"]


async def test_concurrent_readings_of_the_same_allowlist_record_one_version(
    open_database: OpenDatabase,
) -> None:
    processes = [Stores.over(open_database()) for _ in range(4)]
    await processes[0].acts.register_upstreams((CORE,), NOW)
    await asyncio.gather(
        *(process.allowlists.take_reading(CORE, AllowlistReading("test", BOTH), NOW) for process in processes)
    )

    versions = await processes[0].rows("SELECT version FROM allowlist_versions")
    assert [row["version"] for row in versions] == [1]
    assert [await listed_backends(process) for process in processes] == [["org/one", "org/two"]] * 4
