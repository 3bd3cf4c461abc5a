"""PostgreSQL down, slow or locked: reported within seconds, and recovered without help."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest
from sqlalchemy import text

from crcr.errors import StoreUnavailable
from crcr.record.change_and_audit_log import note_change
from crcr.record.migrations.run import head, migrate
from crcr.record.store.database import PostgresLocation, PostgresTimeouts, Tx
from crcr.record.store.postgres.connection import FAULTS, PostgresLink, connect
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.postgres.lane_locks import LOCKS
from crcr.record.store.signals import CHANGES, Signals
from crcr.record.store.statement import Statement
from support.services.postgres import Cluster, new_database, run_on
from support.stores.databases import CORE, Stores
from support.stores.race_harness import NOW, empty_unit, pause_before_commit

SOON_S = 15.0
_SLOW = Statement(text("SELECT pg_sleep(60)"))


def open_postgres(location: PostgresLocation) -> PostgresDatabase:
    return PostgresDatabase(PostgresLink(location), Signals())


async def note(tx: Tx) -> None:
    await note_change(tx, CORE, "relay", now=NOW)


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    cluster = Cluster.make(durable=True)
    run_on(cluster.admin_url, "CREATE DATABASE crcr")
    migrate(PostgresLocation(cluster.url("crcr")))
    yield cluster
    cluster.remove()


@pytest.fixture
async def database(own_cluster: Cluster) -> AsyncIterator[PostgresDatabase]:
    database = open_postgres(PostgresLocation(own_cluster.url("crcr")))
    yield database
    await asyncio.wait_for(database.close(), SOON_S)


@pytest.mark.parametrize("how", ["immediate", "fast"])
async def test_a_restart_of_the_server_fails_only_the_calls_in_flight(
    own_cluster: Cluster, database: PostgresDatabase, how: str
) -> None:
    stores = Stores.over(database)
    before = len(await stores.rows("SELECT 1 AS one FROM changes"))
    await asyncio.gather(*(database.write(note, lane=f"lane {n}") for n in range(8)))
    own_cluster.stop(how)
    writes = [database.write(note, lane=f"lane {n}") for n in range(20)]
    results = await asyncio.wait_for(
        asyncio.gather(*writes, database.read(note), return_exceptions=True), SOON_S
    )
    assert {type(result) for result in results} == {StoreUnavailable}
    own_cluster.start()
    await asyncio.gather(*(database.write(note, lane=f"lane {n}") for n in range(8)))
    assert len(await stores.rows("SELECT 1 AS one FROM changes")) == before + 16


async def test_a_write_interrupted_by_a_crash_of_the_server_raises_and_leaves_no_rows(
    own_cluster: Cluster, database: PostgresDatabase
) -> None:
    stores = Stores.over(database)
    before = len(await stores.rows("SELECT 1 AS one FROM changes"))
    held = await pause_before_commit(database, note)
    own_cluster.stop("immediate")
    own_cluster.start()
    with pytest.raises(StoreUnavailable):
        await held.writing
    assert len(await stores.rows("SELECT 1 AS one FROM changes")) == before


async def test_the_listener_reconnects_after_a_restart_and_gets_notifications(
    own_cluster: Cluster, database: PostgresDatabase
) -> None:
    woken = database.signals.subscribe(CHANGES)
    listening = asyncio.create_task(database.watch_other_processes())
    other = open_postgres(PostgresLocation(own_cluster.url("crcr")))
    await asyncio.wait_for(woken.wait(), SOON_S)
    woken.clear()
    own_cluster.stop("immediate")
    own_cluster.start()
    # Notifications sent in between are lost: after it listens again, the process wakes every subscriber.
    await asyncio.wait_for(woken.wait(), 2 * SOON_S)
    woken.clear()
    await other.write(note)
    await asyncio.wait_for(woken.wait(), SOON_S)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await other.close()


async def test_an_unreachable_server_raises_store_unavailable() -> None:
    unreachable = open_postgres(PostgresLocation("postgresql://crcr@127.0.0.1:1/none"))
    for call in (
        unreachable.write(empty_unit),
        unreachable.read(empty_unit),
        unreachable.quick_read(empty_unit),
    ):
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(call, SOON_S)
    await unreachable.close()


async def test_a_lock_held_too_long_raises_store_unavailable_instead_of_hanging() -> None:
    url = new_database()
    holding, waiting = (
        open_postgres(PostgresLocation(url)),
        open_postgres(PostgresLocation(url, timeouts=PostgresTimeouts(lock_ms=300))),
    )
    held = await pause_before_commit(holding, note)
    with pytest.raises(StoreUnavailable, match="lock timeout"):
        await asyncio.wait_for(waiting.write(note, lane="x"), SOON_S)
    await held.end()
    await waiting.write(note, lane="x")
    await asyncio.gather(holding.close(), waiting.close())


async def test_a_statement_that_runs_too_long_is_cancelled() -> None:
    database = open_postgres(PostgresLocation(new_database(), timeouts=PostgresTimeouts(statement_ms=300)))
    with pytest.raises(StoreUnavailable, match="statement timeout"):
        await asyncio.wait_for(database.read(lambda tx: tx.one(_SLOW)), SOON_S)
    await database.write(empty_unit)
    await database.close()


async def test_the_connection_of_a_process_that_froze_in_a_write_is_terminated() -> None:
    location = PostgresLocation(new_database(), timeouts=PostgresTimeouts(idle_in_transaction_ms=300))
    frozen, database = await connect(location), open_postgres(location)
    await frozen.execute(f"BEGIN; SELECT pg_advisory_xact_lock({LOCKS}, 0)")
    await frozen.execute("INSERT INTO changes (upstream, kind, at) VALUES ('a/b', 'job', 0)")
    await asyncio.wait_for(database.write(note), SOON_S)  # waits until the frozen connection is terminated
    with pytest.raises(FAULTS):
        await frozen.execute("COMMIT")
    rows = await Stores.over(database).rows("SELECT kind FROM changes")
    assert len(rows) == 1
    await database.close()


async def test_timeouts_are_set_on_every_connection_of_both_pools() -> None:
    link = PostgresLink(PostgresLocation(new_database()))
    settings = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "jit")
    values = []
    for pool in (link.reading, link.writing):
        async with pool() as connection:
            values.append([await connection.fetchval(f"SHOW {name}") for name in settings])
    await link.close()
    assert values == [["15s", "3800ms", "15s", "off"], ["5s", "3800ms", "1700ms", "off"]]


async def test_a_server_without_free_connections_raises_store_unavailable(own_cluster: Cluster) -> None:
    await asyncio.to_thread(run_on, own_cluster.admin_url, "ALTER DATABASE crcr CONNECTION LIMIT 0")
    await asyncio.to_thread(run_on, own_cluster.admin_url, "CREATE ROLE plain LOGIN")
    url = own_cluster.url("crcr").replace("crcr@", "plain@")
    database = open_postgres(PostgresLocation(url))
    with pytest.raises(StoreUnavailable, match="too many connections"):
        await database.read(empty_unit)
    await database.close()
    await asyncio.to_thread(run_on, own_cluster.admin_url, "ALTER DATABASE crcr CONNECTION LIMIT -1")


def test_of_concurrent_migrations_of_an_empty_database_one_runs_and_all_return_the_head() -> None:
    location = PostgresLocation(new_database(empty=True))
    with ThreadPoolExecutor(4) as threads:
        revisions = list(threads.map(migrate, [location] * 4))
    assert {after for _, after in revisions} == {head()}
    assert sorted(str(before) for before, _ in revisions).count("None") == 1


async def test_pools_open_no_more_connections_than_configured() -> None:
    url = new_database()
    database = open_postgres(PostgresLocation(url, connections=6))
    writes = [database.write(note, lane=f"lane {n}") for n in range(40)]
    reads = [database.read(empty_unit) for _ in range(40)]
    await asyncio.gather(*writes, *reads)
    admin = await asyncpg.connect(url)
    open_now = await admin.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'crcr' AND datname = current_database()"
    )
    await admin.close()
    assert open_now <= 6
    await database.close()
