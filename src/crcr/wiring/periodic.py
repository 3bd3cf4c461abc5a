"""The parts of a relay that time drives, wired: sweeping, forgetting, reconciling, and who leads in them."""

import asyncio
from datetime import timedelta
from functools import partial

from crcr.deliver.periodic.leader_tasks import LEASE
from crcr.deliver.periodic.reconcile import Reconciler
from crcr.deliver.periodic.recover_webhooks import Intake, Recovery
from crcr.deliver.periodic.sweeper import Sweeper
from crcr.deliver.periodic.worker_count import Attendance
from crcr.record.checks.refresh import CheckRepairs
from crcr.record.deliveries.webhooks import RecoveryStore
from crcr.record.outbox.leader import Leaders
from crcr.record.outbox.worker_registry import RollCall
from crcr.record.upkeep.retention import Keeps, Retention
from crcr.record.upkeep.timeouts import Sweeps
from crcr.record.workflow_runs.unanswered import Silences
from crcr.settings import Settings
from crcr.wiring.core import Core, build_outcomes

_BREATH_S = 0.02
"""Between two steps of forgetting: whoever waits to write gets most of the time."""


def build_leaders(core: Core, owner: str) -> Leaders:
    return Leaders(core.database, owner, LEASE)


def build_worker_count(core: Core, owner: str) -> Attendance:
    roll_call = RollCall(core.database, owner, tuple(each.key for each in core.upstreams))
    return Attendance(roll_call, core.limiter.share_among, clock=core.clock)


def build_sweeper(core: Core, stopping: asyncio.Event) -> Sweeper:
    retention = Retention(
        core.database,
        retention_periods(core.settings),
        goes_on=lambda: not stopping.is_set(),
        breathe=partial(asyncio.sleep, _BREATH_S),
    )
    sweeps = Sweeps(core.database, core.refresher, build_outcomes(core))
    return Sweeper(sweeps, retention, core.checks, core.clock)


def retention_periods(settings: Settings) -> Keeps:
    return Keeps(
        bodies=timedelta(days=settings.keep_bodies_days),
        effects=timedelta(days=settings.keep_effects_days),
        jobs=_days_or_ever(settings.keep_jobs_days),
        audit=_days_or_ever(settings.keep_audit_days),
    )


def _days_or_ever(days: int) -> timedelta | None:
    return timedelta(days=days) if days else None


def build_reconciler(core: Core, intake: Intake, stopping: asyncio.Event) -> Reconciler:
    silences = Silences(core.database, core.allowlists, core.upstreams, core.job_timeout)
    repairs = CheckRepairs(core.database, core.refresher, core.upstreams)
    recovery = Recovery(
        core.github.delivery_log,
        RecoveryStore(core.database),
        intake,
        clock=core.clock,
        stopping=stopping,
        on_crash=core.seams.on_crash,
    )
    return Reconciler(recovery, silences, repairs, core.clock)
