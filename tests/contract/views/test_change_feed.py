"""The change feed of live pages with several writing processes: a reader misses nothing and never goes back (fault 49)."""

import asyncio
from datetime import timedelta
from random import Random

import pytest
from sqlalchemy import text

from crcr.record.change_and_audit_log import note_change
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.views.sql_views import SqlViews
from support.stores.databases import CORE
from support.stores.race_harness import NOW, Process, empty_unit, pause_before_commit, processes

LISTED = "L2: [org/backend]\n"
_COUNT = Statement(text("SELECT count(*) AS n FROM changes"))


class RolledBack(Exception):
    """Raised by a unit to roll back its writes."""


def views(process: Process) -> SqlViews:
    return SqlViews(process.database, process.stores.allowlists, (CORE,), everything=True)


async def note(tx: Tx, delivery: str = "d") -> None:
    await note_change(tx, CORE, "relay", delivery=delivery, now=NOW)


class Reader:
    """A page that polls the feed from its last cursor on."""

    def __init__(self, process: Process, after: int) -> None:
        self._views = views(process)
        self.after = after
        self.seen: list[int] = []

    @classmethod
    async def at_newest_change(cls, process: Process) -> "Reader":
        return cls(process, (await views(process).changes(None, 1)).upto)

    async def poll(self) -> None:
        page = await self._views.changes(self.after, 7)
        assert page.upto >= self.after
        self.seen += [change.change_id for change in page.items]
        self.after = page.upto


async def test_a_change_that_is_committed_late_is_not_skipped() -> None:
    async with processes(3, LISTED) as (one, other, third):
        reader = await Reader.at_newest_change(third)
        held = await pause_before_commit(one.database, note, lane="a")
        await other.database.write(note, lane="b")
        await reader.poll()
        assert reader.seen == []  # the later change waits for the earlier one
        await held.end()
        await reader.poll()
        assert len(reader.seen) == 2
        assert reader.seen == sorted(reader.seen)


async def test_a_rolled_back_change_does_not_block_later_ones() -> None:
    async with processes(2, LISTED) as (one, other):
        reader = await Reader.at_newest_change(other)

        async def unit(tx: Tx) -> None:
            await note(tx)
            raise RolledBack

        with pytest.raises(RolledBack):
            await one.database.write(unit, lane="a")
        await other.database.write(note, lane="b")
        await reader.poll()
        assert len(reader.seen) == 1


async def test_the_very_first_change_is_not_skipped() -> None:
    async with processes(2, LISTED) as (one, other):
        await one.database.write(lambda tx: tx.all(Statement(text("TRUNCATE changes RESTART IDENTITY"))))
        reader = await Reader.at_newest_change(other)
        assert reader.after == 0
        held = await pause_before_commit(one.database, note, lane="a")
        await other.database.write(note, lane="b")
        await reader.poll()
        assert reader.seen == []
        await held.end()
        await reader.poll()
        assert reader.seen == [1, 2]


async def test_an_open_transaction_withholds_only_changes_newer_than_its_start() -> None:
    async with processes(2, LISTED) as (one, other):
        reader = await Reader.at_newest_change(other)
        await other.database.write(note, lane="b")
        idle = await pause_before_commit(one.database, empty_unit, lane="a")
        await reader.poll()
        assert len(reader.seen) == 1  # it was committed before the idle transaction began
        await idle.end()


@pytest.mark.parametrize("seed", range(4))
async def test_fault_49_with_eight_writers_a_reader_misses_no_change_and_never_goes_back(seed: int) -> None:
    chance, committed = Random(seed), 0
    async with processes(4, LISTED) as running:
        readers = [await Reader.at_newest_change(process) for process in running[:2]]
        writers_done = asyncio.Event()

        async def writer(number: int) -> None:
            nonlocal committed
            database = running[number % 4].database
            for write_index in range(12):
                fails, changes_in_unit = chance.random() < 0.2, chance.randrange(1, 4)

                async def unit(tx: Tx, fails: bool = fails, changes_in_unit: int = changes_in_unit) -> None:
                    for _ in range(changes_in_unit):
                        await note(tx)
                        for _ in range(chance.randrange(4)):
                            await tx.one(_COUNT)  # gives other writers time to overtake
                    if fails:
                        raise RolledBack

                try:
                    await database.write(unit, lane=None if write_index % 6 == 5 else f"lane {number}")
                    committed += changes_in_unit
                except RolledBack:
                    pass

        async def follow(reader: Reader) -> None:
            while not writers_done.is_set():
                await reader.poll()

        following = [asyncio.create_task(follow(reader)) for reader in readers]
        await asyncio.gather(*(writer(number) for number in range(8)))
        writers_done.set()
        await asyncio.gather(*following)
        change_ids = [
            row["change_id"]
            for row in await running[0].stores.rows("SELECT change_id FROM changes ORDER BY 1")
        ]
        for reader in readers:
            while reader.after < change_ids[-1]:
                await reader.poll()
            assert len(reader.seen) == committed, f"seed {seed}"
            assert reader.seen == sorted(set(reader.seen))


async def test_a_page_is_woken_only_after_the_commit() -> None:
    """When it is woken, the change is readable."""
    async with processes(2, LISTED) as (one, other):
        woken = other.database.signals.subscribe("changes")
        listening = asyncio.create_task(other.database.watch_other_processes())
        await asyncio.wait_for(woken.wait(), 10)  # the first wake-up comes when listening starts
        woken.clear()
        reader = await Reader.at_newest_change(other)
        await one.database.write(note)
        await asyncio.wait_for(woken.wait(), timedelta(seconds=10).total_seconds())
        await reader.poll()
        assert len(reader.seen) == 1
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
