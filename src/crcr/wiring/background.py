"""Background tasks: the worker, the leader's periodic duties, and stopping them all.

Every process runs a worker; the duties (sweeping, retention, reconciling, reading allowlists, computing fingerprints by new
rules) run only in the leader.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog

from crcr.deliver.periodic.leader_tasks import LeaderTask, LeaderTasks
from crcr.deliver.periodic.reconcile import RECONCILE_EVERY_S
from crcr.deliver.periodic.sweeper import (
    BISECT_EVERY_S,
    EVALUATE_LEVELS_EVERY_S,
    FORGET_EVERY_S,
    LOOK_AT_BASE_EVERY_S,
    LOOK_AT_REPORTING_EVERY_S,
    REFRESH_EVERY_S,
    SWEEP_EVERY_S,
    UPDATE_FINGERPRINTS_EVERY_S,
)
from crcr.errors import NoAllowlist, StoreUnavailable
from crcr.record.outbox.leader_and_workers import free_leases, is_gone
from crcr.record.store.signals import ALLOWLIST, EFFECTS
from crcr.wiring.services import Services

log = structlog.get_logger(__name__)

RequestSideTask = Callable[[asyncio.Event], Coroutine[Any, Any, None]]

GRACE_S = 30.0
"""How long running effects may continue after the process is told to stop."""


async def follow_other_processes(services: Services) -> None:
    """Receive the wake-ups of other processes, reload allowlists and secrets, and monitor Redis, until cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(services.database.watch_other_processes())
        group.create_task(_reload_allowlists(services))
        group.create_task(services.rate_limits.monitor())
        group.create_task(services.secrets.run())


async def _reload_allowlists(services: Services) -> None:
    changed = services.signals.subscribe(ALLOWLIST)
    while True:
        await changed.wait()
        changed.clear()
        for upstream in services.upstreams:
            with suppress(NoAllowlist, StoreUnavailable):  # the next transaction raises it
                await services.allowlists.warm(upstream)


class BackgroundTasks:
    """The tasks that run beside the requests; `stop` waits for running effects."""

    def __init__(
        self,
        services: Services,
        *,
        work: bool,
        request_side_tasks: tuple[RequestSideTask, ...] = (),
        grace_s: float = GRACE_S,
    ) -> None:
        """`request_side_tasks` run in a process that serves requests, until it is told to stop."""
        self._services = services
        self._work = work
        self._request_side_tasks = request_side_tasks
        self._grace_s = grace_s
        self._stopping = services.stopping
        self._tasks: list[asyncio.Task[None]] = []
        self._signal_task: asyncio.Task[None] | None = None
        self._presence_task: asyncio.Task[None] | None = None
        self._deadline_task: asyncio.Task[None] | None = None
        self.leader_tasks = LeaderTasks(
            services.leaders,
            leader_tasks(services),
            clock=services.clock,
            stopping=self._stopping,
            on_lead=services.metrics.leads,
        )

    async def start(self) -> None:
        services = self._services
        await services.acts.register_upstreams(services.upstreams, services.clock.now())
        self._signal_task = self._create_task(follow_other_processes(services))
        for start in self._request_side_tasks:
            self._run(start(self._stopping))
        if self._work:
            await services.clickhouse.record_switch(services.upstreams, services.clock.now())
            if freed := await self._free_leases(is_gone):
                log.warning("leases_freed", effects=freed)
            await self._make_ready()
            await services.heartbeat.beat()  # no claim before the first heartbeat
            self._presence_task = self._create_task(services.heartbeat.run())
            self._run(services.worker.run(services.signals.subscribe(EFFECTS), self._stopping))
            self._run(self.leader_tasks.run())
        self._deadline_task = asyncio.create_task(self._enforce_grace())

    async def _make_ready(self) -> None:
        """Put the allowlists in force: the leader reads all of them, other processes those that were never read.

        Two processes that start at once may both read one; the store records what both read as one version.
        """
        services = self._services
        if await self.leader_tasks.start():
            return
        for upstream in services.upstreams:
            newest = await services.allowlists.newest(upstream)
            if newest is None or not newest.good:
                await services.refreshers[upstream.key].refresh_or_log()

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._deadline_task is not None:
            await asyncio.gather(self._deadline_task, return_exceptions=True)
        endless = [task for task in (self._signal_task, self._presence_task) if task is not None]
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)
        if self._presence_task is not None:
            await self._services.heartbeat.leave()
        await self._services.close()

    async def _enforce_grace(self) -> None:
        """Cancel tasks that exceed the grace period, and free their claims at once, marked unsure."""
        await self._stopping.wait()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=self._grace_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if late:
            log.warning("stop_cut_short", tasks=len(late), after_s=self._grace_s)
            with suppress(StoreUnavailable):  # otherwise the leases expire
                freed = await self._free_leases(lambda owner: owner == self._services.owner)
                log.warning("leases_left", effects=freed)

    async def _free_leases(self, is_gone: Callable[[str], bool]) -> int:
        services = self._services
        keys = tuple(upstream.key for upstream in services.upstreams)
        return await free_leases(services.database, keys, services.clock.now(), is_gone)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self._create_task(work))

    def _create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Stop the process when a loop died: a relay that looks alive and sends nothing is worse."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("loop_died", exc_info=error)
            self._services.loop_errors.append(error)
            self._stopping.set()


def leader_tasks(services: Services) -> tuple[LeaderTask, ...]:
    refreshers = services.refreshers.values()
    return (
        *(
            LeaderTask("refresh", refresher.refresh_or_log, REFRESH_EVERY_S, at_start=True)
            for refresher in refreshers
        ),
        LeaderTask("sweep", services.sweeper.sweep, SWEEP_EVERY_S, at_start=True),
        LeaderTask("bisect", services.sweeper.begin_bisections, BISECT_EVERY_S),
        LeaderTask("look_at_base", services.sweeper.look_at_base, LOOK_AT_BASE_EVERY_S),
        LeaderTask("look_at_reporting", services.sweeper.look_at_reporting, LOOK_AT_REPORTING_EVERY_S),
        LeaderTask("evaluate_levels", services.sweeper.evaluate_levels, EVALUATE_LEVELS_EVERY_S),
        LeaderTask("forget", services.sweeper.forget, FORGET_EVERY_S),
        LeaderTask("update_fingerprints", services.sweeper.update_fingerprints, UPDATE_FINGERPRINTS_EVERY_S),
        LeaderTask("reconcile", services.reconciler.run_quietly, RECONCILE_EVERY_S),
    )
