"""One execution environment of Lambda: an event loop and the relay's services, kept from one invocation to the next.

Lambda freezes the process between two invocations, and may never thaw it. So no task is needed between them: an invocation
ends when its tasks have ended, no transaction is open and no effect is claimed then. After a pause, connections that died are
replaced before anything uses them, and everything that other processes may have changed is read again.
"""

import asyncio
import logging
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import httpx
import structlog

from crcr import log as logs
from crcr.errors import StoreUnavailable
from crcr.github.http.connections import ConnectionPool, open_pool
from crcr.ports import Clock
from crcr.settings import Settings, load_settings
from crcr.wiring.core import Seams
from crcr.wiring.services import Services, build

log = structlog.get_logger(__name__)

T = TypeVar("T")

STALE_AFTER = timedelta(seconds=30)
"""A frozen machine does not learn that a peer has closed a connection; after this pause none is used again."""
_LOOP_TURNS = 5
"""Turns of the event loop until it has noticed the connections that were closed while it did not run, with TLS."""
_SETTLE_S = 5.0
"""How long an invocation waits for tasks that its answer did not wait for."""
_LAST_S = 0.4
"""What is left of an invocation's time for its answer, whatever else is waited for."""
_SECRETS_S = 5.0
"""How long an invocation waits for rotated secrets, and not longer than a sixth of its time."""


def remaining_s(context: Any) -> float:
    """Return how much time the invocation has left, by Lambda's context object."""
    return float(context.get_remaining_time_in_millis() / 1_000)


def read_settings() -> Settings:
    """Read the settings from the function's variables, and begin to log."""
    settings = load_settings(config=None, environ=os.environ, cwd=Path.cwd())
    # Lambda's own handler would write the lines of libraries a second time, without masking.
    root = logging.getLogger()
    for handler in [one for one in root.handlers if type(one).__name__.startswith("LambdaLogger")]:
        root.removeHandler(handler)
    logs.configure(settings.log_format, settings.log_level, sys.stderr)
    logs.redact_literals(settings.secrets())
    for warning in settings.warnings():
        log.warning("setting_unwise", detail=warning)
    return settings


class LambdaEnvironment:
    def __init__(self, settings: Settings, seams: Seams | None = None) -> None:
        """Without `seams`, connections to GitHub and to token issuers are renewed after a pause like all others."""
        # Lambda has no streams here, so pages must not try one.
        self.settings = settings.model_copy(update={"hud_live": "poll"})
        self._pools: list[ConnectionPool] = []
        self._context: ssl.SSLContext | None = None
        self._seams = seams or Seams(http=self._open_http)
        self._services: Services | None = None
        self._left: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._ended_at: datetime | None = None
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)  # the adapter takes it from there

    @property
    def clock(self) -> Clock:
        return self._seams.clock

    def start(self, prepare: Callable[[Services], None] = lambda _: None) -> None:
        """Open the store while Lambda initialises the function; without the store, the first invocation tries again."""
        try:
            prepare(self.loop.run_until_complete(self.services()))
        except StoreUnavailable as fault:
            log.warning("store_not_opened", error=str(fault))

    async def services(self) -> Services:
        """Return the relay's services; raise `StoreUnavailable` while the store cannot be opened."""
        if self._services is None:
            services = build(self.settings, self._seams)
            await services.acts.register_upstreams(services.upstreams, services.clock.now())
            self._services = services
        return self._services

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @asynccontextmanager
    async def invocation(self, context: Any) -> AsyncIterator[Services]:
        """Prepare the services for an invocation; afterwards wait until nothing is in progress, within its time."""
        services = await self.services()
        await self._thaw(services, context)
        # Between invocations nothing is in progress, and SIGTERM ends the process at once.
        self.loop.add_signal_handler(signal.SIGTERM, services.stopping.set)
        try:
            yield services
        finally:
            self.loop.remove_signal_handler(signal.SIGTERM)
            await self._settle(services, context)
            self._ended_at = self.clock.now()

    async def close(self) -> None:
        if self._services is not None:
            await self._services.close()

    async def _thaw(self, services: Services, context: Any) -> None:
        services.stopping.clear()
        for _ in range(_LOOP_TURNS):
            await asyncio.sleep(0)
        if self._ended_at is not None and abs(self.clock.now() - self._ended_at) >= STALE_AFTER:
            await services.renew_connections()
            for pool in self._pools:
                await pool.close_idle()
        try:
            async with asyncio.timeout(min(_SECRETS_S, remaining_s(context) / 6)):
                await services.secrets.refresh_if_due()
        except TimeoutError:  # the old ones stay in force
            log.warning("secrets_not_read", problems=["they were not read in time"], alarm=True)
        services.signals.wake_all()  # other processes may have committed meanwhile

    async def _settle(self, services: Services, context: Any) -> None:
        """Wait for wake-ups and tasks, within the invocation's time: with its end, Lambda kills the process and its answer."""
        await _send_wakeups(services, context)
        # A task that was left once is not waited for again: every later request would wait as long.
        running = asyncio.all_tasks(self.loop) - {asyncio.current_task(self.loop), *self._left}
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=min(_SETTLE_S, _left_s(context)))
        self._left.update(late)
        if late:
            log.warning("tasks_left", tasks=sorted({str(task.get_coro()) for task in late})[:5])
        await _send_wakeups(services, context)  # what the tasks have committed

    def _open_http(self, url: str) -> httpx.AsyncClient:
        self._context = self._context or httpx.create_ssl_context()
        pool = open_pool(url, self._context)
        self._pools.append(pool)
        return httpx.AsyncClient(transport=pool)


async def _send_wakeups(services: Services, context: Any) -> None:
    if services.wakeups is None:
        return
    try:
        async with asyncio.timeout(_left_s(context)):
            await services.wakeups.flush()
    except TimeoutError:
        log.warning("wakeup_not_sent", error="TimeoutError", detail="the invocation's time is over")


def _left_s(context: Any) -> float:
    return max(0.0, remaining_s(context) - _LAST_S)


async def finish_before(
    work: Coroutine[Any, Any, None], *, stop_s: float, cut_s: float, stop: Callable[[], None]
) -> bool:
    """Run `work`; call `stop` after `stop_s`, and cancel it after `cut_s`. False when it was cancelled."""
    task, loop = asyncio.create_task(work), asyncio.get_running_loop()
    timer = loop.call_later(max(0.0, stop_s), stop)
    try:
        done, _ = await asyncio.wait({task}, timeout=max(0.0, cut_s))
    finally:
        timer.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if done:
        task.result()
    return bool(done)
