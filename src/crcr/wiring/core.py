"""The core that all other parts use: store, clock, HTTP clients, GitHub client; and the seams that tests replace."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

import httpx

from crcr.clock import SystemClock
from crcr.decide.checks.gate import GatePolicies, GatePolicy
from crcr.decide.checks.wanted_checks import JobChecks
from crcr.decide.failures.verdict import VerdictPolicy
from crcr.decide.levels.standings import LevelPolicy
from crcr.decide.model import RepoName
from crcr.errors import BadSettings
from crcr.github.app_auth import AppAuth, TokenCache
from crcr.github.client import GitHubClient
from crcr.github.http.connections import open_http
from crcr.github.http.rate_limiter import GitHubRateLimiter
from crcr.github.http.transport import GitHubTransport
from crcr.ports import Clock, NoTrace, Trace
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.receive.oidc.issuers import GITHUB_ACTIONS
from crcr.record.bisection.bisections import Bisections
from crcr.record.checks.check_runs import CommitChecks
from crcr.record.checks.refresh import COALESCE_DELAY, CheckRefresher, UpstreamPolicy
from crcr.record.checks.requests import PeopleRequests
from crcr.record.failures.known_failures import KnownFailures
from crcr.record.failures.recorder import FailureRecorder
from crcr.record.jobs.forwards import Forwards
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.levels.evaluations import Levels
from crcr.record.migrations.run import migrate
from crcr.record.pairs.pairs import Pairs
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.store.database import Database, PostgresTimeouts
from crcr.record.store.signals import Signals
from crcr.record.store.sqs_wakeups import SqsWakeups
from crcr.record.views.relay.health import HealthViews
from crcr.settings import Settings, SqliteSetting, UpstreamSetting
from crcr.show.live.shared_health import SHARED_FOR_S, SharedHealth
from crcr.show.metrics.registry import RelayMetrics
from crcr.wiring.clickhouse import ClickHouse, open_clickhouse
from crcr.wiring.database import database_location, open_database, open_replica, open_wakeups
from crcr.wiring.drivers import require_drivers
from crcr.wiring.secret_rotation import SecretRotation


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """Replaceable by a test, a bench or the demo."""

    clock: Clock = field(default_factory=SystemClock)
    http: Callable[[str], httpx.AsyncClient] = open_http
    chance: Callable[[], float] = random.random
    on_crash: Callable[[Exception], None] = lambda _: None
    health_shared_for_s: float = SHARED_FOR_S
    """How long one health reading is shared; 0 for a clock that stands still."""
    pages_kept_for_s: float | None = None
    """How long a page without a newer change is served again; 0 for a clock that stands still, None for the default."""
    check_gathering: timedelta = COALESCE_DELAY
    postgres_timeouts: PostgresTimeouts = field(default_factory=PostgresTimeouts)
    sqlite_durable: bool = True
    """Whether a commit waits for the disk; commits and reads are in threads then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    settings: Settings
    seams: Seams
    signals: Signals
    metrics: RelayMetrics
    trace: Trace
    database: Database
    wakeups: SqsWakeups | None
    clickhouse: ClickHouse
    refresher: CheckRefresher
    targets: Downstreams
    allowlists: Allowlists
    checks: CommitChecks
    people_requests: PeopleRequests
    health: SharedHealth
    api_http: httpx.AsyncClient
    keys_http: httpx.AsyncClient
    forward_http: httpx.AsyncClient
    limiter: GitHubRateLimiter
    github: GitHubClient
    secrets: SecretRotation

    @property
    def clock(self) -> Clock:
        return self.seams.clock

    @property
    def upstreams(self) -> tuple[RepoName, ...]:
        return tuple(upstream.name for upstream in self.settings.upstreams)

    @property
    def job_timeout(self) -> timedelta:
        return timedelta(seconds=self.settings.job_timeout_s)

    @property
    def known_failures(self) -> KnownFailures:
        return KnownFailures(self.database, web_url(self.settings))

    @property
    def levels(self) -> Levels:
        return Levels(self.database, self.allowlists, self.refresher, self.upstreams)

    @property
    def pairs(self) -> Pairs:
        return Pairs(self.database, self.allowlists, self.refresher, self.upstreams)

    @property
    def bisections(self) -> Bisections:
        return build_bisections(self.settings, self.database, self.allowlists, self.targets)


