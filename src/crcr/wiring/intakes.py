"""The doors of a relay, wired: webhooks, callbacks with who is believed there, results of other relays."""

from urllib.parse import urlsplit

from crcr.decide.report.identity import IssuerKind
from crcr.ports import Clock, Limits
from crcr.receive.callback.intake import (
    CallbackIntake,
)
from crcr.receive.callback.sandbox import SandboxIntake
from crcr.receive.http.body import BodyReader
from crcr.receive.ingest.intake import IngestIntake
from crcr.receive.oidc.issuers import (
    GITHUB_ACTIONS,
    TrustedIssuer,
    complete_issuer,
    issuer_table,
    known_issuers,
)
from crcr.receive.oidc.jwks import KeyCache
from crcr.receive.oidc.verifier import OidcVerifier
from crcr.receive.webhook.intake import WebhookIntake
from crcr.receive.webhook.refused_webhooks import RefusedWebhookCounter
from crcr.record.deliveries.inbox import Inbox
from crcr.record.deliveries.refused_webhooks import RefusalCounts
from crcr.record.reports.ingested import IngestedResults
from crcr.record.reports.refusals import Refusals
from crcr.record.reports.reports import Reports
from crcr.record.reports.sandbox import SandboxJobs
from crcr.record.reports.self_reports import SelfReports
from crcr.record.repositories.installations import Installations
from crcr.record.workflow_runs.webhook_events import ActionsNews
from crcr.settings import FileSource, Settings
from crcr.wiring.core import Core, outcomes_of

_BODIES_AT_ONCE = 128 * 1024 * 1024
"""For each intake: webhooks from strangers must not keep callbacks out, nor the other way round."""
PUBLIC_API = "api.github.com"


def _bodies(settings: Settings) -> BodyReader:
    return BodyReader(_BODIES_AT_ONCE, trusted_proxies=settings.trusted_proxies)


def webhook_intake(ground: Core, inbox: Inbox) -> WebhookIntake:
    on_github = {
        each.name: each.allowlist.place
        for each in ground.settings.upstreams
        if not isinstance(each.allowlist, FileSource)
    }
    return WebhookIntake(
        secret=ground.settings.github_webhook_secret.get_secret_value().encode(),
        bodies=_bodies(ground.settings),
        inbox=inbox,
        people_requests=ground.desk,
        actions_news=ActionsNews(ground.database, ground.refresher, outcomes_of(ground)),
        installations=Installations(ground.database),
        upstreams=frozenset(ground.upstreams),
        allowlist_files=on_github,
        clock=ground.clock,
        count=ground.metrics.delivery,
        refused=RefusedWebhookCounter(RefusalCounts(ground.database), ground.clock),
        trace=ground.trace,
    )


def callback_intake(ground: Core, keys: KeyCache, limits: Limits, reports: Reports) -> CallbackIntake:
    return CallbackIntake(
        verifier=_verifier(ground.settings, keys, ground.clock),
        limits=limits,
        bodies=_bodies(ground.settings),
        reports=reports,
        trusted_proxies=ground.settings.trusted_proxies,
        clock=ground.clock,
        count=ground.metrics.callback,
        trace=ground.trace,
        self_reports=SelfReports(
            ground.database, reports=reports, targets=ground.targets, outcomes=outcomes_of(ground)
        ),
        sandbox=_sandbox(ground, limits) if ground.settings.sandbox == "on" else None,
        refusals=Refusals(ground.database, ground.allowlists, ground.targets, ground.upstreams),
    )


def _sandbox(ground: Core, limits: Limits) -> SandboxIntake:
    jobs = SandboxJobs(ground.database, ground.allowlists, ground.upstreams)
    return SandboxIntake(jobs, limits, f"{ground.settings.public_url.rstrip('/')}/crcr/sandbox")


def ingest_intake(ground: Core) -> IngestIntake:
    token = ground.settings.hud_ingest_token
    return IngestIntake(
        token=token.get_secret_value().encode() if token else None,
        bodies=_bodies(ground.settings),
        results=IngestedResults(ground.database, ground.allowlists, ground.upstreams),
        trusted_proxies=ground.settings.trusted_proxies,
        clock=ground.clock,
        count=ground.metrics.ingest,
    )


def issuers_of(settings: Settings) -> dict[str, TrustedIssuer]:
    """Whose tokens are taken here."""
    extra = [
        complete_issuer(each.issuer, IssuerKind(each.kind), jwks_url=each.jwks_url, reads=each.reads)
        for each in settings.oidc_issuers
    ]
    told = {each.issuer for each in (*known_issuers(), *extra)}
    table = issuer_table(
        [
            *extra,
            *(
                complete_issuer(each.issuer, each.kind)
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
