"""Reconciliation with GitHub: recover missed group_attempts, look up unanswered dispatches, repair checks.

Runs every few minutes and by hand. Each part finds by itself what is wrong, so a run can be skipped or repeated. Missed
group_attempts are read from GitHub's delivery log and handed to the intake as if they had just arrived; a run that ends early
leaves the rest to the next one, because the watermark moves only after a complete run.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol, TypeVar

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
from crcr.decide.github.requests_and_answers import LoggedDelivery
from crcr.deliver.waiting import sleep_until_stopping
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
from crcr.record.checks.refresh import CheckRepairs
from crcr.record.workflow_runs.unanswered import UnansweredDispatches

log = structlog.get_logger(__name__)

T = TypeVar("T")
OnProgress = Callable[[RecoveryProgress], None]

RECONCILE_EVERY_S = 180.0
THOROUGH_EVERY = 20
"""Once an hour every open head is examined, whether or not anything seems wrong with it."""
PATIENCE_S = 60.0
"""A rate limit that ends within a minute is waited for: otherwise a log of many pages would never be read to its end."""
_UNSURE_IN_A_ROW = 3
_UNSURE_RUNS = 5
_LOG_STEPS = 100
_LOG_EVERY = timedelta(seconds=10)


class RecoveryRecords(Protocol):
    async def find_known(self, guids: Sequence[str]) -> KnownWebhooks: ...
    async def count_superseded(self, guids: Sequence[str]) -> int: ...
    async def read_upstream_ids(self) -> frozenset[int] | None: ...
    async def note(self, guid: str, outcome: RecoveryOutcome, now: datetime) -> None: ...
    async def read_watermark(self) -> datetime | None: ...
    async def complete(self, until: datetime, now: datetime) -> None: ...


class RecoveryIntake(Protocol):
    async def recover(self, guid: str, name: str, body: bytes) -> RecoveryOutcome: ...


class ProgressReporter:
    """Reports each step to the caller, and every so often to the log."""

    def __init__(self, stage: str, clock: Clock, on_progress: OnProgress, total: int | None = None) -> None:
        self._progress = RecoveryProgress(stage, 0, total)
        self._clock = clock
        self._on_progress = on_progress
        self._logged_at = clock.now()

    def step(self) -> None:
        last = self._progress
        self._progress = RecoveryProgress(last.stage, last.done + 1, last.total)
        self._on_progress(self._progress)
        now = self._clock.now()
        if self._progress.done % _LOG_STEPS == 0 or now - self._logged_at >= _LOG_EVERY:
            self._logged_at = now
            log.info("recovery_progress", stage=last.stage, done=self._progress.done, total=last.total)


@dataclass(slots=True)
class _Run:
    """What one run has found and taken so far."""

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
        records: RecoveryRecords,
        intake: RecoveryIntake,
        *,
        clock: Clock,
        stopping: asyncio.Event,
        on_crash: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._log = delivery_log
        self._records = records
        self._intake = intake
        self._clock = clock
        self._stopping = stopping
        self._on_crash = on_crash
        self._unsure: Counter[str] = Counter()

    async def run(self, on_progress: OnProgress = lambda _: None) -> RecoveryReport:
        """Recover missed webhooks. An outage ends the run early: the report says so, and nothing is raised."""
        run, began_at = _Run(), self._clock.now()
        try:
            await self._find_and_take(run, began_at, on_progress)
            if run.stopped is None:
                await self._records.complete(began_at, self._clock.now())
        except (OutsideFault, Unavailable) as fault:
            run.stopped = fault.detail
        report = await self._report(run)
        _log_report(report)
        return report

    async def _report(self, run: _Run) -> RecoveryReport:
        with suppress(Unavailable):
            return replace(run.report(), superseded=await self._records.count_superseded(run.taken))
        return run.report()

    async def _find_and_take(self, run: _Run, began_at: datetime, on_progress: OnProgress) -> None:
        run.since = read_since(began_at, await self._records.read_watermark())
        await self._read_log(run, run.since, ProgressReporter("reading the log", self._clock, on_progress))
        candidates = possibly_missing(group_attempts(run.entries), await self._records.read_upstream_ids())
        missed = missing_webhooks(
            candidates, await self._records.find_known([webhook.guid for webhook in candidates])
        )
        run.missed = len(missed)
        if missed:
            log.info("recovery_began", missed=len(missed), logged=run.logged, since=run.since)
            await self._take_all(
                run, missed, ProgressReporter("recovering", self._clock, on_progress, len(missed))
            )

    # Reading the log

    async def _read_log(self, run: _Run, since: datetime, progress: ProgressReporter) -> None:
        cursor = None
        while True:
            page = await self._wait_out_limits(partial(self._log.read_page, cursor))
            recent = [entry for entry in page.entries if entry.delivered_at >= since]
            run.logged += sum(not entry.redelivery for entry in recent)
            run.entries += filter(is_used_event, recent)
            progress.step()
            cursor = page.next_cursor
            if cursor is None or len(recent) < len(page.entries):
                return

    async def _wait_out_limits(self, call: Callable[[], Awaitable[T]]) -> T:
        while not self._stopping.is_set():
            try:
                return await call()
            except OutsideLimited as limit:
                if limit.retry_after_s > PATIENCE_S:
                    raise
                await sleep_until_stopping(limit.retry_after_s, self._clock, self._stopping)
        raise Unavailable("the relay is stopping")

    # Taking what was missed

    async def _take_all(self, run: _Run, missed: Sequence[LoggedWebhook], progress: ProgressReporter) -> None:
        unsure_in_a_row = 0
        for webhook in missed:
            # An upstream without an allowlist must neither block the others nor cost a call per webhook.
            if webhook.repository_id in run.without_allowlist:
                continue
            try:
                run.count(webhook, await self._recover(webhook))
                unsure_in_a_row = 0
            except NoAllowlist as fault:
                run.without_allowlist.add(webhook.repository_id)
                run.stopped = fault.detail
            except OutsideUnsure as fault:
                unsure_in_a_row += 1
                if unsure_in_a_row == _UNSURE_IN_A_ROW:
                    raise
                run.stopped = fault.detail
            progress.step()

    async def _recover(self, webhook: LoggedWebhook) -> RecoveryOutcome:
        fetched = await self._fetch(webhook)
        outcome = RecoveryOutcome.UNUSABLE if fetched is None else await self._take(webhook, *fetched)
        await self._records.note(webhook.guid, outcome, self._clock.now())
        return outcome

    async def _fetch(self, webhook: LoggedWebhook) -> tuple[str, bytes] | None:
        """Return the event's name and its payload; None when GitHub no longer has it, or never returns it."""
        try:
            _, name, body = await self._wait_out_limits(partial(self._log.read_delivery, webhook.log_id))
        except OutsideRefused as refused:
            if refused.status != 404:
                raise
            _log_unusable(webhook, refused.detail)
        except OutsideUnsure as unsure:
            # GitHub may have an outage; but a response that can never be read must not hold the watermark for days.
            self._unsure[webhook.guid] += 1
            if self._unsure[webhook.guid] < _UNSURE_RUNS:
                raise
            _log_unusable(webhook, unsure.detail)
        else:
            self._unsure.pop(webhook.guid, None)
            return name, body
        return None

    async def _take(self, webhook: LoggedWebhook, name: str, body: bytes) -> RecoveryOutcome:
        """Hand it to the intake. The guard keeps a webhook that crashes the intake from ending the process at each start."""
        try:
            return await self._intake.recover(webhook.guid, name, body)
        except (OutsideFault, Unavailable):
            raise
        except BadRequest as refusal:
            _log_unusable(webhook, refusal.detail)
            return RecoveryOutcome.UNUSABLE
        except Exception as crash:
            log.exception("recovery_crashed", delivery=webhook.guid, github_event=name)
            self._on_crash(crash)
            return RecoveryOutcome.UNUSABLE


