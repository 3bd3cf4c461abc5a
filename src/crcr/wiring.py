"""The composition root: settings in, a working relay out. The only place that names concrete classes.

Tests and the demo override seams here (`Seams`), never inside a module.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

import httpx
import structlog

from crcr.clock import SystemClock
from crcr.decide.effects import ClaimedEffect
from crcr.decide.identity import IssuerKind
from crcr.decide.model import EffectKind, RepoName
from crcr.deliver.allowlist_source import AllowlistRefresher, Source
from crcr.deliver.allowlist_source import FileSource as FileReader
from crcr.deliver.allowlist_source import GitHubSource as GitHubReader
from crcr.deliver.effects import ConfirmHead, IdentifyRepository, RefreshAllowlist, SendDispatch
from crcr.deliver.forward import ForwardResult
from crcr.deliver.sweeper import Sweeper
from crcr.deliver.worker import Handler, Worker
from crcr.errors import BadSettings
from crcr.github.app_auth import AppAuth
from crcr.github.client import GitHubClient
from crcr.github.governor import Governor
from crcr.github.lanes import open_http
from crcr.github.tokens import TokenCache
from crcr.ports import Clock
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.receive.body import Bodies
from crcr.receive.callback import CALLBACK, FAILED_AUTHENTICATION, CallbackIntake
from crcr.receive.identity import OidcVerifier
from crcr.receive.issuers import GITHUB_ACTIONS, issuer_of, issuer_table
from crcr.receive.jwks import KeyCache, http_fetcher
from crcr.receive.webhook import WebhookIntake
from crcr.record.acts import Acts
from crcr.record.allowlists import Allowlists
from crcr.record.dispatch_loads import DispatchLoads
from crcr.record.doubts import Doubts
from crcr.record.forwards import Forwards
from crcr.record.inbox import Inbox
from crcr.record.installations import Installations
from crcr.record.leases import new_owner
from crcr.record.memory_limits import MemoryLimits, Rule
from crcr.record.migrate import migrate
from crcr.record.outbox import Outbox
from crcr.record.reports import Reports
from crcr.record.signals import Signals
from crcr.record.sqlite import SqliteDatabase
from crcr.record.sweeps import Sweeps
from crcr.record.targets import Targets
from crcr.settings import FileSource, Settings, UpstreamSetting
from crcr.show.metrics import Metrics

log = structlog.get_logger(__name__)

_BODIES_AT_ONCE = 128 * 1024 * 1024
"""For each intake: webhooks from strangers must not keep callbacks out, nor the other way round."""
PUBLIC_API = "api.github.com"
_LEASE = timedelta(seconds=120)
_FAILED_PER_MINUTE = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """What a test, a bench or the demo may put in place of the real thing."""

    clock: Clock = field(default_factory=SystemClock)
    http: Callable[[str], httpx.AsyncClient] = open_http
    chance: Callable[[], float] = random.random
    on_crash: Callable[[Exception], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The relay's parts, wired. `close` lets go of everything they hold."""

    settings: Settings
    clock: Clock
    database: SqliteDatabase
    signals: Signals
    upstreams: tuple[RepoName, ...]
    allowlists: Allowlists
    targets: Targets
    inbox: Inbox
    reports: Reports
    acts: Acts
    limits: MemoryLimits
    github: GitHubClient
    keys: KeyCache
    refreshers: dict[str, AllowlistRefresher]
    sweeper: Sweeper
    worker: Worker
    metrics: Metrics
    webhook: WebhookIntake
    callback: CallbackIntake
    http: tuple[httpx.AsyncClient, ...]
    on_crash: Callable[[Exception], None]
    stopping: asyncio.Event
    """Set when the process begins to stop: workers finish what is under way, live streams end."""
    deaths: list[BaseException] = field(default_factory=list)
    """What ended a loop that should never end; the process stops when there is one."""

    async def close(self) -> None:
        await self.keys.aclose()
        for client in self.http:
            await client.aclose()
        await self.database.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """What everything else stands on: the store, the clock, the ways out."""

    settings: Settings
    seams: Seams
    signals: Signals
    metrics: Metrics
    database: SqliteDatabase
    targets: Targets
    allowlists: Allowlists
    api_http: httpx.AsyncClient
    keys_http: httpx.AsyncClient
    forward_http: httpx.AsyncClient
    github: GitHubClient

    @property
    def clock(self) -> Clock:
        return self.seams.clock

    @property
    def upstreams(self) -> tuple[RepoName, ...]:
        return tuple(upstream.name for upstream in self.settings.upstreams)


