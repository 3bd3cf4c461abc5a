"""Fault 7: a run of recovery meets every trouble and can always be repeated; the log, the store and the intake are doubles."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from crcr.decide.github.missed_webhooks import KnownWebhooks, RecoveryOutcome, RecoveryProgress
from crcr.decide.github.requests_and_answers import DeliveryLogPage, LoggedDelivery
from crcr.deliver.periodic.reconcile import Recovery
from crcr.errors import (
    BadRequest,
    NoAllowlist,
    OutsideLimited,
    OutsideRefused,
    OutsideUnreachable,
    OutsideUnsure,
    StoreUnavailable,
)
from support.clock import ManualClock, settle

PAGE = 10


@dataclass
class Log:
    """GitHub's log, `PAGE` entries a page; `trouble` is raised for some ids (0 is the log itself)."""

    entries: list[LoggedDelivery]
    trouble: dict[int, list[Exception]] = field(default_factory=dict)
    pages: int = 0
    fetched: list[int] = field(default_factory=list)

    async def read_page(self, cursor: str | None) -> DeliveryLogPage:
        self._stumble(0)
        self.pages += 1
        start = int(cursor or 0)
        more = start + PAGE < len(self.entries)
        newest_first = self.entries[::-1]
        return DeliveryLogPage(tuple(newest_first[start : start + PAGE]), str(start + PAGE) if more else None)

    async def read_delivery(self, log_id: int) -> tuple[str, str, bytes]:
        self._stumble(log_id)
        self.fetched.append(log_id)
        return f"g{log_id}", "push", b"{}"

    def _stumble(self, log_id: int) -> None:
        if self.trouble.get(log_id):
            raise self.trouble[log_id].pop(0)


@dataclass
class Store:
    notes: dict[str, RecoveryOutcome] = field(default_factory=dict)
    read_to: datetime | None = None

    async def find_known(self, guids: Sequence[str]) -> KnownWebhooks:
        return KnownWebhooks(recovered=frozenset(self.notes))

    async def count_superseded(self, guids: Sequence[str]) -> int:
        return 0

    async def read_upstream_ids(self) -> frozenset[int] | None:
        return None

    async def note(self, guid: str, outcome: RecoveryOutcome, now: datetime) -> None:
        self.notes[guid] = outcome

    async def read_watermark(self) -> datetime | None:
        return self.read_to

    async def complete(self, until: datetime, now: datetime) -> None:
        self.read_to = until


@dataclass
class Intake:
    trouble: dict[str, Exception] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)

    async def recover(self, guid: str, name: str, body: bytes) -> RecoveryOutcome:
        if guid in self.trouble:
            raise self.trouble[guid]
        self.taken.append(guid)
        return RecoveryOutcome.TAKEN


class RecoverySetup:
    def __init__(self, count: int, *, repository_id: Callable[[int], int] = lambda _: 1) -> None:
        self.clock = ManualClock()
        self.began_at = self.clock.now()
        entries = [self.failed(number, repository_id(number)) for number in range(1, count + 1)]
        self.log, self.store, self.intake = Log(entries), Store(), Intake()
        self.stopping = asyncio.Event()
        self.crashes: list[Exception] = []
        self.told: list[RecoveryProgress] = []
        self.recovery = Recovery(
            self.log,
            self.store,
            self.intake,
            clock=self.clock,
            stopping=self.stopping,
            on_crash=self.crashes.append,
        )

    def failed(self, number: int, repository_id: int) -> LoggedDelivery:
        return LoggedDelivery(
            log_id=number,
            guid=f"g{number}",
            delivered_at=self.clock.now() - timedelta(seconds=1000 - number),
            redelivery=False,
            ok=False,
            event="push",
            action=None,
            repository_id=repository_id,
        )


async def test_all_that_was_missed_is_taken_and_the_watermark_is_when_the_run_began() -> None:
    world = RecoverySetup(25)
    report = await world.recovery.run(world.told.append)

    assert (report.logged, report.missed, report.taken, report.left, report.stopped) == (25, 25, 25, 0, None)
    assert world.intake.taken == [f"g{number}" for number in range(1, 26)]
    assert world.store.read_to == world.began_at
    assert world.told[2] == RecoveryProgress("reading the log", 3)
    assert world.told[-1] == RecoveryProgress("recovering", 25, 25)


async def test_a_second_run_finds_nothing_and_fetches_nothing() -> None:
    world = RecoverySetup(3)
    await world.recovery.run()
    world.clock.advance(180)
    report = await world.recovery.run()

    assert (report.missed, world.log.fetched) == (0, [1, 2, 3])
    assert world.store.read_to == world.clock.now()


async def test_pages_older_than_what_was_read_before_are_not_asked_for() -> None:
    world = RecoverySetup(45)
    world.store.read_to = world.clock.now() - timedelta(seconds=80)  # 15 minutes back from there: the last 20
    await world.recovery.run()

    assert world.log.pages == 3
    assert world.log.fetched == list(range(20, 46))


