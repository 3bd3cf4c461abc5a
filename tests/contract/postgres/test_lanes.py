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


def publish_checks_row(now: Any = NOW) -> dict[str, Any]:
    return effect_row(CORE, EffectKind.PUBLISH_CHECKS, target="checks/gate", lane="a" * 40, now=now)


async def note_job_change(tx: Tx) -> None:
    await note_change(tx, CORE, "job", now=NOW)


async def read_newest_change(process: Process) -> int:
    return await process.database.read(newest_change)


# Changes


async def test_changes_withheld_for_an_open_transaction_are_announced_when_it_ends() -> None:
    """The end of that transaction sends no notification: a reader that got too few changes reads again by itself."""
    async with processes(3, LISTED) as (idle, busy, reader):
        before = await read_newest_change(reader)
        held = await pause_before_commit(idle.database, empty_unit, lane="quiet")
        await busy.database.write(note_job_change, lane="busy")
        woken = reader.database.signals.subscribe(CHANGES)
        assert await read_newest_change(reader) == before

        await held.end()
        await asyncio.wait_for(woken.wait(), 5)
        assert await read_newest_change(reader) == before + 1


async def test_a_reader_that_got_all_changes_is_not_woken() -> None:
    async with processes(2, LISTED) as (one, reader):
        await one.database.write(note_job_change, lane="busy")
        woken = reader.database.signals.subscribe(CHANGES)
        held = await pause_before_commit(one.database, empty_unit, lane="quiet")
        await read_newest_change(reader)
        await held.end()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(woken.wait(), 0.3)


@pytest.mark.parametrize("number", [0, -5, 0x63726372_6D696772])
async def test_advisory_locks_of_other_applications_hide_no_change(number: int) -> None:
    async with processes(1, LISTED) as (one,):
        before = await read_newest_change(one)
        other_application = await one.database._link.connect()
        await other_application.execute(f"SELECT pg_advisory_lock({number})")
        await one.database.write(note_job_change)
        assert await read_newest_change(one) == before + 1
        await other_application.close()


# Effects


async def test_an_effect_that_writers_keep_locked_is_claimed_in_the_end() -> None:
    """A claim skips locked effects; from time to time it waits until none is locked."""
    async with processes(2, LISTED) as (one, other):
        await one.database.write(lambda tx: add_once(tx, publish_checks_row()))
        held = await pause_before_commit(
            one.database, lambda tx: add_once(tx, publish_checks_row()), lane="org/backend"
        )
        outbox = other.stores.outbox("w")
        assert await outbox.claim(9, NOW) == []

        claiming = asyncio.create_task(claim_later(outbox))
        while not claiming.done() and not await one.database.quick_read(lambda tx: tx.all(WAITING)):
            pass
        await held.end()
        assert [effect.target for effect in await claiming] == ["checks/gate"]


async def claim_later(outbox: Outbox) -> list[ClaimedEffect]:
    return await outbox.claim(9, NOW + timedelta(seconds=2))


async def test_moving_a_locked_effect_earlier_by_milliseconds_does_not_wait_for_the_lock() -> None:
    """The clocks of two machines differ: no writer waits for a locked effect to move it by milliseconds."""
    async with processes(2, LISTED) as (one, other):
        await one.database.write(lambda tx: add_once(tx, publish_checks_row()))
        held = await pause_before_commit(
            one.database, lambda tx: add_once(tx, publish_checks_row()), lane="org/backend"
        )
        earlier = publish_checks_row(NOW - timedelta(milliseconds=20))
        await asyncio.wait_for(other.database.write(lambda tx: add_once(tx, earlier), lane="org/second"), 5)
        await held.end()
        assert len(await one.stores.rows("SELECT 1 AS one FROM effects")) == 1


async def test_two_writers_that_move_the_same_locked_effects_earlier_do_not_deadlock() -> None:
    far = NOW + timedelta(minutes=15)
    async with processes(3, LISTED) as (one, other, third):
        for head in ("h1", "h2", "b1", "b2"):
            await one.database.write(unit_adding_effect(head, far))
        row_locker = await third.database._link.connect()
        await row_locker.execute("BEGIN; SELECT 1 FROM effects WHERE lane IN ('b1', 'b2') FOR UPDATE")

        writes = [
            process.database.write(
                unit_adding_effect(head, NOW + timedelta(milliseconds=order)), lane=f"{writer} {head}"
            )
            for writer, process, heads in ((1, one, ("h1", "b1", "h2")), (2, other, ("h2", "b2", "h1")))
            for order, head in enumerate(heads)
        ]
        await asyncio.wait_for(
            asyncio.gather(*writes), 5
        )  # nor for the transaction that holds some of their locks
        await row_locker.close()
        rows = await one.stores.rows("SELECT lane, due_at FROM effects")
        assert {row["lane"] for row in rows if row["due_at"] < to_us(far)} == {"h1", "h2", "b1", "b2"}


def unit_adding_effect(head: str, due_at: datetime) -> Unit[None]:
    row = effect_row(CORE, EffectKind.PUBLISH_CHECKS, target="checks/gate", lane=head, now=due_at)
    return lambda tx: add_once(tx, row)


async def test_adding_an_effect_that_is_due_later_moves_it_earlier_instead_of_duplicating_it() -> None:
    async with processes(1, LISTED) as (one,):
        await one.database.write(lambda tx: add_once(tx, publish_checks_row(NOW + timedelta(minutes=15))))
        await one.database.write(lambda tx: add_once(tx, publish_checks_row()), lane="org/backend")
        [effect] = await one.stores.outbox("w").claim(9, NOW)
        assert effect.target == "checks/gate"


# Commits


async def test_a_unit_that_swallows_a_database_error_raises_at_its_commit() -> None:
    """PostgreSQL answers COMMIT in a failed transaction with ROLLBACK and no error."""

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
