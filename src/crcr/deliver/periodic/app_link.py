"""Where people install the App: GitHub is asked once, beside the requests, and its answer is kept in memory.

Until then, and where GitHub does not say, pages do without the link.
"""

import asyncio
from typing import Protocol

import structlog

from crcr.decide.github.repository_setup import AppFacts
from crcr.deliver.periodic.progress import wait
from crcr.errors import OutsideFault
from crcr.ports import Clock

log = structlog.get_logger(__name__)

ASK_AGAIN_S = 300.0


class Apps(Protocol):
    async def read(self) -> AppFacts: ...


class AppPage:
    def __init__(self, apps: Apps, clock: Clock) -> None:
        self.address: str | None = None
        self._apps = apps
        self._clock = clock

    async def find(self, stopping: asyncio.Event) -> None:
        """Ask until there is an answer."""
        while not stopping.is_set():
            await self._ask()
            if self.address:
                return
            await wait(ASK_AGAIN_S, self._clock, stopping)

    async def _ask(self) -> None:
        try:
            self.address = (await self._apps.read()).html_url or None
        except OutsideFault as fault:
            log.warning("app_not_read", error=str(fault))