def build_bisections(
    settings: Settings, database: Database, allowlists: Allowlists, targets: Downstreams
) -> Bisections:
    return Bisections(
        database,
        allowlists,
        targets,
        upstreams=tuple(upstream.name for upstream in settings.upstreams),
        github_url=web_url(settings),
        job_timeout=timedelta(seconds=settings.job_timeout_s),
    )


def web_url(settings: Settings) -> str:
    """Return GitHub's web address from its API address."""
    parts = urlsplit(settings.github_api_url)
    host = parts.netloc.removeprefix("api.") if parts.netloc.startswith("api.") else parts.netloc
    return f"{parts.scheme}://{host}"


def open_core(settings: Settings, seams: Seams, *, for_pages: bool = False) -> Core:
    """With `for_pages`, the process only serves pages, and reads from a replica where there is one."""
    require_drivers(settings)
    migrate(database_location(settings))
    signals, metrics = Signals(), build_metrics(settings, seams.clock)
    database = open_database(
        settings, signals, metrics.store, seams.postgres_timeouts, sqlite_durable=seams.sqlite_durable
    )
    if for_pages:
        database = open_replica(settings, database, signals, metrics.replica_lag)
    refresher = check_refresher(settings, seams.check_gathering)
    targets = Downstreams(database, refresher)
    allowlists = Allowlists(database, targets, refresher, read_allowlist)
    checks = _checks(settings, database, allowlists, refresher)
    api_http, limiter = seams.http(settings.github_api_url), GitHubRateLimiter()
    secrets = SecretRotation(settings, seams.clock)
    return Core(
        settings=settings,
        seams=seams,
        signals=signals,
        metrics=metrics,
        trace=build_trace(settings),
        database=database,
        wakeups=open_wakeups(settings, signals),
        clickhouse=open_clickhouse(settings, database, secrets),
        refresher=refresher,
        targets=targets,
        allowlists=allowlists,
        checks=checks,
        people_requests=PeopleRequests(database, checks, refresher),
        health=_health(settings, database, seams),
        api_http=api_http,
        keys_http=seams.http(GITHUB_ACTIONS),
        forward_http=seams.http(settings.hud_forward_url or GITHUB_ACTIONS),
        limiter=limiter,
        github=build_github_client(settings, api_http, seams.clock, metrics, limiter, secrets=secrets),
        secrets=secrets,
    )


def _health(settings: Settings, database: Database, seams: Seams) -> SharedHealth:
    views = HealthViews(database, tuple(upstream.name for upstream in settings.upstreams))
    return SharedHealth(views, seams.clock, shared_for_s=seams.health_shared_for_s)


def build_outcomes(core: Core) -> JobOutcomes:
    settings = core.settings
    forwards = Forwards(
        enabled=settings.hud_forward_url is not None, table=settings.dynamodb_table is not None
    )
    return JobOutcomes(forwards, build_failure_recorder(core))


def build_failure_recorder(core: Core) -> FailureRecorder:
    policies = {upstream.name.key: verdict_policy(upstream) for upstream in core.settings.upstreams}
    return FailureRecorder(core.refresher, policies)


def verdict_policy(upstream: UpstreamSetting) -> VerdictPolicy:
    return VerdictPolicy(
        window=timedelta(days=upstream.verdict_window_days),
        passes_for_new=upstream.verdict_passes,
        pulls_for_pre_existing=upstream.verdict_pulls,
        authors_for_pre_existing=upstream.verdict_authors,
        flips_for_flaky=upstream.verdict_flips,
        fleet_jobs=upstream.verdict_fleet_jobs,
        fleet_heads=upstream.verdict_fleet_heads,
        fleet_share=upstream.verdict_fleet_percent / 100,
    )


