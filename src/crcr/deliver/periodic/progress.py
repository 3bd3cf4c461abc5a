"""Long work tells how far it is: each step to whoever watches, now and then to the log; and waits that can end."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import structlog

from crcr.decide.github.missed_webhooks import RecoveryProgress
from crcr.ports import Clock

log = structlog.get_logger(__name__)

_LOG_STEPS = 100
_LOG_EVERY = timedelta(seconds=10)


class Pace:
    def __init__(
        self, stage: str, clock: Clock, tell: Callable[[RecoveryProgress], None], total: int | None = None
    ) -> None:
        self._progress = RecoveryProgress(stage, 0, total)
        self._clock = clock
        self._tell = tell
        self._logged_at = clock.now()

    def step(self) -> None:
        last = self._progress
        self._progress = RecoveryProgress(last.stage, last.done + 1, last.total)
        self._tell(self._progress)
        now = self._clock.now()
        if self._progress.done % _LOG_STEPS == 0 or now - self._logged_at >= _LOG_EVERY:
            self._logged_at = now
            log.info("recovery_progress", stage=last.stage, done=self._progress.done, total=last.total)


async def wait(seconds: float, clock: Clock, stopping: asyncio.Event) -> None:
    """Sleep, but not beyond the moment when the process begins to stop."""
    waits = {asyncio.ensure_future(clock.sleep(seconds)), asyncio.ensure_future(stopping.wait())}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
