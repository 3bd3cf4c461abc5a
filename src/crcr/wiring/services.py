"""Settings in, wired services out. Tests and the demo override seams (`ground.Seams`), never inside a module."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import structlog

from crcr.decide.model import RepoName
from crcr.deliver.allowlist_source import AllowlistFile as FileReader
from crcr.deliver.allowlist_source import AllowlistOnGitHub as GitHubReader
from crcr.deliver.allowlist_source import AllowlistRefresher, AllowlistSource
from crcr.deliver.leases import LEASE, Presence
from crcr.deliver.periodic.reconcile import Reconciler
from crcr.deliver.periodic.sweeper import Sweeper
from crcr.deliver.periodic.worker_heartbeat import WorkerHeartbeat
from crcr.deliver.worker import Worker
from crcr.github.client import GitHubClient
from crcr.github.http.rate_limiter import RateLimiter
from crcr.ports import Clock, Limits, Trace
from crcr.receive.callback.intake import (
    CALLBACK,
    FAILED_AUTHENTICATION,
    NOTED_REFUSAL,
    CallbackIntake,
)
from crcr.receive.callback.sandbox import SANDBOX
from crcr.receive.ingest.intake import IngestIntake
from crcr.receive.oidc.jwks import KeyCache, http_fetcher
from crcr.receive.webhook.intake import WebhookIntake
from crcr.record.admin.operations import Acts
from crcr.record.deliveries.inbox import Inbox
from crcr.record.limits.memory import Rule
from crcr.record.outbox.claims import Outbox
from crcr.record.outbox.leader import Leaders
from crcr.record.outbox.leases import new_owner
from crcr.record.reports.reports import Reports
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Targets
from crcr.record.store.database import Database
from crcr.record.store.signals import Signals
from crcr.settings import FileSource, Settings, UpstreamSetting
from crcr.show.access.login import AUDITED_FAILURE
from crcr.show.access.middleware import FAILED_SIGN_IN
from crcr.show.api.setup import INSPECTION, TEST_DISPATCH
from crcr.show.live.shared_health import SharedHealth
from crcr.show.metrics.registry import Metrics
from crcr.wiring.clickhouse import Past
from crcr.wiring.core import Core, Seams, open_ground, outcomes_of
from crcr.wiring.effect_handlers import effect_handlers
from crcr.wiring.intakes import callback_intake, ingest_intake, webhook_intake
from crcr.wiring.periodic import attendance_of, leaders_of, reconciler_of, sweeper_of
from crcr.wiring.redis import Shared, share

log = structlog.get_logger(__name__)

_FAILED_PER_MINUTE = 30
_FAILED_SIGN_INS = 10
"""A minute, for each address."""
_NOTED_REFUSALS = 30
"""A minute, for each repository; the rest are refused all the same, and not written down."""
_SANDBOX_REPORTS = 20
"""An hour, for each repository."""
_INSPECTIONS = 30
"""A minute, for each address; a repository is looked at once a minute, whoever asks."""
_TESTS = 6
"""An hour, for each repository."""
_AUDITED_FAILURES = 60
"""Failed log-ins that the audit log takes in an hour, from all addresses together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The relay's parts, wired. `close` lets go of everything they hold."""

    settings: Settings
    clock: Clock
    database: Database
    past: Past
    signals: Signals
    upstreams: tuple[RepoName, ...]
    allowlists: Allowlists
    targets: Targets
    inbox: Inbox
    reports: Reports
    acts: Acts
    limits: Limits
    shared: Shared
    github: GitHubClient
    keys: KeyCache
    refreshers: dict[str, AllowlistRefresher]
    sweeper: Sweeper
    reconciler: Reconciler
    leaders: Leaders
    attendance: WorkerHeartbeat
    limiter: RateLimiter
    owner: str
    """Who this process is, as a holder of leases."""
    worker: Worker
    metrics: Metrics
    trace: Trace
    webhook: WebhookIntake
    callback: CallbackIntake
    ingest: IngestIntake
    http: tuple[httpx.AsyncClient, ...]
    on_crash: Callable[[Exception], None]
    health: SharedHealth
    stopping: asyncio.Event
    """Set when the process begins to stop: workers finish what is under way, another process leads."""
    closing: asyncio.Event
    """Set when it takes no more requests: live streams end."""
    deaths: list[BaseException] = field(default_factory=list)
    """What ended a loop that should never end; the process stops when there is one."""

    async def close(self) -> None:
        await self.keys.aclose()
        await self.shared.aclose()
        await self.past.close()
        for client in self.http:
            await client.aclose()
        await self.database.close()
        await self.trace.close()


