"""Duties run only in the leading process, and move with the lead."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from crcr.deliver.periodic.leader_tasks import LEASE, RENEW_EVERY_S, LeaderTask, LeaderTasks
from crcr.errors import StoreUnavailable
from support.clock import ManualClock, settle

EVERY_S = 60.0


@dataclass
class Row:
    """The one row that all processes share."""

    holder: str | None = None
    until: datetime | None = None
    away: bool = False


@dataclass
class Lead:
    row: Row
    name: str

    async def take(self, _: str, now: datetime) -> bool:
        if self.row.away:
            raise StoreUnavailable
        free = self.row.holder is None or (self.row.until is not None and self.row.until <= now)
        if self.row.holder == self.name or free:
            self.row.holder, self.row.until = self.name, now + LEASE
        return self.row.holder == self.name

    async def release(self, _: str) -> None:
        if self.row.away:
            raise StoreUnavailable
        if self.row.holder == self.name:
            self.row.holder = None


@dataclass
class Process:
    """One process with one duty, which writes down when it ran."""

    clock: ManualClock
    row: Row
    name: str
    at_start: bool = False
    act: Callable[[], Awaitable[None]] | None = None
    ran: list[float] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.began = self.clock.now()
        duty = LeaderTask("sweep", self.sweep, EVERY_S, at_start=self.at_start)
        self.duties = LeaderTasks(
            Lead(self.row, self.name), (duty,), clock=self.clock, stopping=self.stopping
        )

    async def sweep(self) -> None:
        self.ran.append((self.clock.now() - self.began).total_seconds())
        if self.act:
            await self.act()

    def start(self) -> None:
        self.task = asyncio.create_task(self.duties.run())

    async def stop(self) -> None:
        self.stopping.set()
        await self.task


async def test_a_duty_runs_at_once_where_the_lead_is_and_then_in_its_time() -> None:
    clock, row = ManualClock(), Row()
    ann, ben = Process(clock, row, "ann"), Process(clock, row, "ben")
    ann.start()
    await settle()
    ben.start()
    await clock.pass_time(2 * EVERY_S)

    assert (ann.ran, ben.ran) == ([0, 60, 120], [])
    await ann.stop()
    await ben.stop()


async def test_what_was_done_before_the_work_began_is_not_done_again_at_once() -> None:
    clock, row = ManualClock(), Row()
    ann, ben = (Process(clock, row, name, at_start=True) for name in ("ann", "ben"))

    assert [await ann.duties.start(), await ben.duties.start()] == [True, False]
    ann.start()
    ben.start()
    await clock.pass_time(EVERY_S)
    assert (ann.ran, ben.ran) == ([0, 60], [])
    await ann.stop()
    await ben.stop()


async def test_a_process_that_stops_hands_over_at_once() -> None:
    clock, row = ManualClock(), Row()
    ann, ben = Process(clock, row, "ann"), Process(clock, row, "ben")
    ann.start()
    await settle()
    ben.start()
    await clock.pass_time(25)
    await ann.stop()
    await clock.pass_time(RENEW_EVERY_S)

    assert ben.ran == [30]
    await ben.stop()
    assert row.holder is None


async def test_a_process_that_died_is_followed_when_its_lease_is_over() -> None:
    clock, row = ManualClock(), Row()
    ann, ben = Process(clock, row, "ann"), Process(clock, row, "ben")
    ann.start()
    await settle()
    ben.start()
    await clock.pass_time(15)
    left = row.until
    ann.task.cancel()
    await settle()
    row.holder, row.until = "ann", left  # a process that dies gives up nothing
    await clock.pass_time(LEASE.total_seconds() + RENEW_EVERY_S)

    assert len(ben.ran) == 1
    assert 40 <= ben.ran[0] <= 50
    await ben.stop()


async def test_a_process_that_was_paused_does_not_go_on_as_if_it_led() -> None:
    clock, row = ManualClock(), Row()
    ann = Process(clock, row, "ann")
    ann.start()
    await settle()
    row.holder, row.until = "ben", clock.now() + timedelta(days=1)  # while ann did not move
    await clock.pass_time(EVERY_S)

    assert ann.ran == [0]
    assert not ann.duties.leads
    await ann.stop()
    assert row.holder == "ben"


async def test_the_lead_is_asked_for_before_each_run_and_not_believed() -> None:
    """It is lost between two renewals, right before a run."""
    clock, row = ManualClock(), Row()
    ann = Process(clock, row, "ann")
    ann.start()
    await clock.pass_time(EVERY_S - 5)
    row.holder, row.until = "ben", clock.now() + timedelta(days=1)
    assert ann.duties.leads
    clock.advance(5)
    await settle()

    assert ann.ran == [0]
    await ann.stop()


async def test_a_store_that_is_away_is_waited_for() -> None:
    clock, row = ManualClock(), Row(away=True)
    ann = Process(clock, row, "ann")
    ann.start()
    await clock.pass_time(35)
    assert ann.ran == []
    row.away = False
    await clock.pass_time(RENEW_EVERY_S)
    assert ann.ran == [40]
    row.away = True
    await clock.pass_time(EVERY_S)
    assert ann.ran == [40]
    await ann.stop()


async def test_a_run_under_way_is_finished_before_the_lead_is_given_up() -> None:
    clock, row = ManualClock(), Row()
    go_on = asyncio.Event()

    async def slowly() -> None:
        await go_on.wait()

    ann = Process(clock, row, "ann", act=slowly)
    ann.start()
    await settle()
    ann.stopping.set()
    await settle()
    assert (ann.task.done(), row.holder) == (False, "ann")
    go_on.set()
    await ann.task

    assert row.holder is None


async def test_a_long_run_keeps_the_lead() -> None:
    clock, row = ManualClock(), Row()
    go_on = asyncio.Event()

    async def slowly() -> None:
        await go_on.wait()

    ann, ben = Process(clock, row, "ann", act=slowly), Process(clock, row, "ben")
    ann.start()
    await settle()
    ben.start()
    await clock.pass_time(10 * LEASE.total_seconds())

    assert (len(ann.ran), ben.ran) == (1, [])
    go_on.set()
    await ann.stop()
    await ben.stop()


async def test_a_duty_with_a_bug_ends_everything_so_that_somebody_notices() -> None:
    clock, row = ManualClock(), Row()

    async def broken() -> None:
        raise ZeroDivisionError

    ann = Process(clock, row, "ann", act=broken)
    ann.start()
    await settle()

    assert isinstance(ann.task.exception(), ZeroDivisionError)
    assert row.holder is None
