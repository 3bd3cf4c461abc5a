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
        found = tuple(problem("settings", each, bad.hint or "") for each in bad.problems)
        yield FindingSection("Settings", found)
        return
    yield FindingSection("Settings", _settings(settings))
    now = SystemClock().now()
    yield FindingSection("Store", asyncio.run(_store(settings, now)))
    yield from asyncio.run(_outside(settings, _chosen(settings, upstream), now, shown=shown))


def _settings(settings: Settings) -> tuple[SetupFinding, ...]:
    warnings = tuple(warning("settings", each, "see docs/configuration.md") for each in settings.warnings())
    names = ", ".join(str(each.name) for each in settings.upstreams)
    return (ok("settings", f"The settings are valid, for {names}."), *warnings)


def _chosen(settings: Settings, asked: RepoName | None) -> tuple[UpstreamSetting, ...]:
    if asked is None:
        return settings.upstreams
    picked = choose_upstream_to_read(tuple(each.name for each in settings.upstreams), asked)
    return tuple(each for each in settings.upstreams if each.name == picked)


async def _store(settings: Settings, now: datetime) -> tuple[SetupFinding, ...]:
    return (
        *await store_findings(settings, now),
        *await redis_findings(settings),
        *await history_findings(settings, now, store=has_current_schema(settings)),
    )


@dataclass(frozen=True, slots=True)
class _Lists:
    reads: tuple[SourceReading, ...]
    findings: tuple[SetupFinding, ...]

    @property
    def has_checks(self) -> bool:
        return any(each.allowlist.has_checks for each in self.reads)


async def _outside(
    settings: Settings, upstreams: tuple[UpstreamSetting, ...], now: datetime, *, shown: bool
) -> list[FindingSection]:
    api_http, keys_http = open_http(settings.github_api_url), open_http(GITHUB_ACTIONS)
    try:
        github = build_github_client(settings, api_http, SystemClock())
        lists = await _lists(settings, upstreams, github, now)
        app = await app_findings(settings, github, SystemClock().now(), has_checks=lists.has_checks)
        answers = not any(each.name == "app_key" and each.state is State.PROBLEM for each in app)
        asked = await hook_findings(settings, github, now) if answers else ()
        hook = (*asked, await public_finding(settings, keys_http))
        # When GitHub rejects the App, every installation request would fail as well.
        targets = await installation_findings(lists.reads, github, shown=shown) if answers else ()
        allowed = tuple(each.allowlist for each in lists.reads)
        issuers = (
            *await issuer_findings(settings, http_fetcher(keys_http)),
            *registration_findings(settings.oidc_registrations, allowed),
        )
    except BadSettings as bad:
        return [
            FindingSection(
                "The App",
                tuple(problem("app_key", each, "put the App's PEM key there") for each in bad.problems),
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


async def _lists(
    settings: Settings, upstreams: tuple[UpstreamSetting, ...], github: GitHubClient, now: datetime
) -> _Lists:
    kept = await _kept(settings, upstreams)
    read = [await read_source(each, github) for each in upstreams]
    reads = tuple(replace(each, in_force=kept[each.upstream.name][1]) for each in read)
    findings = [each for read in reads for each in allowlist_findings(read, kept[read.upstream.name][0], now)]
    return _Lists(reads, tuple(findings))


_Kept = dict[RepoName, tuple[AllowlistState | None, Allowlist | None]]


async def _kept(settings: Settings, upstreams: tuple[UpstreamSetting, ...]) -> _Kept:
    """Return the versions in force; none when the store cannot be queried, which its own findings report."""
    nothing: _Kept = {each.name: (None, None) for each in upstreams}
    if not has_current_schema(settings):
        return nothing

    async def in_force(tx: Tx, upstream: RepoName) -> Allowlist | None:
        text = await text_in_force(tx, upstream)
        return read_allowlist(text).allowlist if text is not None else None

    async def unit(tx: Tx) -> _Kept:
        return {
            each.name: (await allowlist_state(tx, each.name), await in_force(tx, each.name))
            for each in upstreams
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
    named = {each.issuer for each in settings.oidc_issuers}
    named |= {each.issuer for each in settings.oidc_registrations}
    table = build_issuer_table(settings).values()
    used = [each for each in table if each.issuer in named or each.kind is IssuerKind.GITHUB]
    found = await asyncio.gather(*(_issuer(each, fetch) for each in used))
    if any(each.kind is IssuerKind.GITHUB for each in used):
        return tuple(found)
    hint = "for a GitHub Enterprise Server, add its issuer to CRCR_OIDC_ISSUERS"
    return (
        warning("issuer", "No GitHub Actions issuer is configured: its tokens are refused.", hint),
        *found,
    )


async def _issuer(issuer: TrustedIssuer, fetch: Fetch) -> SetupFinding:
    try:
        keys = await read_keys(fetch, issuer)
    except KeysUnavailable as fault:
        hint = "its reports get 503 until its keys can be read: check the address and the proxy"
        return problem("issuer", f"{issuer.issuer} ({issuer.kind.value}): {fault.detail}.", hint)
    return ok(
        "issuer",
        f"{issuer.issuer} ({issuer.kind.value}): {len(keys)} key{'s' if len(keys) != 1 else ''} readable.",
    )


def registration_findings(
    registrations: tuple[Registration, ...], lists: tuple[Allowlist, ...]
) -> Iterator[SetupFinding]:
    for each in registrations:
        ids = ", ".join(f"{name} {value}" for name, value in each.ids.items())
        what = f"{each.repository}: {each.kind.value} ({ids})"
        if not any(listed.find(each.repository) for listed in lists):
            yield warning(
                "registration",
                f"{what} is not on an allowlist: its reports are refused.",
                "correct the name, or remove it",
            )
        elif each.by_slugs:
            yield warning(
                "registration",
                f"{what} is registered by names, which others can take over.",
                "register the ids instead",
            )
        elif not each.tells_steps_apart:
            yield warning(
                "registration",
                f"{what} may report from any of its steps, including those that run a pull request's code.",
                f"unless no step runs such code, add {RULES[each.kind].wise}",
            )
        else:
            yield ok("registration", f"{what} is registered.")
