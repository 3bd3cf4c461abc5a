"""Builds all services from the settings. Tests and the demo replace parts through `core.Seams`, never inside a module."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import httpx
import structlog

from crcr.decide.model import RepoName
from crcr.deliver.allowlist_source import (
    AllowlistFileSource,
    AllowlistGitHubSource,
    AllowlistRefresher,
    AllowlistSource,
)
from crcr.deliver.held_effects import LEASE, Presence
from crcr.deliver.periodic.leader_tasks import LEASE as LEADER_LEASE
from crcr.deliver.periodic.reconcile import Reconciler, Recovery, RecoveryIntake
from crcr.deliver.periodic.sweeper import Sweeper
from crcr.deliver.periodic.worker_heartbeat import WorkerHeartbeat
from crcr.deliver.worker import Worker, WorkerMonitoring
from crcr.github.client import GitHubClient
from crcr.github.http.rate_limiter import GitHubRateLimiter
from crcr.ports import (
    AUDITED_FAILURE,
    FAILED_SIGN_IN,
    INSPECTION,
    TEST_DISPATCH,
    Clock,
    RequestLimiter,
    Trace,
)
from crcr.receive.callback.intake import (
    CALLBACK,
    FAILED_AUTHENTICATION,
    NOTED_REFUSAL,
    CallbackIntake,
)
from crcr.receive.callback.sandbox import SANDBOX
from crcr.receive.ingest.dynamodb_stream import StreamIntake
from crcr.receive.ingest.intake import IngestIntake
from crcr.receive.oidc.jwks import KeyCache, http_fetcher
from crcr.receive.webhook.intake import WebhookIntake
from crcr.record.admin.operations import AdminOperations
from crcr.record.bisection.bisections import Bisections
from crcr.record.checks.refresh import CheckRepairs
from crcr.record.deliveries.inbox import Inbox
from crcr.record.deliveries.webhooks import RecoveryStore
from crcr.record.failures.recompute import FingerprintUpdate
from crcr.record.in_tree.upkeep import InTreeUpkeep
from crcr.record.jobs.reports import Reports
from crcr.record.levels.evaluations import Levels
from crcr.record.limits.memory import Rule
from crcr.record.notices.watch import NoticeWatch
from crcr.record.outbox.claims import Outbox
from crcr.record.outbox.leader_and_workers import LeaderElection, WorkerRegistry, new_owner
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.store.database import Database
from crcr.record.store.signals import Signals
from crcr.record.store.sqs_wakeups import SqsWakeups
from crcr.record.upkeep.retention import Retention, RetentionPeriods
from crcr.record.upkeep.timeouts import Sweeps
from crcr.record.workflow_runs.unanswered import UnansweredDispatches
from crcr.settings import AllowlistFile, Settings, UpstreamSetting
from crcr.show.live.shared_health import SharedHealth
from crcr.show.metrics.registry import RelayMetrics
from crcr.wiring.clickhouse import ClickHouse
from crcr.wiring.core import Core, Seams, build_failure_recorder, build_outcomes, open_core, web_url
from crcr.wiring.effect_handlers import effect_handlers, shadow_plans
from crcr.wiring.intakes import callback_intake, ingest_intake, stream_intake, webhook_intake
from crcr.wiring.rate_limits import RelayRateLimits, open_rate_limits
from crcr.wiring.secret_rotation import SecretRotation

log = structlog.get_logger(__name__)

_FAILED_PER_MINUTE = 30
_FAILED_SIGN_INS = 10
"""Per minute and address."""
_NOTED_REFUSALS = 30
"""Per minute and repository; further refusals are not recorded."""
_SANDBOX_REPORTS = 20
"""Per hour and repository."""
_INSPECTIONS = 30
"""Per minute and address; one repository is inspected at most once a minute."""
_TESTS = 6
"""Per hour and repository."""
_AUDITED_FAILURES = 60
"""Failed log-ins recorded in the audit log per hour, from all addresses together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The relay's parts, wired. `close` releases all their resources."""

    settings: Settings
    clock: Clock
    database: Database
    clickhouse: ClickHouse
    signals: Signals
    wakeups: SqsWakeups | None
    """The queue that commits with new effects wake; None without one."""
    upstreams: tuple[RepoName, ...]
    allowlists: Allowlists
    targets: Downstreams
    inbox: Inbox
    reports: Reports
    acts: AdminOperations
    bisections: Bisections
    levels: Levels
    limits: RequestLimiter
    rate_limits: RelayRateLimits
    github: GitHubClient
    keys: KeyCache
    refreshers: dict[str, AllowlistRefresher]
    sweeper: Sweeper
    reconciler: Reconciler
    leaders: LeaderElection
    heartbeat: WorkerHeartbeat
    limiter: GitHubRateLimiter
    secrets: SecretRotation
    owner: str
    """This process as an owner of leases."""
    worker: Worker
    metrics: RelayMetrics
    trace: Trace
    webhook: WebhookIntake
    callback: CallbackIntake
    ingest: IngestIntake
    stream: StreamIntake
    http: tuple[httpx.AsyncClient, ...]
    on_crash: Callable[[Exception], None]
    health: SharedHealth
    pages_kept_for_s: float | None
    stopping: asyncio.Event
    """Set when the process begins to stop: workers finish running effects, another process becomes leader."""
    closing: asyncio.Event
    """Set when no more requests are accepted: live streams end."""
    loop_errors: list[BaseException] = field(default_factory=list)
    """Errors that ended a background loop; the process stops at the first."""

    async def renew_connections(self) -> None:
        """Close idle connections to the stores: after the process was paused they may be dead."""
        await self.database.renew_connections()
        await self.rate_limits.renew_connections()

    async def close(self) -> None:
        if self.wakeups is not None:
            await self.wakeups.flush()
        await self.keys.aclose()
        await self.rate_limits.aclose()
        await self.clickhouse.close()
        for client in self.http:
            await client.aclose()
        await self.database.close()
        await self.trace.close()


