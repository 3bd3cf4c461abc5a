"""Wake-ups from process to process on PostgreSQL: by LISTEN, and by polling where LISTEN is off or does not work."""

import asyncio
import struct
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from structlog.testing import capture_logs

from crcr.decide.model import EffectKind
from crcr.record.change_and_audit_log import note_change
from crcr.record.outbox.effects import add_effects, effect_row
from crcr.record.store.database import PostgresLocation, Tx
from crcr.record.store.postgres.connection import PostgresLink
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.postgres.wakeups import POLL_S
from crcr.record.store.signals import CHANGES, EFFECTS, Signals
from crcr.record.views.relay.state import newest_change
from support.services.postgres import Cluster, new_database
from support.stores.databases import CORE
from support.stores.race_harness import NOW

LATE_S = 10.0
"""For a machine that is busy with other tests."""


async def add_fact_and_effect(tx: Tx) -> None:
    await note_change(tx, CORE, "job", now=NOW)
    row = effect_row(CORE, EffectKind.PUBLISH_CHECKS, target="checks/gate", lane="a" * 40, now=NOW)
    await add_effects(tx, [row])


def open_process(url: str, *, listen: bool = True) -> PostgresDatabase:
    return PostgresDatabase(PostgresLink(PostgresLocation(url)), Signals(), listen=listen)


@asynccontextmanager
async def watching(database: PostgresDatabase) -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """A process whose worker and live pages wait for effects and changes; both have just polled."""
    wakeups = database.signals.subscribe(EFFECTS), database.signals.subscribe(CHANGES)
    task = asyncio.create_task(database.watch_other_processes())
    try:
        yield wakeups
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await database.close()


async def woken_by_commits(
    waits: tuple[asyncio.Event, asyncio.Event], reader: PostgresDatabase, writer: PostgresDatabase
) -> None:
    """Each commit of the writer wakes the worker and the live pages, which can then read it."""
    for _ in range(3):
        before = await reader.read(newest_change)
        for wait in waits:
            wait.clear()
        await writer.write(add_fact_and_effect)
        await asyncio.wait_for(asyncio.gather(*(wait.wait() for wait in waits)), POLL_S + LATE_S)
        while await reader.read(newest_change) == before:  # woken for another commit on the same server
            await asyncio.sleep(0.05)
        assert await reader.read(newest_change) == before + 1


def polling_lines(logs: list[MutableMapping[str, Any]]) -> list[Any]:
    return [line["reason"] for line in logs if line["event"] == "store_polling"]


async def first_wakeup(waits: tuple[asyncio.Event, asyncio.Event]) -> None:
    await asyncio.wait_for(asyncio.gather(*(wait.wait() for wait in waits)), LATE_S)


async def test_with_listen_off_another_processs_commits_are_found_by_polling() -> None:
    url = new_database()
    writer, reader = open_process(url), open_process(url, listen=False)
    with capture_logs() as logs:
        async with watching(reader) as waits:
            await first_wakeup(waits)
            await woken_by_commits(waits, reader, writer)
            [sessions] = await listening_sessions(writer)
            assert sessions == 0
    assert polling_lines(logs) == ["CRCR_DATABASE_LISTEN is off"]
    await writer.close()


async def test_a_direct_connection_listens_and_does_not_poll() -> None:
    url = new_database()
    writer, reader = open_process(url), open_process(url)
    with capture_logs() as logs:
        async with watching(reader) as waits:
            await first_wakeup(waits)
            await woken_by_commits(waits, reader, writer)
            [sessions] = await listening_sessions(writer)
            assert sessions == 1
    assert polling_lines(logs) == []
    await writer.close()


async def listening_sessions(database: PostgresDatabase) -> list[int]:
    """How many sessions have a LISTEN as one of their first statements; the heartbeat may have replaced it."""
    sql = (
        "SELECT count(*) AS number FROM pg_stat_activity WHERE datname = current_database()"
        " AND (query LIKE 'LISTEN%' OR query = 'SELECT 1')"
    )
    async with database._link.reading() as connection:
        return [row["number"] for row in await connection.fetch(sql)]


async def test_a_pooler_that_drops_notifications_is_noticed_and_polling_takes_over() -> None:
    url = new_database()
    async with dropping_notifications(url) as pooled:
        writer, reader = open_process(url), open_process(pooled)
        with capture_logs() as logs:
            async with watching(reader) as waits:
                await first_wakeup(waits)
                async with asyncio.timeout(LATE_S):
                    while not polling_lines(logs):
                        await asyncio.sleep(0.05)
                await woken_by_commits(waits, reader, writer)
        assert polling_lines(logs) == ["no notification arrives; is a connection pooler in between?"]
        await writer.close()


async def test_a_hot_standby_refuses_to_listen_and_polling_takes_over() -> None:
    cluster = Cluster.make()
    cluster.stop("fast")
    standby = cluster.folder / "data" / "standby.signal"
    standby.touch()
    cluster.start()
    reader = open_process(cluster.admin_url)
    with capture_logs() as logs:
        async with watching(reader) as waits:
            await first_wakeup(waits)
    [reason] = polling_lines(logs)
    assert "cannot execute LISTEN during recovery" in reason
    cluster.remove()


@asynccontextmanager
async def dropping_notifications(url: str) -> AsyncIterator[str]:
    """A proxy to the server that drops notifications, like a pooler that lends out its connections."""
    parts = urlsplit(url)

    async def serve(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        server_in, server_out = await asyncio.open_connection(parts.hostname, parts.port)
        both = (_forward(client_in, server_out), _forward_without_notifications(server_in, client_out))
        await asyncio.gather(*both, return_exceptions=True)

    proxy = await asyncio.start_server(serve, "127.0.0.1")
    port = proxy.sockets[0].getsockname()[1]
    yield f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}?sslmode=disable"
    proxy.close()


async def _forward(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
    target.close()


async def _forward_without_notifications(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """A message of the server is its type, its length in four bytes, and its body; `A` is a notification."""
    try:
        while True:
            head = await source.readexactly(5)
            body = await source.readexactly(struct.unpack("!I", head[1:])[0] - 4)
            if head[:1] != b"A":
                target.write(head + body)
    except asyncio.IncompleteReadError:
        target.close()
