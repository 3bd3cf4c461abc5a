"""Fault 7: a recovery run survives every error and can always be repeated; the log, the store and the intake are doubles."""

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
        self._raise_next(0)
        self.pages += 1
        start = int(cursor or 0)
        more = start + PAGE < len(self.entries)
        newest_first = self.entries[::-1]
        return DeliveryLogPage(tuple(newest_first[start : start + PAGE]), str(start + PAGE) if more else None)

    async def read_delivery(self, log_id: int) -> tuple[str, str, bytes]:
        self._raise_next(log_id)
        self.fetched.append(log_id)
        return f"g{log_id}", "push", b"{}"

    def _raise_next(self, log_id: int) -> None:
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
        self.progress: list[RecoveryProgress] = []
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


async def test_all_missed_webhooks_are_recovered_and_the_watermark_is_the_start_of_the_run() -> None:
    setup = RecoverySetup(25)
    report = await setup.recovery.run(setup.progress.append)

    assert (report.logged, report.missed, report.taken, report.left, report.stopped) == (25, 25, 25, 0, None)
    assert setup.intake.taken == [f"g{number}" for number in range(1, 26)]
    assert setup.store.read_to == setup.began_at
    assert setup.progress[2] == RecoveryProgress("reading the log", 3)
    assert setup.progress[-1] == RecoveryProgress("recovering", 25, 25)


async def test_a_second_run_finds_and_fetches_nothing() -> None:
    setup = RecoverySetup(3)
    await setup.recovery.run()
    setup.clock.advance(180)
    report = await setup.recovery.run()

    assert (report.missed, setup.log.fetched) == (0, [1, 2, 3])
    assert setup.store.read_to == setup.clock.now()


async def test_log_pages_older_than_the_watermark_are_not_requested() -> None:
    setup = RecoverySetup(45)
    setup.store.read_to = setup.clock.now() - timedelta(seconds=80)  # 15 minutes back from there: the last 20
    await setup.recovery.run()

    assert setup.log.pages == 3
    assert setup.log.fetched == list(range(20, 46))


async def test_a_webhook_that_cannot_be_parsed_is_recorded_and_the_run_continues() -> None:
    setup = RecoverySetup(3)
    setup.intake.trouble["g2"] = BadRequest("$.ref is missing")
    report = await setup.recovery.run()

    assert (report.taken, report.unusable, report.stopped) == (2, 1, None)
    assert setup.store.notes["g2"] is RecoveryOutcome.UNUSABLE
    assert setup.store.read_to == setup.began_at


async def test_a_webhook_that_crashes_the_intake_is_reported_and_the_run_continues() -> None:
    setup = RecoverySetup(3)
    setup.intake.trouble["g1"] = crash = ZeroDivisionError()
    report = await setup.recovery.run()

    assert (report.taken, report.unusable, setup.crashes) == (2, 1, [crash])


async def test_a_webhook_that_github_has_deleted_is_unusable() -> None:
    setup = RecoverySetup(3)
    setup.log.trouble[2] = [OutsideRefused("gone", status=404)]
    report = await setup.recovery.run()

    assert (report.taken, report.unusable, report.stopped) == (2, 1, None)


async def test_a_store_outage_ends_the_run_and_the_next_run_continues_there() -> None:
    setup = RecoverySetup(3)
    setup.intake.trouble["g2"] = StoreUnavailable("no store")
    report = await setup.recovery.run()
    assert (report.taken, report.left, report.stopped) == (1, 2, "no store")
    assert setup.store.read_to is None

    setup.intake.trouble.clear()
    report = await setup.recovery.run()
    assert (report.taken, report.left, report.stopped) == (2, 0, None)
    assert setup.intake.taken == ["g1", "g2", "g3"]


async def test_a_delivery_log_that_cannot_be_read_recovers_nothing_and_keeps_the_watermark() -> None:
    for trouble in (
        OutsideUnreachable("no way"),
        OutsideUnsure("500"),
        OutsideRefused("no", status=401),
        OutsideLimited("wait", retry_after_s=600),
    ):
        setup = RecoverySetup(25)
        setup.log.trouble[0] = [trouble]
        report = await setup.recovery.run()

        assert report.stopped == trouble.detail
        assert (setup.intake.taken, setup.store.read_to) == ([], None)


async def test_an_upstream_without_an_allowlist_does_not_block_the_recovery_of_others() -> None:
    setup = RecoverySetup(6, repository_id=lambda number: number % 2)
    setup.intake.trouble |= {f"g{number}": NoAllowlist("no list") for number in (1, 3, 5)}
    report = await setup.recovery.run()

    assert (report.taken, report.left, report.stopped) == (3, 3, "no list")
    assert setup.log.fetched == [1, 2, 4, 6]  # one call per repository is enough
    assert setup.store.read_to is None


async def test_a_short_rate_limit_is_waited_for() -> None:
    setup = RecoverySetup(3)
    setup.log.trouble[2] = [OutsideLimited("wait", retry_after_s=30)]
    run = asyncio.create_task(setup.recovery.run())
    await settle()
    assert setup.intake.taken == ["g1"]
    setup.clock.advance(30)

    assert (await run).taken == 3


async def test_a_stopping_relay_does_not_wait_for_a_rate_limit_and_loses_nothing() -> None:
    setup = RecoverySetup(3)
    setup.log.trouble[2] = [OutsideLimited("wait", retry_after_s=30)]
    run = asyncio.create_task(setup.recovery.run())
    await settle()
    setup.stopping.set()
    report = await run

    assert (report.taken, report.left, report.stopped) == (1, 2, "the relay is stopping")
    assert setup.store.read_to is None


async def test_a_failed_fetch_is_left_for_the_next_run() -> None:
    setup = RecoverySetup(3)
    setup.log.trouble[2] = [OutsideUnsure("500")]
    report = await setup.recovery.run()
    assert (report.taken, report.left, report.stopped) == (2, 1, "500")
    assert setup.store.read_to is None
    assert (await setup.recovery.run()).taken == 1
    assert setup.store.read_to is not None


async def test_fetching_stops_after_three_failures_in_a_row() -> None:
    setup = RecoverySetup(9)
    setup.log.trouble |= {number: [OutsideUnsure("500")] for number in range(1, 10)}
    report = await setup.recovery.run()

    assert (report.taken, report.left) == (0, 9)
    assert [len(setup.log.trouble[number]) for number in range(1, 10)] == [0, 0, 0, *[1] * 6]


async def test_a_webhook_that_fails_in_every_run_does_not_block_the_watermark_for_ever() -> None:
    setup = RecoverySetup(2)
    setup.log.trouble[1] = [OutsideUnsure("no payload")] * 5
    for _ in range(4):
        assert (await setup.recovery.run()).left == 1
    report = await setup.recovery.run()

    assert (report.unusable, report.left, report.stopped) == (1, 0, None)
    assert setup.store.read_to is not None
