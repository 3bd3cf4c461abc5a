"""Examines a relay for its operator: settings, store, App, webhook, clock, allowlists, installations, issuers.

Read-only: no migration, no writes, no secrets in the output. Every call has its own time limit.
"""

import asyncio
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from crcr import log as logs
from crcr.cli.doctor.output import FindingSection
from crcr.cli.doctor.relay.allowlists import (
    SourceReading,
    allowlist_findings,
    installation_findings,
    read_source,
)
from crcr.cli.doctor.relay.clickhouse import history_findings
from crcr.cli.doctor.relay.github_app import app_findings, hook_findings, public_finding
from crcr.cli.doctor.relay.redis import redis_findings
from crcr.cli.doctor.relay.store import has_current_schema, store_findings
from crcr.cli.operator_session import choose_upstream_to_read
from crcr.clock import SystemClock
from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.model import RepoName
from crcr.decide.oidc.identity import IssuerKind
from crcr.decide.oidc.registration import RULES, Registration
from crcr.decide.views.overview import AllowlistState
from crcr.errors import BadSettings, KeysUnavailable, StoreUnavailable
from crcr.github.client import GitHubClient
from crcr.github.http.connections import open_http
from crcr.join.findings.finding import SetupFinding, State, ok, problem, warning
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.receive.oidc.issuers import GITHUB_ACTIONS, TrustedIssuer
from crcr.receive.oidc.jwks import Fetch, http_fetcher, read_keys
from crcr.record.repositories.allowlists import text_in_force
from crcr.record.store.database import Tx
from crcr.record.store.signals import Signals
from crcr.record.views.visibility import allowlist_state
from crcr.settings import Settings, UpstreamSetting, load_settings
from crcr.wiring.core import build_github_client
from crcr.wiring.database import open_database
from crcr.wiring.drivers import require_drivers
from crcr.wiring.intakes import build_issuer_table


def examine_relay(
    config: Path | None, upstream: RepoName | None, environ: Mapping[str, str], *, shown: bool
) -> Iterator[FindingSection]:
    logs.configure("console", "error", io.StringIO())  # the command prints the findings itself
    try:
        settings = load_settings(config=config, environ=environ, cwd=Path.cwd())
        require_drivers(settings)
    except BadSettings as bad:
        problems = tuple(problem("settings", text, bad.hint or "") for text in bad.problems)
        yield FindingSection("Settings", problems)
        return
    yield FindingSection("Settings", _settings(settings))
    now = SystemClock().now()
    yield FindingSection("Store", asyncio.run(_store_section_findings(settings, now)))
    yield from asyncio.run(
        _external_sections(settings, _choose_upstreams(settings, upstream), now, shown=shown)
    )


def _settings(settings: Settings) -> tuple[SetupFinding, ...]:
    warnings = tuple(warning("settings", text, "see docs/configuration.md") for text in settings.warnings())
    names = ", ".join(str(upstream.name) for upstream in settings.upstreams)
    return (ok("settings", f"The settings are valid, for {names}."), *warnings, role_finding(settings))


def _choose_upstreams(settings: Settings, requested: RepoName | None) -> tuple[UpstreamSetting, ...]:
    if requested is None:
        return settings.upstreams
    picked = choose_upstream_to_read(tuple(upstream.name for upstream in settings.upstreams), requested)
    return tuple(upstream for upstream in settings.upstreams if upstream.name == picked)


async def _store_section_findings(settings: Settings, now: datetime) -> tuple[SetupFinding, ...]:
    return (
        *await store_findings(settings, now),
        *await redis_findings(settings),
        *await history_findings(settings, now, store=has_current_schema(settings)),
    )


@dataclass(frozen=True, slots=True)
class _AllowlistReadings:
    reads: tuple[SourceReading, ...]
    findings: tuple[SetupFinding, ...]

    @property
    def has_checks(self) -> bool:
        return any(read.allowlist.has_checks for read in self.reads)


async def _external_sections(
    settings: Settings, upstreams: tuple[UpstreamSetting, ...], now: datetime, *, shown: bool
) -> list[FindingSection]:
    api_http, keys_http = open_http(settings.github_api_url), open_http(GITHUB_ACTIONS)
    try:
        github = build_github_client(settings, api_http, SystemClock())
        lists = await _read_allowlists(settings, upstreams, github, now)
        app = await app_findings(settings, github, SystemClock().now(), has_checks=lists.has_checks)
        answers = not any(finding.name == "app_key" and finding.state is State.PROBLEM for finding in app)
        webhook_findings = await hook_findings(settings, github, now) if answers else ()
        hook = (*webhook_findings, await public_finding(settings))
        # When GitHub rejects the App, every installation request would fail as well.
        targets = await installation_findings(lists.reads, github, shown=shown) if answers else ()
        allowed = tuple(read.allowlist for read in lists.reads)
        issuers = (
            *await issuer_findings(settings, http_fetcher(keys_http)),
            *registration_findings(settings.oidc_registrations, allowed),
        )
    except BadSettings as bad:
        return [
            FindingSection(
                "The App",
                tuple(problem("app_key", text, "put the App's PEM key there") for text in bad.problems),
            )
        ]
    finally:
        await api_http.aclose()
        await keys_http.aclose()
    return [
        FindingSection("The App", app),
        FindingSection("Webhooks", hook),
        FindingSection("Allowlists", lists.findings),
        FindingSection("Installations", targets),
        FindingSection("Tokens", issuers),
    ]


