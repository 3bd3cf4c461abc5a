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


def open_postgres(place: PostgresLocation) -> PostgresDatabase:
    return PostgresDatabase(PostgresLink(place), Signals())


async def note(tx: Tx) -> None:
    await note_change(tx, CORE, "relay", now=NOW)


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    made = Cluster.make(durable=True)
    run_on(made.admin_url, "CREATE DATABASE crcr")
    migrate(PostgresLocation(made.url("crcr")))
    yield made
    made.remove()


@pytest.fixture
async def database(own_cluster: Cluster) -> AsyncIterator[PostgresDatabase]:
    database = open_postgres(PostgresLocation(own_cluster.url("crcr")))
    yield database
    await asyncio.wait_for(database.close(), SOON_S)


@pytest.mark.parametrize("how", ["immediate", "fast"])
async def test_a_restart_of_the_server_costs_those_under_way_and_nobody_after(
    own_cluster: Cluster, database: PostgresDatabase, how: str
) -> None:
    stores = Stores.over(database)
    before = len(await stores.rows("SELECT 1 AS one FROM changes"))
    await asyncio.gather(*(database.write(note, lane=f"lane {n}") for n in range(8)))
    own_cluster.stop(how)
    writes = [database.write(note, lane=f"lane {n}") for n in range(20)]
    answers = await asyncio.wait_for(
        asyncio.gather(*writes, database.read(note), return_exceptions=True), SOON_S
    )
    assert {type(each) for each in answers} == {StoreUnavailable}
    own_cluster.start()
    await asyncio.gather(*(database.write(note, lane=f"lane {n}") for n in range(8)))
    assert len(await stores.rows("SELECT 1 AS one FROM changes")) == before + 16


async def test_a_write_that_was_broken_off_is_not_told_to_have_been_taken(
    own_cluster: Cluster, database: PostgresDatabase
) -> None:
    stores = Stores.over(database)
    before = len(await stores.rows("SELECT 1 AS one FROM changes"))
    writing = await pause_before_commit(database, note)
    own_cluster.stop("immediate")
    own_cluster.start()
    with pytest.raises(StoreUnavailable):
        await writing.writing
    assert len(await stores.rows("SELECT 1 AS one FROM changes")) == before


async def test_after_a_restart_the_listener_hears_again(
    own_cluster: Cluster, database: PostgresDatabase
) -> None:
    woken = database.signals.subscribe(CHANGES)
    listening = asyncio.create_task(database.watch_other_processes())
    other = open_postgres(PostgresLocation(own_cluster.url("crcr")))
    await asyncio.wait_for(woken.wait(), SOON_S)
    woken.clear()
    own_cluster.stop("immediate")
    own_cluster.start()
    # Whatever was said meanwhile was lost: who listens again looks at everything.
    await asyncio.wait_for(woken.wait(), 2 * SOON_S)
    woken.clear()
    await other.write(note)
    await asyncio.wait_for(woken.wait(), SOON_S)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await other.close()


async def test_a_server_that_is_not_there_is_said_to_be_away() -> None:
    nowhere = open_postgres(PostgresLocation("postgresql://crcr@127.0.0.1:1/none"))
    for asked in (nowhere.write(empty_unit), nowhere.read(empty_unit), nowhere.quick_read(empty_unit)):
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(asked, SOON_S)
    await nowhere.close()


async def test_a_lock_that_is_held_for_long_is_an_outage_and_not_a_hang() -> None:
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


async def test_a_statement_that_takes_for_ever_is_broken_off() -> None:
    database = open_postgres(PostgresLocation(new_database(), timeouts=PostgresTimeouts(statement_ms=300)))
    with pytest.raises(StoreUnavailable, match="statement timeout"):
        await asyncio.wait_for(database.read(lambda tx: tx.one(_SLOW)), SOON_S)
    await database.write(empty_unit)
    await database.close()


async def test_a_process_that_froze_in_a_write_is_thrown_out() -> None:
    place = PostgresLocation(new_database(), timeouts=PostgresTimeouts(idle_in_transaction_ms=300))
    frozen, database = await connect(place), open_postgres(place)
    await frozen.execute(f"BEGIN; SELECT pg_advisory_xact_lock({LOCKS}, 0)")
    await frozen.execute("INSERT INTO changes (upstream, kind, at) VALUES ('a/b', 'job', 0)")
    await asyncio.wait_for(database.write(note), SOON_S)  # waits until the frozen one is gone
    with pytest.raises(FAULTS):
        await frozen.execute("COMMIT")
    rows = await Stores.over(database).rows("SELECT kind FROM changes")
    assert len(rows) == 1
    await database.close()


async def test_limits_are_in_force_on_every_connection_of_ours() -> None:
    link = PostgresLink(PostgresLocation(new_database()))
    limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "jit")
    found = []
    for pool in (link.reading, link.writing):
        async with pool() as connection:
            found.append([await connection.fetchval(f"SHOW {name}") for name in limits])
    await link.close()
    assert found == [["15s", "3800ms", "15s", "off"], ["5s", "3800ms", "1700ms", "off"]]


async def test_a_full_server_is_an_outage(own_cluster: Cluster) -> None:
    await asyncio.to_thread(run_on, own_cluster.admin_url, "ALTER DATABASE crcr CONNECTION LIMIT 0")
    await asyncio.to_thread(run_on, own_cluster.admin_url, "CREATE ROLE plain LOGIN")
    url = own_cluster.url("crcr").replace("crcr@", "plain@")
    database = open_postgres(PostgresLocation(url))
    with pytest.raises(StoreUnavailable, match="too many connections"):
        await database.read(empty_unit)
    await database.close()
    await asyncio.to_thread(run_on, own_cluster.admin_url, "ALTER DATABASE crcr CONNECTION LIMIT -1")


def test_of_processes_that_migrate_an_empty_database_at_once_one_does_and_all_find_it_done() -> None:
    place = PostgresLocation(new_database(empty=True))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(migrate, [place] * 4))
    assert {after for _, after in found} == {head()}
    assert sorted(str(before) for before, _ in found).count("None") == 1


async def test_pools_open_no_more_connections_than_the_setting_says() -> None:
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