def build(settings: Settings, seams: Seams | None = None) -> Services:
    """Open the store, bring its schema up to date, and wire everything to it."""
    ground = _ground(settings, seams or Seams())
    clock, database, settings = ground.clock, ground.database, ground.settings
    keys, inbox, reports, limits = (
        KeyCache(http_fetcher(ground.keys_http), clock),
        _inbox(ground),
        _reports(ground),
        _limits(ground),
    )
    refreshers = {
        each.name.key: AllowlistRefresher(each.name, _source(each, ground.github), ground.allowlists, clock)
        for each in settings.upstreams
    }
    return Services(
        settings=settings,
        clock=clock,
        database=database,
        signals=ground.signals,
        upstreams=ground.upstreams,
        allowlists=ground.allowlists,
        targets=ground.targets,
        inbox=inbox,
        reports=reports,
        acts=Acts(database, ground.targets, ground.allowlists),
        limits=limits,
        github=ground.github,
        keys=keys,
        refreshers=refreshers,
        sweeper=Sweeper(Sweeps(database, timedelta(days=settings.keep_bodies_days)), clock),
        worker=_worker(ground, refreshers),
        metrics=ground.metrics,
        webhook=_webhook(ground, inbox),
        callback=_callback(ground, keys, limits, reports),
        http=(ground.api_http, ground.keys_http, ground.forward_http),
        stopping=asyncio.Event(),
        on_crash=ground.seams.on_crash,
    )


def _ground(settings: Settings, seams: Seams) -> _Ground:
    migrate(settings.database.path)
    signals = Signals()
    database = SqliteDatabase(settings.database.path, signals)
    targets = Targets(database)
    api_http = seams.http(settings.github_api_url)
    return _Ground(
        settings=settings,
        seams=seams,
        signals=signals,
        metrics=Metrics(),
        database=database,
        targets=targets,
        allowlists=Allowlists(database, targets, read_allowlist),
        api_http=api_http,
        keys_http=seams.http(GITHUB_ACTIONS),
        forward_http=seams.http(settings.hud_forward_url or GITHUB_ACTIONS),
        github=_github(settings, api_http, seams.clock),
    )


def _inbox(ground: _Ground) -> Inbox:
    ignored = {upstream.name.key: upstream.ignore_refs for upstream in ground.settings.upstreams}
    return Inbox(ground.database, ground.allowlists, ground.targets, ignored)


def _reports(ground: _Ground) -> Reports:
    return Reports(
        ground.database,
        allowlists=ground.allowlists,
        targets=ground.targets,
        forwards=Forwards(enabled=ground.settings.hud_forward_url is not None),
        upstreams=ground.upstreams,
        job_timeout=timedelta(seconds=ground.settings.job_timeout_s),
    )


def _limits(ground: _Ground) -> MemoryLimits:
    callbacks = Rule(ground.settings.rate_limit_per_min, 60.0)
    failures = Rule(_FAILED_PER_MINUTE, 60.0)
    return MemoryLimits({CALLBACK: callbacks, FAILED_AUTHENTICATION: failures}, ground.clock)


def _worker(ground: _Ground, refreshers: dict[str, AllowlistRefresher]) -> Worker:
    return Worker(
        Outbox(ground.database, ground.upstreams, owner=new_owner(), lease=_LEASE),
        _handlers(ground, refreshers),
        clock=ground.clock,
        chance=ground.seams.chance,
        tally=ground.metrics,
        concurrency=ground.settings.worker_concurrency,
        on_crash=ground.seams.on_crash,
    )