def build(settings: Settings, seams: Seams | None = None) -> Services:
    """Open the store, bring its schema up to date, and wire everything to it."""
    ground = open_ground(settings, seams or Seams())
    clock, database, settings = ground.clock, ground.database, ground.settings
    shared, inbox, reports = share(ground, _rules(settings)), _inbox(ground), _reports(ground)
    keys = KeyCache(
        http_fetcher(ground.keys_http), clock, on_read=ground.metrics.keys_read, shared=shared.key_sets
    )
    stopping, webhook, owner = asyncio.Event(), webhook_intake(ground, inbox), new_owner()
    attendance = attendance_of(ground, owner)
    refreshers = {
        each.name.key: AllowlistRefresher(each.name, source_of(each, ground.github), ground.allowlists, clock)
        for each in settings.upstreams
    }
    return Services(
        settings=settings,
        clock=clock,
        database=database,
        past=ground.past,
        signals=ground.signals,
        upstreams=ground.upstreams,
        allowlists=ground.allowlists,
        targets=ground.targets,
        inbox=inbox,
        reports=reports,
        acts=Acts(database, ground.targets, ground.allowlists),
        limits=shared.limits,
        shared=shared,
        github=ground.github,
        keys=keys,
        refreshers=refreshers,
        sweeper=sweeper_of(ground, stopping),
        reconciler=reconciler_of(ground, webhook, stopping),
        leaders=leaders_of(ground, owner),
        attendance=attendance,
        limiter=ground.limiter,
        owner=owner,
        worker=_worker(ground, refreshers, owner, attendance),
        metrics=ground.metrics,
        trace=ground.trace,
        webhook=webhook,
        callback=callback_intake(ground, keys, shared.limits, reports),
        ingest=ingest_intake(ground),
        http=(ground.api_http, ground.keys_http, ground.forward_http),
        stopping=stopping,
        closing=asyncio.Event(),
        on_crash=ground.seams.on_crash,
        health=ground.health,
    )


def _inbox(ground: Core) -> Inbox:
    ignored = {upstream.name.key: upstream.ignore_refs for upstream in ground.settings.upstreams}
    return Inbox(ground.database, ground.allowlists, ground.targets, ground.refresher, ignored)


def _reports(ground: Core) -> Reports:
    return Reports(
        ground.database,
        allowlists=ground.allowlists,
        targets=ground.targets,
        outcomes=outcomes_of(ground),
        refresher=ground.refresher,
        upstreams=ground.upstreams,
        job_timeout=ground.job_timeout,
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


def _worker(
    ground: Core, refreshers: dict[str, AllowlistRefresher], owner: str, presence: Presence
) -> Worker:
    return Worker(
        Outbox(ground.database, ground.upstreams, ground.refresher, owner=owner, lease=LEASE),
        effect_handlers(ground, refreshers),
        clock=ground.clock,
        chance=ground.seams.chance,
        tally=ground.metrics,
        concurrency=ground.settings.worker_concurrency,
        on_crash=ground.seams.on_crash,
        trace=ground.trace,
        on_round=ground.metrics.worker_seen,
        presence=presence,
    )


def source_of(upstream: UpstreamSetting, github: GitHubClient) -> AllowlistSource:
    if isinstance(upstream.allowlist, FileSource):
        return FileReader(upstream.allowlist.path)
    return GitHubReader(github.repositories, upstream.allowlist.place)
