"""Functions without a caller who waits: the worker, woken by SQS and by a schedule, the tick of the periodic tasks, the stream.

Each takes what is due within its time and hands the rest on. A wake-up carries no data, so that one that comes twice, late or
not at all changes nothing but the time at which the outbox is read.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import structlog

from crcr.deliver.periodic.leader_tasks import LEASE, RENEW_EVERY_S, UPKEEP, LeaderTask
from crcr.errors import StoreUnavailable
from crcr.receive.ingest.dynamodb_stream import handle_stream
from crcr.record.outbox.leader_and_workers import LeaderElection, free_leases, new_owner
from crcr.record.store.signals import EFFECTS
from crcr.wiring.aws_lambda.environment import (
    LambdaEnvironment,
    finish_before,
    remaining_s,
)
from crcr.wiring.background import leader_tasks
from crcr.wiring.services import Services

log = structlog.get_logger(__name__)

STOP_BEFORE_S = 20.0
"""Before the end of its time a function begins nothing more: a running call to GitHub may take half of that."""
_CUT_BEFORE_S = 5.0
"""What is still running then is cancelled, so that its claims are freed and not left to their leases."""
_LINGER_S = 2.5
"""An effect that is due within this time is waited for: checks of backends are gathered for two seconds."""
_SCHEDULE_S = 60.0
"""The schedule's period: what is due later needs no message."""


class WorkerFunction:
    """Runs the effects that are due. For SQS it returns which messages to deliver again: all of them, or none."""

    def __init__(self, environment: LambdaEnvironment) -> None:
        self._environment = environment
        self._recorded_switch = False

    def __call__(self, event: Any, context: Any) -> Mapping[str, Any]:
        messages = _message_ids(event)
        try:
            self._environment.run(self._work(context))
        except StoreUnavailable as fault:
            if not messages:
                raise  # Lambda tries a schedule's event again by itself
            log.warning("wakeups_returned", messages=len(messages), error=str(fault))
            return {"batchItemFailures": [{"itemIdentifier": message} for message in messages]}
        return {"batchItemFailures": []}

    async def _work(self, context: Any) -> None:
        async with self._environment.invocation(context) as services:
            if services.wakeups is not None:
                services.wakeups.paused = True  # what it commits, it finds itself
            if not self._recorded_switch:
                await services.clickhouse.record_switch(services.upstreams, services.clock.now())
                self._recorded_switch = True
            await services.heartbeat.beat()
            presence = asyncio.create_task(services.heartbeat.run())
            wake = services.signals.subscribe(EFFECTS)
            try:
                finished = await finish_before(
                    services.worker.run(wake, services.stopping, idle_within_s=_LINGER_S),
                    stop_s=remaining_s(context) - STOP_BEFORE_S,
                    cut_s=remaining_s(context) - _CUT_BEFORE_S,
                    stop=services.stopping.set,
                )
                if not finished:
                    await _free_own_leases(services)
            finally:
                services.signals.unsubscribe(EFFECTS, wake)
                presence.cancel()
                await asyncio.gather(presence, return_exceptions=True)
                await services.heartbeat.leave()
            await _hand_on(services)


def _message_ids(event: object) -> list[str]:
    """Return the ids of SQS messages; none for an event of a schedule."""
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, list):
        return []
    return [
        str(record["messageId"])
        for record in records
        if isinstance(record, Mapping) and "messageId" in record
    ]


async def _free_own_leases(services: Services) -> None:
    keys = tuple(upstream.key for upstream in services.upstreams)
    with suppress(StoreUnavailable):  # otherwise the leases expire
        freed = await free_leases(
            services.database, keys, services.clock.now(), lambda owner: owner == services.owner
        )
        log.warning("leases_left", effects=freed)


async def _hand_on(services: Services) -> None:
    """Wake the next worker for what is due soon; what is due later, the schedule's next event finds."""
    if services.wakeups is None:
        return
    if services.stopping.is_set():
        await services.wakeups.send()
        return
    due = await services.worker.next_due()
    wait_s = (due - services.clock.now()).total_seconds() if due is not None else None
    if wait_s is not None and wait_s < _SCHEDULE_S:
        await services.wakeups.send(wait_s)


class TickFunction:
    """Runs the leader's periodic tasks that are due. When each of them ran last is in the store, so any process may be next."""

    def __init__(self, environment: LambdaEnvironment) -> None:
        self._environment = environment

    def __call__(self, _: Any, context: Any) -> Mapping[str, Any]:
        return {"ran": self._environment.run(self._tick(context))}

    async def _tick(self, context: Any) -> list[str]:
        async with self._environment.invocation(context) as services:
            if not await services.leaders.take(UPKEEP, services.clock.now()):
                log.info("tick_left_to_leader")
                return []
            renewing = asyncio.create_task(_renew_lead(services))
            ticks = Ticks(services)
            try:
                await finish_before(
                    ticks.run(),
                    stop_s=remaining_s(context) - STOP_BEFORE_S,
                    cut_s=remaining_s(context) - _CUT_BEFORE_S,
                    stop=services.stopping.set,
                )
            finally:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)
                with suppress(StoreUnavailable):  # the lease expires then
                    await services.leaders.release(UPKEEP)
        return ticks.ran


class StreamFunction:
    """Takes batches of a DynamoDB table's stream. What cannot be taken now is named, and AWS sends it again."""

    def __init__(self, environment: LambdaEnvironment) -> None:
        self._environment = environment

    def __call__(self, event: Any, context: Any) -> Mapping[str, Any]:
        return self._environment.run(self._take(event, context))

    async def _take(self, event: Any, context: Any) -> Mapping[str, Any]:
        async with self._environment.invocation(context) as services:
            return await handle_stream(event, services.stream)


async def _renew_lead(services: Services) -> None:
    while True:
        await services.clock.sleep(min(RENEW_EVERY_S, LEASE.total_seconds() / 2))
        with suppress(StoreUnavailable):
            await services.leaders.take(UPKEEP, services.clock.now())


class Ticks:
    """One round of the periodic tasks. A task that ran is leased for nearly its period, so that it is not due before."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.ran: list[str] = []

    async def run(self) -> None:
        """Run what is due, all at the same time; then raise the first error, so that Lambda tries again."""
        tasks = enumerate(leader_tasks(self._services))
        results = await asyncio.gather(
            *(self._run_if_due(f"tick {number} {task.name}", task) for number, task in tasks),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _run_if_due(self, duty: str, task: LeaderTask) -> None:
        lease = LeaderElection(self._services.database, new_owner(), leased_for(task.every_s))
        if not await lease.take(duty, self._services.clock.now()):
            return
        try:
            await task.act()
            self.ran.append(task.name)
        finally:
            if task.name not in self.ran:
                with suppress(StoreUnavailable):
                    await lease.release(duty)


def leased_for(every_s: float) -> timedelta:
    """Return how long a task is not due: less than its period, since a schedule's events do not come to the second."""
    return timedelta(seconds=max(10.0, every_s - _SCHEDULE_S / 2))
