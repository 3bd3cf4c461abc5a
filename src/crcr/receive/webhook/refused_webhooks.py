"""Counts refused webhooks: at most one log line and one write to the store a minute, however many arrive.

Anybody can send a request with a wrong signature, so only the count is kept. Requests that look like GitHub's (an event's
name, and a well-formed signature that does not match) point to a wrong secret, and pages say so.
"""

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime

import structlog

from crcr.errors import Unavailable
from crcr.ports import Clock
from crcr.record.deliveries.webhooks import RefusalCounts

log = structlog.get_logger(__name__)

REPORT_EVERY_S = 60.0


class RefusedWebhookCounter:
    def __init__(self, counts: RefusalCounts, clock: Clock) -> None:
        self._counts = counts
        self._clock = clock
        self._signed = 0
        self._unsigned = 0
        self._since: datetime | None = None
        self._noted = asyncio.Event()
        self._reported_at: datetime | None = None

    @property
    def is_due(self) -> bool:
        """Whether there is something to report, and the last report is a minute ago; for a process without `run`."""
        waited = self._reported_at is None or (
            (self._clock.now() - self._reported_at).total_seconds() >= REPORT_EVERY_S
        )
        return self._noted.is_set() and waited

    def note(self, *, like_github: bool) -> None:
        """Count one; `like_github`: only its signature is wrong."""
        if like_github:
            self._signed += 1
            self._since = self._since or self._clock.now()
        else:
            self._unsigned += 1
        self._noted.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Report the first one at once, then the count of each minute, until `stopping`."""
        while not stopping.is_set():
            await _wait_for_first(self._noted.wait(), stopping.wait())
            if not self._noted.is_set():
                return
            await self.report()
            await _wait_for_first(self._clock.sleep(REPORT_EVERY_S), stopping.wait())
        await self.report()

    async def report(self) -> None:
        """Write what was counted since the last report."""
        self._noted.clear()
        self._reported_at = self._clock.now()
        if self._unsigned:
            log.info("webhooks_unsigned", number=self._unsigned)
            self._unsigned = 0
        number, since = self._signed, self._since
        if not number or since is None:
            return
        try:
            total, began = await self._counts.add(number, since=since, now=self._clock.now())
        except Unavailable:
            self._noted.set()  # they stay counted, and are reported when the store is back
            return
        self._signed -= number
        self._since = None
        detail = "signature does not match CRCR_GITHUB_WEBHOOK_SECRET"
        since_utc = f"{began.astimezone(UTC):%H:%M}"
        log.warning("webhooks_refused", detail=f"{detail}, {total:,} since {since_utc} UTC", number=total)


async def _wait_for_first(*waits: Awaitable[object]) -> None:
    tasks = {asyncio.ensure_future(wait) for wait in waits}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
