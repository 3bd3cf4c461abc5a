"""Concurrent writes on PostgreSQL lose no change, effect or commit of each other."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text

from crcr.decide.model import EffectKind
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.errors import StoreUnavailable
from crcr.record.change_and_audit_log import note_change
from crcr.record.outbox.claims import Outbox
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.store.database import Tx, Unit
from crcr.record.store.signals import CHANGES
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.views.relay.state import newest_change
from support.stores.databases import CORE
from support.stores.race_harness import NOW, Process, empty_unit, pause_before_commit, processes

LISTED = "L2:\n  - org/backend\n"
NOTE = Statement(text("INSERT INTO upstreams (upstream, name, created_at) VALUES ('z/z', 'z/z', 0)"))
BROKEN = Statement(text("SELECT 1 / 0 AS never"))
WAITING = Statement(text("SELECT 1 AS one FROM pg_locks WHERE NOT granted"))


def look(now: Any = NOW) -> dict[str, Any]:
    return effect_row(CORE, EffectKind.PUBLISH_CHECKS, target="checks/gate", lane="a" * 40, now=now)


async def changed(tx: Tx) -> None:
    await note_change(tx, CORE, "job", now=NOW)


async def newest(process: Process) -> int:
    return await process.database.read(newest_change)


# News


async def test_what_was_held_back_for_a_quiet_transaction_is_told_without_further_news() -> None:
    """Its end wakes nobody: whoever was told less than is committed looks again by itself."""
    async with processes(3, LISTED) as (quiet, busy, reader):
        before = await newest(reader)
        holding = await pause_before_commit(quiet.database, empty_unit, lane="quiet")
        await busy.database.write(changed, lane="busy")
        woken = reader.database.signals.subscribe(CHANGES)
        assert await newest(reader) == before

        await holding.end()
        await asyncio.wait_for(woken.wait(), 5)
        assert await newest(reader) == before + 1


async def test_who_was_told_everything_is_not_woken() -> None:
    async with processes(2, LISTED) as (one, reader):
        await one.database.write(changed, lane="busy")
        woken = reader.database.signals.subscribe(CHANGES)
        holding = await pause_before_commit(one.database, empty_unit, lane="quiet")
        await newest(reader)
        await holding.end()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(woken.wait(), 0.3)


@pytest.mark.parametrize("number", [0, -5, 0x63726372_6D696772])
async def test_advisory_locks_of_others_hide_no_change(number: int) -> None:
    async with processes(1, LISTED) as (one,):
        before = await newest(one)
        stranger = await one.database._link.connect()
        await stranger.execute(f"SELECT pg_advisory_lock({number})")
        await one.database.write(changed)
        assert await newest(one) == before + 1
        await stranger.close()


# Effects


async def test_an_effect_that_somebody_always_relies_on_is_claimed_all_the_same() -> None:
    """A claim passes over what is held; now and then it waits until nobody holds anything."""
    async with processes(2, LISTED) as (one, other):
        await one.database.write(lambda tx: add_once(tx, look()))
        holding = await pause_before_commit(one.database, lambda tx: add_once(tx, look()), lane="org/backend")
        outbox = other.stores.outbox("w")
        assert await outbox.claim(9, NOW) == []

        claiming = asyncio.create_task(claim_later(outbox))
        while not claiming.done() and not await one.database.quick_read(lambda tx: tx.all(WAITING)):
            pass
        await holding.end()
        assert [effect.target for effect in await claiming] == ["checks/gate"]


async def claim_later(outbox: Outbox) -> list[ClaimedEffect]:
    return await outbox.claim(9, NOW + timedelta(seconds=2))


async def test_a_moment_is_not_worth_waiting_for_those_who_rely_on_the_same_effect() -> None:
    """Clocks of two machines differ: nobody hastens by milliseconds what others hold."""
    async with processes(2, LISTED) as (one, other):
        await one.database.write(lambda tx: add_once(tx, look()))
        holding = await pause_before_commit(one.database, lambda tx: add_once(tx, look()), lane="org/backend")
        earlier = look(NOW - timedelta(milliseconds=20))
        await asyncio.wait_for(other.database.write(lambda tx: add_once(tx, earlier), lane="org/second"), 5)
        await holding.end()
        assert len(await one.stores.rows("SELECT 1 AS one FROM effects")) == 1


async def test_two_who_hasten_what_both_rely_on_do_not_wait_for_each_other() -> None:
    far = NOW + timedelta(minutes=15)
    async with processes(3, LISTED) as (one, other, third):
        for head in ("h1", "h2", "b1", "b2"):
            await one.database.write(wanting(head, far))
        between = await third.database._link.connect()
        await between.execute("BEGIN; SELECT 1 FROM effects WHERE lane IN ('b1', 'b2') FOR UPDATE")

        writes = [
            process.database.write(wanting(head, NOW + timedelta(milliseconds=turn)), lane=f"{who} {head}")
            for who, process, heads in ((1, one, ("h1", "b1", "h2")), (2, other, ("h2", "b2", "h1")))
            for turn, head in enumerate(heads)
        ]
        await asyncio.wait_for(asyncio.gather(*writes), 5)  # nor for whoever holds some of them
        await between.close()
        found = await one.stores.rows("SELECT lane, due_at FROM effects")
        assert {row["lane"] for row in found if row["due_at"] < to_us(far)} == {"h1", "h2", "b1", "b2"}


def wanting(head: str, at: datetime) -> Unit[None]:
    wanted = effect_row(CORE, EffectKind.PUBLISH_CHECKS, target="checks/gate", lane=head, now=at)
    return lambda tx: add_once(tx, wanted)


async def test_what_waits_for_long_is_hastened_and_not_added_to() -> None:
    async with processes(1, LISTED) as (one,):
        await one.database.write(lambda tx: add_once(tx, look(NOW + timedelta(minutes=15))))
        await one.database.write(lambda tx: add_once(tx, look()), lane="org/backend")
        [effect] = await one.stores.outbox("w").claim(9, NOW)
        assert effect.target == "checks/gate"


# Commits


async def test_a_unit_that_swallows_the_stores_error_is_not_told_that_it_was_kept() -> None:
    """PostgreSQL answers the COMMIT of a broken transaction with ROLLBACK, and no error."""

    async def unit(tx: Tx) -> None:
        await tx.run(NOTE)
        try:
            await tx.one(BROKEN)
        except asyncpg.PostgresError:
            return

    async with processes(1, LISTED) as (one,):
        with pytest.raises(StoreUnavailable):
            await one.database.write(unit)
        assert await one.stores.rows("SELECT 1 AS one FROM upstreams WHERE upstream = 'z/z'") == []
        await one.database.write(empty_unit)
