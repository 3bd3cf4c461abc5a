"""The address of the App's own page, where people install it: read from GitHub once and kept in memory.

Until GitHub has answered, pages omit the link.
"""

import asyncio
from typing import Protocol

import structlog

from crcr.decide.github.repository_setup import AppFacts
from crcr.deliver.waiting import sleep_until_stopping
from crcr.errors import OutsideFault
from crcr.ports import Clock

log = structlog.get_logger(__name__)

ASK_AGAIN_S = 300.0


class AppReader(Protocol):
    async def read(self) -> AppFacts: ...


class AppPage:
    def __init__(self, app: AppReader, clock: Clock) -> None:
        self.address: str | None = None
        self._app = app
        self._clock = clock

    async def find(self, stopping: asyncio.Event) -> None:
        """Retry until GitHub answers."""
        while not stopping.is_set():
            await self._read()
            if self.address:
                return
            await sleep_until_stopping(ASK_AGAIN_S, self._clock, stopping)

    async def _read(self) -> None:
        try:
            self.address = (await self._app.read()).html_url or None
        except OutsideFault as fault:
            log.warning("app_not_read", error=str(fault))
