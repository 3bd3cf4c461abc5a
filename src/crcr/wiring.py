"""The composition root: settings in, a working relay out. With `ground` and `handlers` the only place that names
concrete classes.

Tests and the demo override seams (`Seams`), never inside a module.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

import httpx
import structlog

from crcr.decide.identity import IssuerKind
from crcr.decide.model import RepoName
from crcr.deliver.allowlist_source import AllowlistRefresher, Source
from crcr.deliver.allowlist_source import FileSource as FileReader
from crcr.deliver.allowlist_source import GitHubSource as GitHubReader
from crcr.deliver.reconcile import Reconciler
from crcr.deliver.sweeper import Sweeper
from crcr.deliver.worker import Worker
from crcr.github.client import GitHubClient
from crcr.github.governor import Governor
from crcr.ground import Ground, Seams, open_ground
from crcr.handlers import effect_handlers
from crcr.past import Past
from crcr.ports import Clock, Limits, Trace
from crcr.receive.body import Bodies
from crcr.receive.callback import (
    CALLBACK,
    FAILED_AUTHENTICATION,
    NOTED_REFUSAL,
    CallbackIntake,
)
from crcr.receive.identity import OidcVerifier
from crcr.receive.ingest import IngestIntake
from crcr.receive.issuers import GITHUB_ACTIONS, Issuer, issuer_of, issuer_table, known_issuers
from crcr.receive.jwks import KeyCache, http_fetcher
from crcr.receive.sandbox import SANDBOX, SandboxDoor
from crcr.receive.webhook import WebhookIntake
from crcr.record.actions_news import ActionsNews
from crcr.record.acts import Acts
from crcr.record.allowlists import Allowlists
from crcr.record.database import Database
from crcr.record.forwards import Forwards
from crcr.record.inbox import Inbox
from crcr.record.ingested import IngestedResults
from crcr.record.installations import Installations
from crcr.record.leaders import Leaders
from crcr.record.leases import new_owner
from crcr.record.memory_limits import Rule
from crcr.record.outbox import Outbox
from crcr.record.refusals import Refusals
from crcr.record.reports import Reports
from crcr.record.sandbox import SandboxJobs
from crcr.record.self_reports import SelfReports
from crcr.record.signals import Signals
from crcr.record.targets import Targets
from crcr.settings import FileSource, Settings, UpstreamSetting
from crcr.sharing import Shared, share
from crcr.show.access import FAILED_SIGN_IN
from crcr.show.api_setup import INSPECTION, TEST_DISPATCH
from crcr.show.login import AUDITED_FAILURE
from crcr.show.metrics import Metrics
from crcr.upkeep import leaders_of, reconciler_of, sweeper_of

log = structlog.get_logger(__name__)

_BODIES_AT_ONCE = 128 * 1024 * 1024
"""For each intake: webhooks from strangers must not keep callbacks out, nor the other way round."""
PUBLIC_API = "api.github.com"
_LEASE = timedelta(seconds=120)
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
    governor: Governor
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
    stopping, webhook, owner = asyncio.Event(), _webhook(ground, inbox), new_owner()
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
        governor=ground.governor,
        owner=owner,
        worker=_worker(ground, refreshers, owner),
        metrics=ground.metrics,
        trace=ground.trace,
        webhook=webhook,
        callback=_callback(ground, keys, shared.limits, reports),
        ingest=_ingest(ground),
        http=(ground.api_http, ground.keys_http, ground.forward_http),
        stopping=stopping,
        closing=asyncio.Event(),
        on_crash=ground.seams.on_crash,
    )


def _inbox(ground: Ground) -> Inbox:
    ignored = {upstream.name.key: upstream.ignore_refs for upstream in ground.settings.upstreams}
    return Inbox(ground.database, ground.allowlists, ground.targets, ground.publishing, ignored)


def _reports(ground: Ground) -> Reports:
    return Reports(
        ground.database,
        allowlists=ground.allowlists,
        targets=ground.targets,
        forwards=_forwards(ground),
        publishing=ground.publishing,
        upstreams=ground.upstreams,
        job_timeout=ground.job_timeout,
    )


def _forwards(ground: Ground) -> Forwards:
    return Forwards(enabled=ground.settings.hud_forward_url is not None)


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


def _worker(ground: Ground, refreshers: dict[str, AllowlistRefresher], owner: str) -> Worker:
    return Worker(
        Outbox(ground.database, ground.upstreams, ground.publishing, owner=owner, lease=_LEASE),
        effect_handlers(ground, refreshers),
        clock=ground.clock,
        chance=ground.seams.chance,
        tally=ground.metrics,
        concurrency=ground.settings.worker_concurrency,
        on_crash=ground.seams.on_crash,
        trace=ground.trace,
        on_round=ground.metrics.worker_seen,
    )


def _webhook(ground: Ground, inbox: Inbox) -> WebhookIntake:
    on_github = {
        each.name: each.allowlist.place
        for each in ground.settings.upstreams
        if not isinstance(each.allowlist, FileSource)
    }
    return WebhookIntake(
        secret=ground.settings.github_webhook_secret.get_secret_value().encode(),
        bodies=Bodies(_BODIES_AT_ONCE),
        inbox=inbox,
        desk=ground.desk,
        actions_news=ActionsNews(ground.database, ground.publishing),
        installations=Installations(ground.database),
        upstreams=frozenset(ground.upstreams),
        allowlist_places=on_github,
        clock=ground.clock,
        tally=ground.metrics,
        trace=ground.trace,
    )


def _callback(ground: Ground, keys: KeyCache, limits: Limits, reports: Reports) -> CallbackIntake:
    return CallbackIntake(
        verifier=_verifier(ground.settings, keys, ground.clock),
        limits=limits,
        bodies=Bodies(_BODIES_AT_ONCE),
        reports=reports,
        trusted_proxies=ground.settings.trusted_proxies,
        clock=ground.clock,
        tally=ground.metrics,
        trace=ground.trace,
        self_reports=SelfReports(
            ground.database, reports=reports, targets=ground.targets, forwards=_forwards(ground)
        ),
        sandbox=_sandbox(ground, limits) if ground.settings.sandbox == "on" else None,
        refusals=Refusals(ground.database, ground.allowlists, ground.targets, ground.upstreams),
    )


def _sandbox(ground: Ground, limits: Limits) -> SandboxDoor:
    tried = SandboxJobs(ground.database, ground.allowlists, ground.upstreams)
    return SandboxDoor(tried, limits, f"{ground.settings.public_url.rstrip('/')}/crcr/sandbox")


def _ingest(ground: Ground) -> IngestIntake:
    token = ground.settings.hud_ingest_token
    return IngestIntake(
        token=token.get_secret_value().encode() if token else None,
        bodies=Bodies(_BODIES_AT_ONCE),
        results=IngestedResults(ground.database, ground.allowlists, ground.upstreams),
        trusted_proxies=ground.settings.trusted_proxies,
        clock=ground.clock,
        tally=ground.metrics,
    )


def issuers_of(settings: Settings) -> dict[str, Issuer]:
    """Whose tokens are taken here."""
    extra = [
        issuer_of(each.issuer, IssuerKind(each.kind), jwks_url=each.jwks_url, reads=each.reads)
        for each in settings.oidc_issuers
    ]
    told = {each.issuer for each in (*known_issuers(), *extra)}
    table = issuer_table(
        [
            *extra,
            *(
                issuer_of(each.issuer, each.kind)
                for each in settings.oidc_registrations
                if each.issuer not in told
            ),
        ]
    )
    if urlsplit(settings.github_api_url).hostname != PUBLIC_API and not any(
        each.issuer == GITHUB_ACTIONS for each in extra
    ):
        # The same names mean other repositories on a server of its own: only its own tokens count there.
        del table[GITHUB_ACTIONS]
    return table


def _verifier(settings: Settings, keys: KeyCache, clock: Clock) -> OidcVerifier:
    table, registrations = issuers_of(settings), settings.oidc_registrations
    return OidcVerifier(table, settings.oidc_audiences, keys, clock, registrations=registrations)


def source_of(upstream: UpstreamSetting, github: GitHubClient) -> Source:
    if isinstance(upstream.allowlist, FileSource):
        return FileReader(upstream.allowlist.path)
    return GitHubReader(github, upstream.allowlist.place)


__all__ = ["PUBLIC_API", "Seams", "Services", "build", "issuers_of", "source_of"]