def build(settings: Settings, seams: Seams | None = None, *, for_pages: bool = False) -> Services:
    """Open the store, migrate its schema, and wire all services to it; `for_pages` if the process only serves pages."""
    core = open_core(settings, seams or Seams(), for_pages=for_pages)
    clock, database, settings = core.clock, core.database, core.settings
    rate_limits, inbox, reports = open_rate_limits(core, _rules(settings)), _inbox(core), _reports(core)
    keys = KeyCache(http_fetcher(core.keys_http), clock, on_read=core.metrics.keys_read)
    stopping, webhook, owner = asyncio.Event(), webhook_intake(core, inbox), new_owner()
    heartbeat = build_worker_heartbeat(core, owner)
    refreshers = _refreshers(core)
    return Services(
        settings=settings,
        clock=clock,
        database=database,
        clickhouse=core.clickhouse,
        signals=core.signals,
        wakeups=core.wakeups,
        upstreams=core.upstreams,
        allowlists=core.allowlists,
        targets=core.targets,
        inbox=inbox,
        reports=reports,
        acts=AdminOperations(database, core.targets, core.allowlists),
        bisections=core.bisections,
        levels=core.levels,
        limits=rate_limits.limits,
        rate_limits=rate_limits,
        github=core.github,
        keys=keys,
        refreshers=refreshers,
        sweeper=build_sweeper(core, stopping),
        reconciler=build_reconciler(core, webhook, stopping),
        leaders=build_leaders(core, owner),
        heartbeat=heartbeat,
        limiter=core.limiter,
        secrets=core.secrets,
        owner=owner,
        worker=_worker(core, refreshers, owner, heartbeat),
        metrics=core.metrics,
        trace=core.trace,
        webhook=webhook,
        callback=callback_intake(core, keys, rate_limits.limits, reports),
        ingest=ingest_intake(core),
        stream=stream_intake(core),
        http=(core.api_http, core.keys_http, core.forward_http),
        stopping=stopping,
        closing=asyncio.Event(),
        on_crash=core.seams.on_crash,
        health=core.health,
        pages_kept_for_s=core.seams.pages_kept_for_s,
    )


def _refreshers(core: Core) -> dict[str, AllowlistRefresher]:
    return {
        upstream.name.key: AllowlistRefresher(
            upstream.name, allowlist_source(upstream, core.github), core.allowlists, core.clock
        )
        for upstream in core.settings.upstreams
    }


def _inbox(core: Core) -> Inbox:
    ignored = {upstream.name.key: upstream.ignore_refs for upstream in core.settings.upstreams}
    github_url = web_url(core.settings)
    return Inbox(core.database, core.allowlists, core.refresher, ignored, github_url=github_url)