def _log_unusable(webhook: LoggedWebhook, error: str) -> None:
    log.warning("webhook_unusable", delivery=webhook.guid, github_event=webhook.event, error=error)


def _log_report(report: RecoveryReport) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    recovery: RecoveryReport
    lookups: int
    heads: int


class Reconciler:
    def __init__(
        self, recovery: Recovery, silences: UnansweredDispatches, repairs: CheckRepairs, clock: Clock
    ) -> None:
        self._recovery = recovery
        self._silences = silences
        self._repairs = repairs
        self._clock = clock
        self._runs = 0

    async def run(self, on_progress: OnProgress = lambda _: None, *, thorough: bool = False) -> Reconciled:
        recovered = await self._recovery.run(on_progress)
        lookups = await self._silences.request_look_ups(self._clock.now())
        heads = await self._repairs.repair(self._clock.now(), thorough=thorough)
        return Reconciled(recovery=recovered, lookups=lookups, heads=heads)

    async def run_quietly(self) -> None:
        """Run once; an outage is only logged, because the next run finds the same things again."""
        self._runs += 1
        try:
            await self.run(thorough=self._runs % THOROUGH_EVERY == 0)
        except (OutsideFault, Unavailable) as fault:
            log.warning("reconciling_stopped", error=fault.detail)
