"""What runs beside the requests: the worker, the sweeper, the reading of allowlists, and their common end."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from crcr.deliver.reconcile import RECONCILE_EVERY_S
from crcr.deliver.sweeper import FORGET_EVERY_S, REFRESH_EVERY_S, SWEEP_EVERY_S, repeat
from crcr.record.leases import free_leases
from crcr.record.signals import EFFECTS
from crcr.wiring import Services

log = structlog.get_logger(__name__)

Beside = Callable[[asyncio.Event], Coroutine[Any, Any, None]]


class Company:
    """The tasks that run beside the requests; stopping waits for what is under way."""

    def __init__(self, services: Services, *, work: bool, beside: tuple[Beside, ...] = ()) -> None:
        """`beside` is what runs with the requests alone, until it is told to stop."""
        self._services = services
        self._work = work
        self._beside = beside
        self._stopping = services.stopping
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        services = self._services
        await services.acts.register_upstreams(services.upstreams, services.clock.now())
        self._run(services.database.watch_other_processes())
        for each in self._beside:
            self._run(each(self._stopping))
        if not self._work:
            return
        freed = await free_leases(
            services.database, tuple(u.key for u in services.upstreams), services.clock.now()
        )
        if freed:
            log.warning("leases_freed", effects=freed)
        for refresher in services.refreshers.values():
            await refresher.refresh_or_complain()
        await services.sweeper.sweep()
        wake = services.signals.subscribe(EFFECTS)
        loop = partial(repeat, clock=services.clock, stopping=self._stopping)
        self._run(services.worker.run(wake, self._stopping))
        self._run(loop(services.sweeper.sweep, SWEEP_EVERY_S))
        self._run(loop(services.sweeper.forget, FORGET_EVERY_S))
        self._run(self._reconcile())
        for refresher in services.refreshers.values():
            self._run(loop(refresher.refresh_or_complain, REFRESH_EVERY_S))

    async def _reconcile(self) -> None:
        """At once, for what was missed while we were away, and every few minutes from then on."""
        services = self._services
        await services.reconciler.run_quietly()
        await repeat(
            services.reconciler.run_quietly, RECONCILE_EVERY_S, clock=services.clock, stopping=self._stopping
        )

    async def stop(self) -> None:
        self._stopping.set()
        watching, *working = self._tasks
        await asyncio.gather(*working, return_exceptions=True)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await self._services.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A loop that died takes the process with it: a relay that looks alive and sends nothing is worse."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("loop_died", exc_info=error)
            self._services.deaths.append(error)
            self._stopping.set()