def _reports(core: Core) -> Reports:
    return Reports(
        core.database,
        allowlists=core.allowlists,
        targets=core.targets,
        outcomes=build_outcomes(core),
        refresher=core.refresher,
        upstreams=core.upstreams,
        job_timeout=core.job_timeout,
    )


def _rules(settings: Settings) -> dict[str, Rule]:
    return {
        CALLBACK: Rule(settings.rate_limit_per_min, 60.0),
        FAILED_AUTHENTICATION: Rule(_FAILED_PER_MINUTE, 60.0),
        FAILED_SIGN_IN: Rule(_FAILED_SIGN_INS, 60.0),
        AUDITED_FAILURE: Rule(_AUDITED_FAILURES, 3600.0),
        NOTED_REFUSAL: Rule(_NOTED_REFUSALS, 60.0),
        SANDBOX: Rule(_SANDBOX_REPORTS, 3600.0),
        INSPECTION: Rule(_INSPECTIONS, 60.0),
        TEST_DISPATCH: Rule(_TESTS, 3600.0),
    }


def _worker(core: Core, refreshers: dict[str, AllowlistRefresher], owner: str, presence: Presence) -> Worker:
    handlers = effect_handlers(core, refreshers)
    return Worker(
        Outbox(core.database, core.upstreams, core.refresher, owner=owner, lease=LEASE),
        handlers,
        clock=core.clock,
        chance=core.seams.chance,
        monitoring=WorkerMonitoring(
            counters=core.metrics,
            trace=core.trace,
            on_crash=core.seams.on_crash,
            on_cycle=core.metrics.worker_seen,
        ),
        concurrency=core.settings.worker_concurrency,
        presence=presence,
        shadow_plans=shadow_plans(handlers) if core.settings.is_shadow else None,
    )


def allowlist_source(upstream: UpstreamSetting, github: GitHubClient) -> AllowlistSource:
    if isinstance(upstream.allowlist, AllowlistFile):
        return AllowlistFileSource(upstream.allowlist.path)
    return AllowlistGitHubSource(github.repositories, upstream.allowlist.location)


_RETENTION_PAUSE_S = 0.02
"""Pause between two steps of retention, and of new fingerprints, so that other writers get most of the time."""


def build_leaders(core: Core, owner: str) -> LeaderElection:
    return LeaderElection(core.database, owner, LEADER_LEASE)


def build_worker_heartbeat(core: Core, owner: str) -> WorkerHeartbeat:
    registry = WorkerRegistry(core.database, owner, tuple(upstream.key for upstream in core.upstreams))
    return WorkerHeartbeat(registry, core.limiter.share_among, clock=core.clock)


def build_sweeper(core: Core, stopping: asyncio.Event) -> Sweeper:
    def goes_on() -> bool:
        return not stopping.is_set()

    breathe = partial(asyncio.sleep, _RETENTION_PAUSE_S)
    return Sweeper(
        Sweeps(core.database, core.refresher, build_outcomes(core)),
        Retention(core.database, retention_periods(core.settings), goes_on=goes_on, breathe=breathe),
        core.checks,
        core.known_failures,
        FingerprintUpdate(
            core.database, build_failure_recorder(core), core.clock, goes_on=goes_on, breathe=breathe
        ),
        in_tree=InTreeUpkeep(core.database),
        bisections=core.bisections,
        pairs=core.pairs,
        notices=NoticeWatch(core.database, core.allowlists, core.upstreams),
        levels=core.levels,
        clock=core.clock,
    )


def retention_periods(settings: Settings) -> RetentionPeriods:
    return RetentionPeriods(
        bodies=timedelta(days=settings.keep_bodies_days),
        effects=timedelta(days=settings.keep_effects_days),
        jobs=_days_or_forever(settings.keep_jobs_days),
        audit=_days_or_forever(settings.keep_audit_days),
    )


def _days_or_forever(days: int) -> timedelta | None:
    return timedelta(days=days) if days else None


def build_reconciler(core: Core, intake: RecoveryIntake, stopping: asyncio.Event) -> Reconciler:
    silences = UnansweredDispatches(core.database, core.allowlists, core.upstreams, core.job_timeout)
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
