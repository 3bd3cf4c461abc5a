"""Leader tasks run only in the leading process, and move with the leadership."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from crcr.deliver.periodic.leader_tasks import LEASE, RENEW_EVERY_S, LeaderTask, LeaderTasks
from crcr.errors import StoreUnavailable
from support.clock import ManualClock, settle

EVERY_S = 60.0


@dataclass
class LeaseRow:
    """The lease row that all processes share."""

    holder: str | None = None
    until: datetime | None = None
    is_down: bool = False


@dataclass
class Leadership:
    row: LeaseRow
    name: str

    async def take(self, _: str, now: datetime) -> bool:
        if self.row.is_down:
            raise StoreUnavailable
        free = self.row.holder is None or (self.row.until is not None and self.row.until <= now)
        if self.row.holder == self.name or free:
            self.row.holder, self.row.until = self.name, now + LEASE
        return self.row.holder == self.name

    async def release(self, _: str) -> None:
        if self.row.is_down:
            raise StoreUnavailable
        if self.row.holder == self.name:
            self.row.holder = None


@dataclass
class Process:
    """One process with one leader task, which records when it ran."""

    clock: ManualClock
    row: LeaseRow
    name: str
    at_start: bool = False
    act: Callable[[], Awaitable[None]] | None = None
    ran: list[float] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.began = self.clock.now()
        task = LeaderTask("sweep", self.sweep, EVERY_S, at_start=self.at_start)
        self.leader_tasks = LeaderTasks(
            Leadership(self.row, self.name), (task,), clock=self.clock, stopping=self.stopping
        )

    async def sweep(self) -> None:
        self.ran.append((self.clock.now() - self.began).total_seconds())
        if self.act:
            await self.act()

    def start(self) -> None:
        self.task = asyncio.create_task(self.leader_tasks.run())

    async def stop(self) -> None:
        self.stopping.set()
        await self.task


async def test_a_leader_task_runs_at_once_in_the_leading_process_and_then_periodically() -> None:
    clock, row = ManualClock(), LeaseRow()
    ann, ben = Process(clock, row, "ann"), Process(clock, row, "ben")
    ann.start()
    await settle()
    ben.start()
    await clock.pass_time(2 * EVERY_S)

    assert (ann.ran, ben.ran) == ([0, 60, 120], [])
    await ann.stop()
    await ben.stop()


async def test_a_task_that_ran_at_start_is_not_repeated_at_once() -> None:
    clock, row = ManualClock(), LeaseRow()
    ann, ben = (Process(clock, row, name, at_start=True) for name in ("ann", "ben"))

    assert [await ann.leader_tasks.start(), await ben.leader_tasks.start()] == [True, False]
    ann.start()
    ben.start()
    await clock.pass_time(EVERY_S)
    assert (ann.ran, ben.ran) == ([0, 60], [])
    await ann.stop()
    await ben.stop()


async def test_a_process_that_stops_releases_the_leadership_at_once() -> None:
    clock, row = ManualClock(), LeaseRow()
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


async def test_the_leadership_of_a_crashed_process_is_taken_over_after_its_lease() -> None:
    clock, row = ManualClock(), LeaseRow()
    ann, ben = Process(clock, row, "ann"), Process(clock, row, "ben")
    ann.start()
    await settle()
    ben.start()
    await clock.pass_time(15)
    left = row.until
    ann.task.cancel()
    await settle()
    row.holder, row.until = "ann", left  # a process that crashes does not release its lease
    await clock.pass_time(LEASE.total_seconds() + RENEW_EVERY_S)

    assert len(ben.ran) == 1
    assert 40 <= ben.ran[0] <= 50
    await ben.stop()


async def test_a_process_that_was_frozen_stops_running_tasks_after_losing_the_leadership() -> None:
    clock, row = ManualClock(), LeaseRow()
    ann = Process(clock, row, "ann")
    ann.start()
    await settle()
    row.holder, row.until = "ben", clock.now() + timedelta(days=1)  # while ann was frozen
    await clock.pass_time(EVERY_S)

    assert ann.ran == [0]
    assert not ann.leader_tasks.leads
    await ann.stop()
    assert row.holder == "ben"


async def test_the_leadership_is_verified_in_the_store_before_each_run() -> None:
    """The leadership is lost between two renewals, right before a run."""
    clock, row = ManualClock(), LeaseRow()
    ann = Process(clock, row, "ann")
    ann.start()
    await clock.pass_time(EVERY_S - 5)
    row.holder, row.until = "ben", clock.now() + timedelta(days=1)
    assert ann.leader_tasks.leads
    clock.advance(5)
    await settle()

    assert ann.ran == [0]
    await ann.stop()


async def test_leader_tasks_wait_for_the_end_of_a_store_outage() -> None:
    clock, row = ManualClock(), LeaseRow(is_down=True)
    ann = Process(clock, row, "ann")
    ann.start()
    await clock.pass_time(35)
    assert ann.ran == []
    row.is_down = False
    await clock.pass_time(RENEW_EVERY_S)
    assert ann.ran == [40]
    row.is_down = True
    await clock.pass_time(EVERY_S)
    assert ann.ran == [40]
    await ann.stop()


async def test_a_running_task_finishes_before_the_leadership_is_released() -> None:
    clock, row = ManualClock(), LeaseRow()
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


async def test_a_long_run_keeps_the_leadership() -> None:
    clock, row = ManualClock(), LeaseRow()
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


async def test_a_task_that_crashes_ends_the_process_and_releases_the_leadership() -> None:
    clock, row = ManualClock(), LeaseRow()

    async def broken() -> None:
        raise ZeroDivisionError

    ann = Process(clock, row, "ann", act=broken)
    ann.start()
    await settle()

    assert isinstance(ann.task.exception(), ZeroDivisionError)
    assert row.holder is None