def check_refresher(settings: Settings, coalesce_delay: timedelta = COALESCE_DELAY) -> CheckRefresher:
    policies = {upstream.name.key: _policy(upstream) for upstream in settings.upstreams}
    return CheckRefresher(policies, coalesce_delay=coalesce_delay)


def _policy(upstream: UpstreamSetting) -> UpstreamPolicy:
    return UpstreamPolicy(
        gate=upstream.gate,
        label_prefixes=upstream.label_prefixes,
        l3_fails_red=upstream.l3_conclusion == "failure",
        show_l3_pending=upstream.l3_pending == "in_progress",
        l3_pair_neutral=upstream.l3_pair == "neutral",
        job_checks=JobChecks(upstream.job_checks),
        levels=level_policy(upstream),
        breaking_label=upstream.breaking_label,
    )


def level_policy(upstream: UpstreamSetting) -> LevelPolicy:
    return LevelPolicy(
        upstream.level_criteria,
        silent_mode=upstream.silent_mode == "on",
        l4_downgrade=upstream.l4_downgrade == "auto",
    )


def level_policies(settings: Settings) -> dict[str, LevelPolicy]:
    return {upstream.name.key: level_policy(upstream) for upstream in settings.upstreams}


def gate_policies(settings: Settings) -> GatePolicies:
    timeouts = GatePolicy(
        timedelta(seconds=settings.gate_timeout_s), timedelta(seconds=settings.job_timeout_s)
    )
    excuses = {upstream.name.key: frozenset(upstream.excuses) for upstream in settings.upstreams}
    return GatePolicies(timeouts, excuses)


def _checks(
    settings: Settings, database: Database, allowlists: Allowlists, refresher: CheckRefresher
) -> CommitChecks:
    return CommitChecks(
        database,
        allowlists,
        refresher,
        gates=gate_policies(settings),
        hud_url=settings.public_url,
    )


def build_metrics(settings: Settings, clock: Clock) -> RelayMetrics:
    metrics = RelayMetrics(lambda: clock.now().timestamp())
    if isinstance(settings.database, SqliteSetting):
        metrics.store.watch_disk(settings.database.path.parent)
    return metrics


def build_trace(settings: Settings) -> Trace:
    if settings.otel_endpoint is None:
        return NoTrace()
    from crcr.tracing import OtlpTrace  # noqa: PLC0415  an optional extra

    return OtlpTrace(settings.otel_endpoint)


def build_github_client(
    settings: Settings,
    http: httpx.AsyncClient,
    clock: Clock,
    metrics: RelayMetrics | None = None,
    limiter: GitHubRateLimiter | None = None,
    *,
    secrets: SecretRotation | None = None,
) -> GitHubClient:
    try:
        auth = AppAuth(settings.github_app_id, settings.github_app_private_key.get_secret_value(), clock)
    except ValueError as fault:
        raise BadSettings([f"CRCR_GITHUB_APP_PRIVATE_KEY: {fault}"]) from None
    if secrets is not None:
        secrets.follow(lambda new: auth.replace_key(new.github_app_private_key.get_secret_value()))
    limiter = limiter or GitHubRateLimiter()
    if metrics is not None:
        metrics.github.watch(lambda: limiter.budgets(clock.now().timestamp()))
    transport = GitHubTransport(
        http,
        api_url=settings.github_api_url,
        auth=auth,
        tokens=TokenCache(clock),
        limiter=limiter,
        clock=clock,
        counters=metrics.github if metrics else None,
        read_only=settings.is_shadow,
        on_refused=secrets.on_refused if secrets else None,
    )
    return GitHubClient(transport)
