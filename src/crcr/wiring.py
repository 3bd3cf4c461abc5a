"""The composition root: settings in, a working relay out. The only place that names concrete classes.

Tests and the demo override seams here (`Seams`), never inside a module.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
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
from crcr.deliver.sweeper import FORGET_EVERY_S, REFRESH_EVERY_S, SWEEP_EVERY_S, Sweeper, repeat
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
from crcr.record.leases import free_leases, new_owner
from crcr.record.memory_limits import MemoryLimits, Rule
from crcr.record.migrate import migrate
from crcr.record.outbox import Outbox
from crcr.record.reports import Reports
from crcr.record.signals import EFFECTS, Signals
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


def build(settings: Settings, seams: Seams | None = None) -> Services:
    """Open the store, bring its schema up to date, and wire everything to it."""
    seams = seams or Seams()
    clock, signals, metrics = seams.clock, Signals(), Metrics()
    migrate(settings.database.path)
    database = SqliteDatabase(settings.database.path, signals)
    upstreams = tuple(upstream.name for upstream in settings.upstreams)
    targets = Targets(database)
    allowlists = Allowlists(database, targets, read_allowlist)
    api_http, keys_http = seams.http(settings.github_api_url), seams.http(GITHUB_ACTIONS)
    forward_http = seams.http(settings.hud_forward_url or GITHUB_ACTIONS)
    github = _github(settings, api_http, clock)
    keys = KeyCache(http_fetcher(keys_http), clock)
    inbox = Inbox(database, allowlists, targets, {u.name.key: u.ignore_refs for u in settings.upstreams})
    reports = Reports(
        database,
        allowlists=allowlists,
        targets=targets,
        forwards=Forwards(enabled=settings.hud_forward_url is not None),
        upstreams=upstreams,
        job_timeout=timedelta(seconds=settings.job_timeout_s),
    )
    limits = MemoryLimits(
        {
            CALLBACK: Rule(settings.rate_limit_per_min, 60.0),
            FAILED_AUTHENTICATION: Rule(_FAILED_PER_MINUTE, 60.0),
        },
        clock,
    )
    refreshers = {
        each.name.key: AllowlistRefresher(each.name, _source(each, github), allowlists, clock)
        for each in settings.upstreams
    }
    worker = Worker(
        Outbox(database, upstreams, owner=new_owner(), lease=_LEASE),
        _handlers(
            settings,
            database=database,
            targets=targets,
            allowlists=allowlists,
            github=github,
            refreshers=refreshers,
            http=forward_http,
            clock=clock,
        ),
        clock=clock,
        chance=seams.chance,
        tally=metrics,
        concurrency=settings.worker_concurrency,
        on_crash=seams.on_crash,
    )
    return Services(
        settings=settings,
        clock=clock,
        database=database,
        signals=signals,
        upstreams=upstreams,
        allowlists=allowlists,
        targets=targets,
        inbox=inbox,
        reports=reports,
        acts=Acts(database, targets, allowlists),
        limits=limits,
        github=github,
        keys=keys,
        refreshers=refreshers,
        sweeper=Sweeper(Sweeps(database, timedelta(days=settings.keep_bodies_days)), clock),
        worker=worker,
        metrics=metrics,
        webhook=WebhookIntake(
            secret=settings.github_webhook_secret.get_secret_value().encode(),
            bodies=Bodies(_BODIES_AT_ONCE),
            inbox=inbox,
            installations=Installations(database),
            upstreams=upstreams,
            allowlist_places={
                each.name: each.allowlist.place
                for each in settings.upstreams
                if not isinstance(each.allowlist, FileSource)
            },
            clock=clock,
            tally=metrics,
        ),
        callback=CallbackIntake(
            verifier=_verifier(settings, keys, clock),
            limits=limits,
            bodies=Bodies(_BODIES_AT_ONCE),
            reports=reports,
            trusted_proxies=settings.trusted_proxies,
            clock=clock,
            tally=metrics,
        ),
        http=(api_http, keys_http, forward_http),
        stopping=asyncio.Event(),
        on_crash=seams.on_crash,
    )


class Company:
    """The tasks that run beside the requests; stopping waits for what is under way."""

    def __init__(self, services: Services, *, work: bool) -> None:
        self._services = services
        self._work = work
        self._stopping = services.stopping
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        services = self._services
        await services.acts.register_upstreams(services.upstreams, services.clock.now())
        self._run(services.database.watch_other_processes())
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
        for refresher in services.refreshers.values():
            self._run(loop(refresher.refresh_or_complain, REFRESH_EVERY_S))

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


def _handlers(
    settings: Settings,
    *,
    database: SqliteDatabase,
    targets: Targets,
    allowlists: Allowlists,
    github: GitHubClient,
    refreshers: dict[str, AllowlistRefresher],
    http: httpx.AsyncClient,
    clock: Clock,
) -> dict[EffectKind, Handler]:
    handlers: dict[EffectKind, Handler] = {
        EffectKind.SEND_DISPATCH: SendDispatch(
            DispatchLoads(database),
            targets,
            github,
            callback_url=f"{settings.public_url.rstrip('/')}/github/callback",
            audience=settings.oidc_audiences[0],
        ),
        EffectKind.IDENTIFY_REPOSITORY: IdentifyRepository(targets, github, clock),
        EffectKind.CONFIRM_HEAD: ConfirmHead(Doubts(database, allowlists), github, clock),
        EffectKind.REFRESH_ALLOWLIST: RefreshAllowlist(refreshers),
    }
    handlers[EffectKind.FORWARD_RESULT] = _not_wanted
    if settings.hud_forward_url is not None and settings.hud_forward_token is not None:
        token = settings.hud_forward_token.get_secret_value()
        handlers[EffectKind.FORWARD_RESULT] = ForwardResult(http, settings.hud_forward_url, token)
    return handlers


async def _not_wanted(_: ClaimedEffect) -> bool:
    """Forwarding was turned off while results waited for it."""
    return False