def _webhook(ground: _Ground, inbox: Inbox) -> WebhookIntake:
    on_github = {
        each.name: each.allowlist.place
        for each in ground.settings.upstreams
        if not isinstance(each.allowlist, FileSource)
    }
    return WebhookIntake(
        secret=ground.settings.github_webhook_secret.get_secret_value().encode(),
        bodies=Bodies(_BODIES_AT_ONCE),
        inbox=inbox,
        installations=Installations(ground.database),
        upstreams=frozenset(ground.upstreams),
        allowlist_places=on_github,
        clock=ground.clock,
        tally=ground.metrics,
    )


def _callback(ground: _Ground, keys: KeyCache, limits: MemoryLimits, reports: Reports) -> CallbackIntake:
    return CallbackIntake(
        verifier=_verifier(ground.settings, keys, ground.clock),
        limits=limits,
        bodies=Bodies(_BODIES_AT_ONCE),
        reports=reports,
        trusted_proxies=ground.settings.trusted_proxies,
        clock=ground.clock,
        tally=ground.metrics,
    )


def _github(settings: Settings, http: httpx.AsyncClient, clock: Clock) -> GitHubClient:
    try:
        auth = AppAuth(settings.github_app_id, settings.github_app_private_key.get_secret_value(), clock)
    except ValueError as fault:
        raise BadSettings([f"CRCR_GITHUB_APP_PRIVATE_KEY: {fault}"]) from None
    return GitHubClient(
        http,
        api_url=settings.github_api_url,
        auth=auth,
        tokens=TokenCache(clock),
        governor=Governor(),
        clock=clock,
    )


def _verifier(settings: Settings, keys: KeyCache, clock: Clock) -> OidcVerifier:
    extra = [
        issuer_of(each.issuer, IssuerKind(each.kind), jwks_url=each.jwks_url)
        for each in settings.oidc_issuers
    ]
    table = issuer_table(extra)
    if urlsplit(settings.github_api_url).hostname != PUBLIC_API and not any(
        each.issuer == GITHUB_ACTIONS for each in extra
    ):
        # The same names mean other repositories on a server of its own: only its own tokens count there.
        del table[GITHUB_ACTIONS]
    return OidcVerifier(table, settings.oidc_audiences, keys, clock)


def _source(upstream: UpstreamSetting, github: GitHubClient) -> Source:
    if isinstance(upstream.allowlist, FileSource):
        return FileReader(upstream.allowlist.path)
    return GitHubReader(github, upstream.allowlist.place)


def _handlers(ground: _Ground, refreshers: dict[str, AllowlistRefresher]) -> dict[EffectKind, Handler]:
    settings, github, clock = ground.settings, ground.github, ground.clock
    return {
        EffectKind.SEND_DISPATCH: SendDispatch(
            DispatchLoads(ground.database),
            ground.targets,
            github,
            callback_url=f"{settings.public_url.rstrip('/')}/github/callback",
            audience=settings.oidc_audiences[0],
        ),
        EffectKind.IDENTIFY_REPOSITORY: IdentifyRepository(ground.targets, github, clock),
        EffectKind.CONFIRM_HEAD: ConfirmHead(Doubts(ground.database, ground.allowlists), github, clock),
        EffectKind.REFRESH_ALLOWLIST: RefreshAllowlist(refreshers),
        EffectKind.FORWARD_RESULT: _forwarder(settings, ground.forward_http),
    }


def _forwarder(settings: Settings, http: httpx.AsyncClient) -> Handler:
    if settings.hud_forward_url is None or settings.hud_forward_token is None:
        return _not_wanted
    return ForwardResult(http, settings.hud_forward_url, settings.hud_forward_token.get_secret_value())


async def _not_wanted(_: ClaimedEffect) -> bool:
    """Forwarding was turned off while results waited for it."""
    return False
