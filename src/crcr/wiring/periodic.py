"""The parts of a relay that time drives, wired: sweeping, forgetting, reconciling, and who leads in them."""

import asyncio
from datetime import timedelta
from functools import partial

from crcr.deliver.periodic.leader_tasks import LEASE
from crcr.deliver.periodic.reconcile import Reconciler, Recovery, RecoveryIntake
from crcr.deliver.periodic.sweeper import Sweeper
from crcr.deliver.periodic.worker_heartbeat import WorkerHeartbeat
from crcr.record.checks.refresh import CheckRepairs
from crcr.record.deliveries.missed_webhooks import RecoveryStore
from crcr.record.outbox.leader import Leaders
from crcr.record.outbox.worker_registry import RollCall
from crcr.record.upkeep.retention import Keeps, Retention
from crcr.record.upkeep.timeouts import Sweeps
from crcr.record.workflow_runs.unanswered import Silences
from crcr.settings import Settings
from crcr.wiring.core import Core, outcomes_of

_BREATH_S = 0.02
"""Between two steps of forgetting: whoever waits to write gets most of the time."""


def leaders_of(ground: Core, owner: str) -> Leaders:
    return Leaders(ground.database, owner, LEASE)


def attendance_of(ground: Core, owner: str) -> WorkerHeartbeat:
    roll_call = RollCall(ground.database, owner, tuple(each.key for each in ground.upstreams))
    return WorkerHeartbeat(roll_call, ground.limiter.share_among, clock=ground.clock)


def sweeper_of(ground: Core, stopping: asyncio.Event) -> Sweeper:
    retention = Retention(
        ground.database,
        keeps_of(ground.settings),
        goes_on=lambda: not stopping.is_set(),
        breathe=partial(asyncio.sleep, _BREATH_S),
    )
    sweeps = Sweeps(ground.database, ground.refresher, outcomes_of(ground))
    return Sweeper(sweeps, retention, ground.checks, ground.clock)


def keeps_of(settings: Settings) -> Keeps:
    return Keeps(
        bodies=timedelta(days=settings.keep_bodies_days),
        effects=timedelta(days=settings.keep_effects_days),
        jobs=_days_or_ever(settings.keep_jobs_days),
        audit=_days_or_ever(settings.keep_audit_days),
    )


def _days_or_ever(days: int) -> timedelta | None:
    return timedelta(days=days) if days else None


def reconciler_of(ground: Core, intake: RecoveryIntake, stopping: asyncio.Event) -> Reconciler:
    silences = Silences(ground.database, ground.allowlists, ground.upstreams, ground.job_timeout)
    repairs = CheckRepairs(ground.database, ground.refresher, ground.upstreams)
    recovery = Recovery(
        ground.github.delivery_log,
        RecoveryStore(ground.database),
        intake,
        clock=ground.clock,
        stopping=stopping,
        on_crash=ground.seams.on_crash,
    )
    return Reconciler(recovery, silences, repairs, ground.clock)
