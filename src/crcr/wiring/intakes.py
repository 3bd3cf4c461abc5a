"""Builds the intakes: webhooks, callbacks with their token verifier, results of other relays."""

from urllib.parse import urlsplit

from crcr.decide.oidc.identity import IssuerKind
from crcr.ports import Clock, RequestLimiter
from crcr.receive.callback.intake import (
    CallbackIntake,
)
from crcr.receive.callback.sandbox import SandboxIntake
from crcr.receive.http.body import BodyReader
from crcr.receive.ingest.dynamodb_stream import StreamIntake
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
from crcr.record.clickhouse.workflow_jobs import WorkflowJobTable
from crcr.record.deliveries.inbox import Inbox
from crcr.record.deliveries.webhooks import RefusalCounts
from crcr.record.in_tree.recorder import InTreeRecorder
from crcr.record.jobs.ingested import IngestedResults
from crcr.record.jobs.refusals import Refusals
from crcr.record.jobs.reports import Reports
from crcr.record.jobs.sandbox import SandboxJobs
from crcr.record.jobs.self_reports import SelfReports
from crcr.record.repositories.installations import Installations
from crcr.record.workflow_runs.webhook_events import WorkflowEvents
from crcr.settings import AllowlistFile, Settings
from crcr.wiring.core import Core, build_outcomes

_BODIES_AT_ONCE = 128 * 1024 * 1024
"""Per intake, so that webhooks from strangers cannot block callbacks, or the reverse."""
PUBLIC_API = "api.github.com"


def _bodies(settings: Settings) -> BodyReader:
    return BodyReader(_BODIES_AT_ONCE, trusted_proxies=settings.trusted_proxies)


def webhook_intake(core: Core, inbox: Inbox) -> WebhookIntake:
    on_github = {
        upstream.name: upstream.allowlist.location
        for upstream in core.settings.upstreams
        if not isinstance(upstream.allowlist, AllowlistFile)
    }
    return WebhookIntake(
        secret=lambda: core.secrets.current.github_webhook_secret.get_secret_value().encode(),
        bodies=_bodies(core.settings),
        inbox=inbox,
        people_requests=core.people_requests,
        workflow_events=WorkflowEvents(core.database, core.refresher, build_outcomes(core)),
        installations=Installations(core.database),
        known_failures=core.known_failures,
        pairs=core.pairs,
        in_tree=InTreeRecorder(core.database, core.settings.github_app_id),
        upstreams=frozenset(core.upstreams),
        allowlist_files=on_github,
        clock=core.clock,
        count=core.metrics.delivery,
        refused=RefusedWebhookCounter(RefusalCounts(core.database), core.clock),
        trace=core.trace,
    )


def callback_intake(core: Core, keys: KeyCache, limits: RequestLimiter, reports: Reports) -> CallbackIntake:
    return CallbackIntake(
        verifier=_verifier(core.settings, keys, core.clock),
        limits=limits,
        bodies=_bodies(core.settings),
        reports=reports,
        trusted_proxies=core.settings.trusted_proxies,
        clock=core.clock,
        count=core.metrics.callback,
        trace=core.trace,
        self_reports=SelfReports(
            core.database, reports=reports, targets=core.targets, outcomes=build_outcomes(core)
        ),
        sandbox=_sandbox(core, limits) if core.settings.sandbox == "on" else None,
        refusals=Refusals(core.database, core.allowlists, core.targets, core.upstreams),
    )


def _sandbox(core: Core, limits: RequestLimiter) -> SandboxIntake:
    jobs = SandboxJobs(core.database, core.allowlists, core.upstreams)
    return SandboxIntake(jobs, limits, f"{core.settings.public_url.rstrip('/')}/crcr/sandbox")


def ingest_intake(core: Core) -> IngestIntake:
    def current_token() -> bytes | None:
        token = core.secrets.current.hud_ingest_token
        return token.get_secret_value().encode() if token else None

    return IngestIntake(
        token=current_token,
        bodies=_bodies(core.settings),
        results=IngestedResults(core.database, core.allowlists, core.upstreams),
        trusted_proxies=core.settings.trusted_proxies,
        clock=core.clock,
        count=core.metrics.ingest,
    )


def stream_intake(core: Core) -> StreamIntake:
    """For a function that takes a DynamoDB stream (`receive.ingest.dynamodb_stream.handle_stream`)."""
    targets, link = core.settings.stream_targets, core.clickhouse.link
    results = IngestedResults(core.database, core.allowlists, core.upstreams) if "ingest" in targets else None
    table = WorkflowJobTable(link) if "clickhouse" in targets and link is not None else None
    return StreamIntake(results=results, table=table, clock=core.clock)


def build_issuer_table(settings: Settings) -> dict[str, TrustedIssuer]:
    """Return the issuers whose tokens are accepted."""
    extra = [
        complete_issuer(issuer.issuer, IssuerKind(issuer.kind), jwks_url=issuer.jwks_url, reads=issuer.reads)
        for issuer in settings.oidc_issuers
    ]
    known = {issuer.issuer for issuer in (*known_issuers(), *extra)}
    table = issuer_table(
        [
            *extra,
            *(
                complete_issuer(registration.issuer, registration.kind)
                for registration in settings.oidc_registrations
                if registration.issuer not in known
            ),
        ]
    )
    if urlsplit(settings.github_api_url).hostname != PUBLIC_API and not any(
        issuer.issuer == GITHUB_ACTIONS for issuer in extra
    ):
        # On a GitHub Enterprise Server the same names are other repositories: only that server's tokens count.
        del table[GITHUB_ACTIONS]
    return table


def _verifier(settings: Settings, keys: KeyCache, clock: Clock) -> OidcVerifier:
    table, registrations = build_issuer_table(settings), settings.oidc_registrations
    return OidcVerifier(table, settings.oidc_audiences, keys, clock, registrations=registrations)
