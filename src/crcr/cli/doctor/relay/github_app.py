"""Findings about the relay's GitHub App: key, permissions, events, webhook, and GitHub's clock."""

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta

from crcr.cli.doctor.reachability import clock_finding, parse_version, unreachable_finding
from crcr.cli.http_client import HttpClient, HttpError, is_on_this_machine
from crcr.decide.github import repository_setup
from crcr.decide.github.repository_setup import AppFacts, HookFacts
from crcr.decide.github.requests_and_answers import DeliveryLogPage
from crcr.errors import OutsideFault, OutsideRefused
from crcr.github.client import GitHubClient
from crcr.join.findings.finding import SetupFinding, format_age, join_words, ok, problem, unknown, warning
from crcr.settings import Settings

_RECENT = timedelta(hours=24)
_CHANGE = "change it in the App's settings; docs/examples/app-manifest.json has all of them; installations must then accept them"


async def app_findings(
    settings: Settings, github: GitHubClient, now: datetime, *, has_checks: bool
) -> tuple[SetupFinding, ...]:
    """`has_checks`: whether the allowlist has entries at L3 or L4."""
    try:
        app = await github.app.read()
    except OutsideFault as fault:
        return (_app_unavailable(fault),)
    findings = [_key(settings, app), *_rights(app, has_checks=has_checks)]
    if app.server_time is not None:
        findings.append(clock_finding(app.server_time, now, "GitHub's", fatal=True))
    return tuple(findings)


def _app_unavailable(fault: OutsideFault) -> SetupFinding:
    if isinstance(fault, OutsideRefused):
        return problem(
            "app_key",
            f"GitHub does not accept the App's key: {fault.detail}",
            "check CRCR_GITHUB_APP_ID, CRCR_GITHUB_APP_PRIVATE_KEY and this machine's clock; the key may have been deleted at GitHub",
        )
    return problem(
        "app_key", f"GitHub did not answer: {fault.detail}", "check CRCR_GITHUB_API_URL and the network"
    )


def _key(settings: Settings, app: AppFacts) -> SetupFinding:
    own_ids = {str(app.app_id), app.client_id}
    if settings.github_app_id not in own_ids:
        return problem(
            "app_key",
            f"The key belongs to App {app.app_id} ({app.slug}), but the settings name {settings.github_app_id}.",
            "set CRCR_GITHUB_APP_ID to the App that the key belongs to",
        )
    return ok("app_key", f"The key belongs to App {app.app_id}, {app.slug}.")


def _rights(app: AppFacts, *, has_checks: bool) -> Iterator[SetupFinding]:
    yield _missing(
        "app_permissions",
        repository_setup.missing_permissions(app.permissions, repository_setup.PERMISSIONS_ALWAYS),
        repository_setup.missing_permissions(app.permissions, repository_setup.PERMISSIONS_FOR_CHECKS),
        has_checks=has_checks,
    )
    yield _missing(
        "app_events",
        tuple(event for event in repository_setup.EVENTS_ALWAYS if event not in app.events),
        tuple(event for event in repository_setup.EVENTS_FOR_CHECKS if event not in app.events),
        has_checks=has_checks,
    )


def _missing(
    name: str, always: tuple[str, ...], for_checks: tuple[str, ...], *, has_checks: bool
) -> SetupFinding:
    things = "permissions" if name == "app_permissions" else "events"
    if always or (for_checks and has_checks):
        return problem(name, f"The App lacks {things}: {join_words([*always, *for_checks])}.", _CHANGE)
    if for_checks:
        return warning(
            name, f"For L3 and L4 the App will need {things}: {join_words(list(for_checks))}.", _CHANGE
        )
    return ok(name, f"The App has all {things} that it needs.")


async def hook_findings(settings: Settings, github: GitHubClient, now: datetime) -> tuple[SetupFinding, ...]:
    findings: list[SetupFinding] = []
    try:
        findings.append(_hook(settings, await github.app.read_webhook()))
        findings.append(_log(await github.delivery_log.read_page(None), now))
    except OutsideFault as fault:
        findings.append(
            unknown("webhook", f"GitHub did not answer about the webhook: {fault.detail}", "try again")
        )
    return tuple(findings)


def _hook(settings: Settings, hook: HookFacts) -> SetupFinding:
    expected_url = f"{settings.public_url.rstrip('/')}/github/webhook"
    hint = "change it in the App's settings, or CRCR_PUBLIC_URL"
    if not hook.url:
        return problem("webhook", "The App has no webhook address.", f"set it to {expected_url}")
    if hook.url.rstrip("/") != expected_url:
        return problem("webhook", f"The App sends its webhooks to {hook.url}, not to {expected_url}.", hint)
    if hook.content_type != "json":
        return problem(
            "webhook",
            f"The App sends webhooks as {hook.content_type}: the relay refuses them with 415 wrong_content_type.",
            "set the content type of the App's webhook to application/json",
        )
    if not hook.checks_tls:
        return warning(
            "webhook",
            f"The App sends to {hook.url} without checking its certificate.",
            "turn SSL verification on",
        )
    return ok("webhook", f"The App sends its webhooks to {hook.url}, as JSON.")


def _log(page: DeliveryLogPage, now: datetime) -> SetupFinding:
    recent = [entry for entry in page.entries if now - entry.delivered_at <= _RECENT]
    arrived = {delivery.guid for delivery in recent if delivery.ok}
    failed = {delivery.guid for delivery in recent} - arrived
    if not page.entries:
        return unknown(
            "deliveries",
            "GitHub has logged no webhook in three days.",
            "check that the upstream has activity and the App is installed there",
        )
    newest = format_age(page.entries[0].delivered_at, now)
    if failed:
        hint = "see the answers in the App's settings under Advanced; the relay recovers missed webhooks every 3 minutes"
        return warning(
            "deliveries",
            f"{len(failed):,} of the last {len(failed | arrived):,} webhooks failed (newest {newest}).",
            hint,
        )
    return ok(
        "deliveries", f"The last {len(arrived):,} webhooks of the last 24 hours arrived (newest {newest})."
    )


async def public_finding(settings: Settings) -> SetupFinding:
    """Check the public address from here."""
    url = settings.public_url.rstrip("/")
    if is_on_this_machine(url) and not is_on_this_machine(settings.github_api_url):
        return problem(
            "public_url",
            f"{url} is reachable from this machine only, not by GitHub and callers.",
            "set CRCR_PUBLIC_URL",
        )
    try:
        answer = await asyncio.to_thread(HttpClient(url, timeout_s=10.0).get, "/healthz")
    except HttpError as error:
        unreachable = unreachable_finding(url, error)
        return problem(
            "public_url",
            unreachable.text,
            "check that `crcr serve` is running and that the proxy forwards to it",
        )
    version = parse_version(answer)
    if version is None:
        return problem(
            "public_url",
            f"The server at {url} is not a relay ({answer.status_code}).",
            "check the proxy's configuration",
        )
    return ok("public_url", f"{url} answers: crcr {version}.")
