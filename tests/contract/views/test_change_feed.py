"""The log behind live pages, while several processes write: a reader misses nothing and never goes back (fault 49)."""

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
    """A writer that thinks better of it."""


def views(process: Process) -> SqlViews:
    return SqlViews(process.database, process.stores.allowlists, (CORE,), everything=True)


async def note(tx: Tx, delivery: str = "d") -> None:
    await note_change(tx, CORE, "relay", delivery=delivery, now=NOW)


class Reader:
    """A page that asks again from where it stopped."""

    def __init__(self, process: Process, after: int) -> None:
        self._views = views(process)
        self.after = after
        self.seen: list[int] = []

    @classmethod
    async def of(cls, process: Process) -> "Reader":
        return cls(process, (await views(process).changes(None, 1)).upto)

    async def look(self) -> None:
        found = await self._views.changes(self.after, 7)
        assert found.upto >= self.after
        self.seen += [change.change_id for change in found.items]
        self.after = found.upto


async def test_a_change_that_is_committed_late_is_not_passed_by() -> None:
    async with processes(3, LISTED) as (one, other, watching):
        reader = await Reader.of(watching)
        early = await pause_before_commit(one.database, note, lane="a")
        await other.database.write(note, lane="b")
        await reader.look()
        assert reader.seen == []  # the later one waits for the earlier
        await early.end()
        await reader.look()
        assert len(reader.seen) == 2
        assert reader.seen == sorted(reader.seen)


async def test_a_change_that_never_comes_holds_up_nobody() -> None:
    async with processes(2, LISTED) as (one, other):
        reader = await Reader.of(other)

        async def unit(tx: Tx) -> None:
            await note(tx)
            raise RolledBack

        with pytest.raises(RolledBack):
            await one.database.write(unit, lane="a")
        await other.database.write(note, lane="b")
        await reader.look()
        assert len(reader.seen) == 1


async def test_the_very_first_change_is_seen() -> None:
    async with processes(2, LISTED) as (one, other):
        await one.database.write(lambda tx: tx.all(Statement(text("TRUNCATE changes RESTART IDENTITY"))))
        reader = await Reader.of(other)
        assert reader.after == 0
        first = await pause_before_commit(one.database, note, lane="a")
        await other.database.write(note, lane="b")
        await reader.look()
        assert reader.seen == []
        await first.end()
        await reader.look()
        assert reader.seen == [1, 2]


async def test_who_writes_nothing_yet_holds_back_only_what_may_still_come() -> None:
    async with processes(2, LISTED) as (one, other):
        reader = await Reader.of(other)
        await other.database.write(note, lane="b")
        idle = await pause_before_commit(one.database, empty_unit, lane="a")
        await reader.look()
        assert len(reader.seen) == 1  # it was there before the idle one began
        await idle.end()


@pytest.mark.parametrize("seed", range(4))
async def test_fault_49_among_eight_writers_a_reader_misses_nothing_and_never_goes_back(seed: int) -> None:
    chance, committed = Random(seed), 0
    async with processes(4, LISTED) as running:
        readers = [await Reader.of(each) for each in running[:2]]
        over = asyncio.Event()

        async def writer(number: int) -> None:
            nonlocal committed
            database = running[number % 4].database
            for turn in range(12):
                fails, several = chance.random() < 0.2, chance.randrange(1, 4)

                async def unit(tx: Tx, fails: bool = fails, several: int = several) -> None:
                    for _ in range(several):
                        await note(tx)
                        for _ in range(chance.randrange(4)):
                            await tx.one(_COUNT)  # time passes, and others overtake
                    if fails:
                        raise RolledBack

                try:
                    await database.write(unit, lane=None if turn % 6 == 5 else f"lane {number}")
                    committed += several
                except RolledBack:
                    pass

        async def follow(reader: Reader) -> None:
            while not over.is_set():
                await reader.look()

        following = [asyncio.create_task(follow(reader)) for reader in readers]
        await asyncio.gather(*(writer(number) for number in range(8)))
        over.set()
        await asyncio.gather(*following)
        there = [
            row["change_id"]
            for row in await running[0].stores.rows("SELECT change_id FROM changes ORDER BY 1")
        ]
        for reader in readers:
            while reader.after < there[-1]:
                await reader.look()
            assert len(reader.seen) == committed, f"seed {seed}"
            assert reader.seen == sorted(set(reader.seen))


async def test_a_page_is_told_after_the_commit_and_not_before() -> None:
    """Woken, it finds what it was woken for."""
    async with processes(2, LISTED) as (one, other):
        woken = other.database.signals.subscribe("changes")
        listening = asyncio.create_task(other.database.watch_other_processes())
        await asyncio.wait_for(woken.wait(), 10)  # whoever begins to listen looks at everything
        woken.clear()
        reader = await Reader.of(other)
        await one.database.write(note)
        await asyncio.wait_for(woken.wait(), timedelta(seconds=10).total_seconds())
        await reader.look()
        assert len(reader.seen) == 1
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