async def test_what_cannot_be_parsed_is_noted_and_the_rest_goes_on() -> None:
    world = RecoverySetup(3)
    world.intake.trouble["g2"] = BadRequest("$.ref is missing")
    report = await world.recovery.run()

    assert (report.taken, report.unusable, report.stopped) == (2, 1, None)
    assert world.store.notes["g2"] is RecoveryOutcome.UNUSABLE
    assert world.store.read_to == world.began_at


async def test_a_webhook_that_breaks_us_breaks_no_run_and_is_told() -> None:
    world = RecoverySetup(3)
    world.intake.trouble["g1"] = crash = ZeroDivisionError()
    report = await world.recovery.run()

    assert (report.taken, report.unusable, world.crashes) == (2, 1, [crash])


async def test_what_github_has_no_more_is_let_go() -> None:
    world = RecoverySetup(3)
    world.log.trouble[2] = [OutsideRefused("gone", status=404)]
    report = await world.recovery.run()

    assert (report.taken, report.unusable, report.stopped) == (2, 1, None)


async def test_a_store_that_is_away_ends_the_run_and_the_next_goes_on_there() -> None:
    world = RecoverySetup(3)
    world.intake.trouble["g2"] = StoreUnavailable("no store")
    report = await world.recovery.run()
    assert (report.taken, report.left, report.stopped) == (1, 2, "no store")
    assert world.store.read_to is None

    world.intake.trouble.clear()
    report = await world.recovery.run()
    assert (report.taken, report.left, report.stopped) == (2, 0, None)
    assert world.intake.taken == ["g1", "g2", "g3"]


async def test_a_log_that_cannot_be_read_to_its_end_moves_nothing() -> None:
    for trouble in (
        OutsideUnreachable("no way"),
        OutsideUnsure("500"),
        OutsideRefused("no", status=401),
        OutsideLimited("wait", retry_after_s=600),
    ):
        world = RecoverySetup(25)
        world.log.trouble[0] = [trouble]
        report = await world.recovery.run()

        assert report.stopped == trouble.detail
        assert (world.intake.taken, world.store.read_to) == ([], None)


async def test_an_upstream_without_an_allowlist_keeps_no_other_from_its_own() -> None:
    world = RecoverySetup(6, repository_id=lambda number: number % 2)
    world.intake.trouble |= {f"g{number}": NoAllowlist("no list") for number in (1, 3, 5)}
    report = await world.recovery.run()

    assert (report.taken, report.left, report.stopped) == (3, 3, "no list")
    assert world.log.fetched == [1, 2, 4, 6]  # one call tells, not one for each
    assert world.store.read_to is None


async def test_a_short_limit_is_waited_for() -> None:
    world = RecoverySetup(3)
    world.log.trouble[2] = [OutsideLimited("wait", retry_after_s=30)]
    run = asyncio.create_task(world.recovery.run())
    await settle()
    assert world.intake.taken == ["g1"]
    world.clock.advance(30)

    assert (await run).taken == 3


async def test_a_relay_that_stops_waits_for_no_limit_and_loses_nothing() -> None:
    world = RecoverySetup(3)
    world.log.trouble[2] = [OutsideLimited("wait", retry_after_s=30)]
    run = asyncio.create_task(world.recovery.run())
    await settle()
    world.stopping.set()
    report = await run

    assert (report.taken, report.left, report.stopped) == (1, 2, "the relay is stopping")
    assert world.store.read_to is None


async def test_one_answer_that_does_not_come_is_left_for_the_next_run() -> None:
    world = RecoverySetup(3)
    world.log.trouble[2] = [OutsideUnsure("500")]
    report = await world.recovery.run()
    assert (report.taken, report.left, report.stopped) == (2, 1, "500")
    assert world.store.read_to is None
    assert (await world.recovery.run()).taken == 1
    assert world.store.read_to is not None


async def test_a_github_that_answers_nothing_is_not_asked_for_everything() -> None:
    world = RecoverySetup(9)
    world.log.trouble |= {number: [OutsideUnsure("500")] for number in range(1, 10)}
    report = await world.recovery.run()

    assert (report.taken, report.left) == (0, 9)
    assert [len(world.log.trouble[number]) for number in range(1, 10)] == [0, 0, 0, *[1] * 6]


async def test_an_answer_that_can_never_be_read_does_not_hold_the_watermark_for_ever() -> None:
    world = RecoverySetup(2)
    world.log.trouble[1] = [OutsideUnsure("no payload")] * 5
    for _ in range(4):
        assert (await world.recovery.run()).left == 1
    report = await world.recovery.run()

    assert (report.unusable, report.left, report.stopped) == (1, 0, None)
    assert world.store.read_to is not None
