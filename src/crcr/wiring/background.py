"""What runs beside the requests: the worker, the duties of the one process that leads, and their common end.

Every process works; the duties (sweeping, forgetting, reconciling, reading allowlists) run in one of them at a time.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog

from crcr.deliver.periodic.leader_tasks import LeaderTask, LeaderTasks
from crcr.deliver.periodic.reconcile import RECONCILE_EVERY_S
from crcr.deliver.periodic.sweeper import FORGET_EVERY_S, REFRESH_EVERY_S, SWEEP_EVERY_S
from crcr.errors import NoAllowlist, StoreUnavailable
from crcr.record.outbox.leases import free_leases, is_gone
from crcr.record.store.signals import ALLOWLIST, EFFECTS
from crcr.wiring.services import Services

log = structlog.get_logger(__name__)

RequestSideTask = Callable[[asyncio.Event], Coroutine[Any, Any, None]]

GRACE_S = 30.0
"""How long what is under way may go on after the process was told to stop."""


async def follow_other_processes(services: Services) -> None:
    """Receive the wake-ups of other processes, reload changed allowlists, and monitor Redis, until cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(services.database.watch_other_processes())
        group.create_task(_reload_allowlists(services))
        group.create_task(services.rate_limits.monitor())


async def _reload_allowlists(services: Services) -> None:
    changed = services.signals.subscribe(ALLOWLIST)
    while True:
        await changed.wait()
        changed.clear()
        for upstream in services.upstreams:
            with suppress(NoAllowlist, StoreUnavailable):  # the next transaction raises it
                await services.allowlists.warm(upstream)


class BackgroundTasks:
    """The tasks that run beside the requests; stopping waits for what is under way."""

    def __init__(
        self,
        services: Services,
        *,
        work: bool,
        request_side_tasks: tuple[RequestSideTask, ...] = (),
        grace_s: float = GRACE_S,
    ) -> None:
        """`beside` is what runs with the requests alone, until it is told to stop."""
        self._services = services
        self._work = work
        self._beside = request_side_tasks
        self._grace_s = grace_s
        self._stopping = services.stopping
        self._tasks: list[asyncio.Task[None]] = []
        self._watching: asyncio.Task[None] | None = None
        self._attending: asyncio.Task[None] | None = None
        self._ends: asyncio.Task[None] | None = None
        self.duties = LeaderTasks(
            services.leaders,
            _duties(services),
            clock=services.clock,
            stopping=self._stopping,
            on_lead=services.metrics.leads,
        )

    async def start(self) -> None:
        services = self._services
        await services.acts.register_upstreams(services.upstreams, services.clock.now())
        self._watching = self._started(follow_other_processes(services))
        for each in self._beside:
            self._run(each(self._stopping))
        if self._work:
            await services.clickhouse.begin(services.upstreams, services.clock.now())
            if freed := await self._free_leases(is_gone):
                log.warning("leases_freed", effects=freed)
            await self._make_ready()
            await services.attendance.beat()  # no claim before the first heartbeat
            self._attending = self._started(services.attendance.run())
            self._run(services.worker.run(services.signals.subscribe(EFFECTS), self._stopping))
            self._run(self.duties.run())
        self._ends = asyncio.create_task(self._end_in_time())

    async def _make_ready(self) -> None:
        """Have an allowlist in force: whoever leads reads all of them, everybody else those that nobody has read yet.

        Two processes that start at once may both read one; the store takes what both read as one version.
        """
        services = self._services
        if await self.duties.start():
            return
        for upstream in services.upstreams:
            newest = await services.allowlists.newest(upstream)
            if newest is None or not newest.good:
                await services.refreshers[upstream.key].refresh_or_complain()

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._ends is not None:
            await asyncio.gather(self._ends, return_exceptions=True)
        endless = [each for each in (self._watching, self._attending) if each is not None]
        for each in endless:
            each.cancel()
        await asyncio.gather(*endless, return_exceptions=True)
        if self._attending is not None:
            await self._services.attendance.leave()
        await self._services.close()

    async def _end_in_time(self) -> None:
        """Break off what outlives its grace, and let others have at once what it had claimed, marked unsure."""
        await self._stopping.wait()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=self._grace_s)
        for each in late:
            each.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if late:
            log.warning("stop_cut_short", tasks=len(late), after_s=self._grace_s)
            with suppress(StoreUnavailable):  # else they end by themselves
                left = await self._free_leases(lambda owner: owner == self._services.owner)
                log.warning("leases_left", effects=left)

    async def _free_leases(self, gone: Callable[[str], bool]) -> int:
        services = self._services
        keys = tuple(each.key for each in services.upstreams)
        return await free_leases(services.database, keys, services.clock.now(), gone)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self._started(work))

    def _started(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A loop that died takes the process with it: a relay that looks alive and sends nothing is worse."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("loop_died", exc_info=error)
            self._services.loop_errors.append(error)
            self._stopping.set()


def _duties(services: Services) -> tuple[LeaderTask, ...]:
    refreshers = services.refreshers.values()
    return (
        *(
            LeaderTask("refresh", each.refresh_or_complain, REFRESH_EVERY_S, at_start=True)
            for each in refreshers
        ),
        LeaderTask("sweep", services.sweeper.sweep, SWEEP_EVERY_S, at_start=True),
        LeaderTask("forget", services.sweeper.forget, FORGET_EVERY_S),
        LeaderTask("reconcile", services.reconciler.run_quietly, RECONCILE_EVERY_S),
    )