async def _read_allowlists(
    settings: Settings, upstreams: tuple[UpstreamSetting, ...], github: GitHubClient, now: datetime
) -> _AllowlistReadings:
    stored = await _read_stored(settings, upstreams)
    read = [await read_source(upstream, github) for upstream in upstreams]
    reads = tuple(replace(reading, in_force=stored[reading.upstream.name][1]) for reading in read)
    channels = [channel.name for channel in settings.channels]
    findings = [
        finding
        for read in reads
        for finding in allowlist_findings(read, stored[read.upstream.name][0], now, channels)
    ]
    return _AllowlistReadings(reads, tuple(findings))


_StoredAllowlists = dict[RepoName, tuple[AllowlistState | None, Allowlist | None]]


async def _read_stored(settings: Settings, upstreams: tuple[UpstreamSetting, ...]) -> _StoredAllowlists:
    """Return the versions in force; none when the store cannot be queried, which its own findings report."""
    nothing: _StoredAllowlists = {upstream.name: (None, None) for upstream in upstreams}
    if not has_current_schema(settings):
        return nothing

    async def in_force(tx: Tx, upstream: RepoName) -> Allowlist | None:
        text = await text_in_force(tx, upstream)
        return read_allowlist(text).allowlist if text is not None else None

    async def unit(tx: Tx) -> _StoredAllowlists:
        return {
            upstream.name: (await allowlist_state(tx, upstream.name), await in_force(tx, upstream.name))
            for upstream in upstreams
        }

    try:
        database = open_database(settings, Signals())
    except StoreUnavailable:
        return nothing
    try:
        return await database.read(unit)
    except StoreUnavailable:
        return nothing
    finally:
        await database.close()


async def issuer_findings(settings: Settings, fetch: Fetch) -> tuple[SetupFinding, ...]:
    """Check the issuers that the settings name, and GitHub's; skip public ones without a registration."""
    configured = {issuer.issuer for issuer in settings.oidc_issuers}
    configured |= {registration.issuer for registration in settings.oidc_registrations}
    table = build_issuer_table(settings).values()
    used = [issuer for issuer in table if issuer.issuer in configured or issuer.kind is IssuerKind.GITHUB]
    findings = await asyncio.gather(*(_issuer(issuer, fetch) for issuer in used))
    if any(issuer.kind is IssuerKind.GITHUB for issuer in used):
        return tuple(findings)
    hint = "for a GitHub Enterprise Server, add its issuer to CRCR_OIDC_ISSUERS"
    return (
        warning("issuer", "No GitHub Actions issuer is configured: its tokens are refused.", hint),
        *findings,
    )


async def _issuer(issuer: TrustedIssuer, fetch: Fetch) -> SetupFinding:
    try:
        keys = await read_keys(fetch, issuer)
    except KeysUnavailable as fault:
        hint = "its reports get 503 until its keys can be read: check the address and the proxy"
        return problem("issuer", f"{issuer.issuer} ({issuer.kind.value}): {fault.detail}.", hint)
    return ok(
        "issuer",
        f"{issuer.issuer} ({issuer.kind.value}): {len(keys):,} key{'s' if len(keys) != 1 else ''} readable.",
    )


def registration_findings(
    registrations: tuple[Registration, ...], lists: tuple[Allowlist, ...]
) -> Iterator[SetupFinding]:
    for registration in registrations:
        ids = ", ".join(f"{name} {value}" for name, value in registration.ids.items())
        subject = f"{registration.repository}: {registration.kind.value} ({ids})"
        if not any(allowlist.find(registration.repository) for allowlist in lists):
            yield warning(
                "registration",
                f"{subject} is not on an allowlist: its reports are refused.",
                "correct the name, or remove it",
            )
        elif registration.by_slugs:
            yield warning(
                "registration",
                f"{subject} is registered by names, which others can take over.",
                "register the ids instead",
            )
        elif not registration.tells_steps_apart:
            yield warning(
                "registration",
                f"{subject} may report from any of its steps, including those that run a pull request's code.",
                f"unless no step runs such code, add {RULES[registration.kind].wise}",
            )
        else:
            yield ok("registration", f"{subject} is registered.")


_ROLE_TEXTS = {
    "all": "Pages run in a process of their own, on the same port (CRCR_ROLE is all).",
    "intake": "This process takes in webhooks, callbacks and results; pages answer 404 (CRCR_ROLE is intake).",
    "hud": "This process serves pages and API; webhooks, callbacks and results answer 503 (CRCR_ROLE is hud).",
}


def role_finding(settings: Settings) -> SetupFinding:
    if not settings.uses_chdb:
        return ok("role", _ROLE_TEXTS[settings.role])
    if settings.role == "all":
        text = "Pages run in the same process as the intake: chdb:/// can be opened by one process alone."
        return ok(
            "role", text, "with many readers use a ClickHouse server, so that pages cannot delay callbacks"
        )
    return problem(
        "role",
        f"`crcr serve` does not start: the role {settings.role} does not work with chdb:///, which one process alone can open.",
        "use a ClickHouse server, or the role all",
    )
