"""Missed webhooks: reads GitHub's own log of them, fetches what never got here, and takes it as if it just came.

GitHub sends nothing twice by itself. A run may end anywhere, by a fault or by a kill: the watermark moves only when
all that the log showed was handled, and whatever is handled twice is a repeat the second time.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from crcr.decide.github.missed_webhooks import (
    KnownWebhooks,
    LoggedWebhook,
    RecoveryOutcome,
    RecoveryProgress,
    RecoveryReport,
    group_attempts,
    is_used_event,
    missing_webhooks,
    possibly_missing,
    read_since,
)
from crcr.decide.github.values import LoggedDelivery
from crcr.deliver.periodic.progress import Pace, wait
from crcr.errors import (
    BadRequest,
    NoAllowlist,
    OutsideFault,
    OutsideLimited,
    OutsideRefused,
    OutsideUnsure,
    Unavailable,
)
from crcr.ports import Clock, DeliveryLog

log = structlog.get_logger(__name__)

T = TypeVar("T")
Tell = Callable[[RecoveryProgress], None]

PATIENCE_S = 60.0
"""A limit that ends within a minute is waited for: a log of many pages would never be read to its end otherwise."""
_UNSURE_IN_A_ROW = 3
_UNSURE_RUNS = 5


class Store(Protocol):
    async def known(self, guids: Sequence[str]) -> KnownWebhooks: ...
    async def superseded(self, guids: Sequence[str]) -> int: ...
    async def upstream_ids(self) -> frozenset[int] | None: ...
    async def note(self, guid: str, outcome: RecoveryOutcome, now: datetime) -> None: ...
    async def watermark(self) -> datetime | None: ...
    async def complete(self, until: datetime, now: datetime) -> None: ...


class Answered(Protocol):
    @property
    def body(self) -> Mapping[str, Any]: ...


class Intake(Protocol):
    async def recover(self, guid: str, name: str, body: bytes) -> Answered: ...


@dataclass(slots=True)
class _Run:
    """What one run has found and done so far."""

    since: datetime | None = None
    entries: list[LoggedDelivery] = field(default_factory=list)
    logged: int = 0
    missed: int = 0
    outcomes: Counter[RecoveryOutcome] = field(default_factory=Counter)
    taken: list[str] = field(default_factory=list)
    stopped: str | None = None
    without_allowlist: set[int | None] = field(default_factory=set)

    def count(self, webhook: LoggedWebhook, outcome: RecoveryOutcome) -> None:
        self.outcomes[outcome] += 1
        if outcome is RecoveryOutcome.TAKEN:
            self.taken.append(webhook.guid)

    def report(self) -> RecoveryReport:
        return RecoveryReport(
            since=self.since,
            logged=self.logged,
            missed=self.missed,
            taken=self.outcomes[RecoveryOutcome.TAKEN],
            repeated=self.outcomes[RecoveryOutcome.REPEAT],
            ignored=self.outcomes[RecoveryOutcome.IGNORED],
            unusable=self.outcomes[RecoveryOutcome.UNUSABLE],
            left=self.missed - self.outcomes.total(),
            stopped=self.stopped,
        )


class Recovery:
    def __init__(
        self,
        delivery_log: DeliveryLog,
        store: Store,
        intake: Intake,
        *,
        clock: Clock,
        stopping: asyncio.Event,
        on_crash: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._log = delivery_log
        self._store = store
        self._intake = intake
        self._clock = clock
        self._stopping = stopping
        self._on_crash = on_crash
        self._unsure: Counter[str] = Counter()

    async def run(self, tell: Tell = lambda _: None) -> RecoveryReport:
        """Take up what was missed. Faults outside end the run early; the report says so, nothing is raised."""
        run, began_at = _Run(), self._clock.now()
        try:
            await self._find_and_take(run, began_at, tell)
            if run.stopped is None:
                await self._store.complete(began_at, self._clock.now())
        except (OutsideFault, Unavailable) as fault:
            run.stopped = fault.detail
        report = await self._report(run)
        _announce(report)
        return report

    async def _report(self, run: _Run) -> RecoveryReport:
        with suppress(Unavailable):
            return replace(run.report(), superseded=await self._store.superseded(run.taken))
        return run.report()

    async def _find_and_take(self, run: _Run, began_at: datetime, tell: Tell) -> None:
        run.since = read_since(began_at, await self._store.watermark())
        await self._read(run, run.since, Pace("reading the log", self._clock, tell))
        candidates = possibly_missing(group_attempts(run.entries), await self._store.upstream_ids())
        wanted = missing_webhooks(candidates, await self._store.known([each.guid for each in candidates]))
        run.missed = len(wanted)
        if wanted:
            log.info("recovery_began", missed=len(wanted), logged=run.logged, since=run.since)
            await self._take_up(run, wanted, Pace("recovering", self._clock, tell, len(wanted)))

    # The log

    async def _read(self, run: _Run, since: datetime, pace: Pace) -> None:
        cursor = None
        while True:
            page = await self._patiently(partial(self._log.read_page, cursor))
            recent = [each for each in page.entries if each.delivered_at >= since]
            run.logged += sum(not each.redelivery for each in recent)
            run.entries += filter(is_used_event, recent)
            pace.step()
            cursor = page.next_cursor
            if cursor is None or len(recent) < len(page.entries):
                return

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        while not self._stopping.is_set():
            try:
                return await ask()
            except OutsideLimited as limit:
                if limit.retry_after_s > PATIENCE_S:
                    raise
                await wait(limit.retry_after_s, self._clock, self._stopping)
        raise Unavailable("the relay is stopping")

    # What was missed

    async def _take_up(self, run: _Run, wanted: Sequence[LoggedWebhook], pace: Pace) -> None:
        unsure_in_a_row = 0
        for each in wanted:
            # An upstream without an allowlist must not keep the others from theirs, nor cost a call per webhook.
            if each.repository_id in run.without_allowlist:
                continue
            try:
                run.count(each, await self._recover(each))
                unsure_in_a_row = 0
            except NoAllowlist as fault:
                run.without_allowlist.add(each.repository_id)
                run.stopped = fault.detail
            except OutsideUnsure as fault:
                unsure_in_a_row += 1
                if unsure_in_a_row == _UNSURE_IN_A_ROW:
                    raise
                run.stopped = fault.detail
            pace.step()

    async def _recover(self, webhook: LoggedWebhook) -> RecoveryOutcome:
        fetched = await self._fetch(webhook)
        outcome = RecoveryOutcome.UNUSABLE if fetched is None else await self._take(webhook, *fetched)
        await self._store.note(webhook.guid, outcome, self._clock.now())
        return outcome

    async def _fetch(self, webhook: LoggedWebhook) -> tuple[str, bytes] | None:
        """Return the event's name and its payload; None when GitHub has it no more, or never shows it."""
        try:
            _, name, body = await self._patiently(partial(self._log.read_delivery, webhook.log_id))
        except OutsideRefused as refused:
            if refused.status != 404:
                raise
            _complain(webhook, refused.detail)
        except OutsideUnsure as unsure:
            # GitHub may be unwell; but an answer that can never be read must not hold the watermark for days.
            self._unsure[webhook.guid] += 1
            if self._unsure[webhook.guid] < _UNSURE_RUNS:
                raise
            _complain(webhook, unsure.detail)
        else:
            self._unsure.pop(webhook.guid, None)
            return name, body
        return None

    async def _take(self, webhook: LoggedWebhook, name: str, body: bytes) -> RecoveryOutcome:
        """Hand it to the intake. The guard keeps a webhook that breaks us from ending the process at each start."""
        try:
            answer = await self._intake.recover(webhook.guid, name, body)
        except (OutsideFault, Unavailable):
            raise
        except BadRequest as refusal:
            _complain(webhook, refusal.detail)
            return RecoveryOutcome.UNUSABLE
        except Exception as crash:
            log.exception("recovery_crashed", delivery=webhook.guid, github_event=name)
            self._on_crash(crash)
            return RecoveryOutcome.UNUSABLE
        return _outcome(answer.body)


def _outcome(answer: Mapping[str, Any]) -> RecoveryOutcome:
    if "ignored" in answer:
        return RecoveryOutcome.IGNORED
    return RecoveryOutcome.REPEAT if "repeat" in answer else RecoveryOutcome.TAKEN


def _complain(webhook: LoggedWebhook, why: str) -> None:
    log.warning("webhook_unusable", delivery=webhook.guid, github_event=webhook.event, error=why)


def _announce(report: RecoveryReport) -> None:
    counts = {
        "missed": report.missed,
        "taken": report.taken,
        "superseded": report.superseded,
        "repeated": report.repeated,
        "ignored": report.ignored,
        "unusable": report.unusable,
    }
    if report.stopped is not None:
        log.warning("recovery_stopped", error=report.stopped, left=report.left, **counts)
    elif report.missed:
        log.info("recovery_done", **counts)
