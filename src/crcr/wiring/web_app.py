"""Assembles pages and API, with the intakes or without them, into one ASGI app over the wired services."""

from functools import partial
from urllib.parse import quote, urlsplit

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from crcr.app import Edge, ProblemPage, create_app, problem_response
from crcr.decide.model import RepoName
from crcr.deliver.periodic.app_link import AppPage
from crcr.errors import CrcrError, NotFound
from crcr.receive.http.client_address import client_address, limit_subject
from crcr.record.admin.http_operations import HttpAdminOperations
from crcr.record.failures.known_failures import KnownFailures
from crcr.record.repositories.inspections import Inspections
from crcr.record.store.signals import CHANGES
from crcr.record.views.sql_views import SqlViews
from crcr.settings import AllowlistOnGitHub, Settings
from crcr.show.access import admin_routes as admin
from crcr.show.access import login
from crcr.show.access.admin_orders import make_performer, read_written_bisection
from crcr.show.access.middleware import AccessMiddleware, AccessSettings
from crcr.show.access.sessions import NamedToken, Sessions, TokenStore
from crcr.show.api import routes as api_routes
from crcr.show.api import setup as api_setup
from crcr.show.cache.newest_changes import NewestChanges
from crcr.show.cache.page_cache import PageCache
from crcr.show.cache.render_queue import RenderQueue
from crcr.show.cache.rendered_page import MAX_AGE_S
from crcr.show.http import response_headers
from crcr.show.live import event_stream
from crcr.show.live.change_feed import LiveDelay, Wakeups
from crcr.show.live.shared_health import HealthFeed
from crcr.show.pages import routes as pages_routes
from crcr.show.pages.frame import Frame
from crcr.show.pages.onboarding import OnboardingSettings
from crcr.wiring.background import BackgroundTasks
from crcr.wiring.core import gate_policies, level_policies, web_url
from crcr.wiring.intake_app import (
    health_routes,
    ingest_route,
    intake_routes,
    refusing_intake_routes,
)
from crcr.wiring.services import Services


def build_app(services: Services, *, work: bool = True, takes_in: bool = True) -> Edge:
    """Return the relay as an ASGI app; with `work`, the worker and the periodic loops run beside the requests.

    Without `takes_in` it serves pages and API only: webhooks, callbacks and results are refused.
    """
    upstreams, clock = services.upstreams, services.clock
    views = _views(services)
    is_public = services.settings.hud_access == "public"
    frame = _frame(services, views)
    problem_page = frame.problem
    access = _access_settings(services, problem_page)
    operations = _admin_operations(services)
    perform, on = make_performer(operations, upstreams), access.tokens.has_admins
    delay = LiveDelay(services.metrics.live_delay, lambda: services.metrics.replica_lag_s)
    setup, app_page = _setup_context(services, views, access), AppPage(services.github.app, clock)
    return create_app(
        hot=intake_routes(services) if takes_in else refusing_intake_routes(),
        routes=[
            *login.routes(frame, access, operations.note_sign_in),
            *admin.form_routes(perform, on=on),
            *response_headers.robots_route(is_public=is_public),
            ingest_route(services.ingest if takes_in else None),
            *pages_routes.routes(frame, delay, _onboarding_settings(services, views, setup, app_page)),
            *_live_routes(services, views, delay),
            *api_routes.routes(
                views,
                upstreams=upstreams,
                clock=clock,
                public_url=services.settings.public_url,
                audience=services.settings.oidc_audiences[0],
                health=services.health,
            ),
            *health_routes(services, views, services.rate_limits.check if takes_in else None),
        ],
        routers=[
            admin.router(perform, partial(read_written_bisection, operations, upstreams), on=on),
            api_setup.router(setup),
            _onboarding_router(services, app_page),
        ],
        background=BackgroundTasks(
            services,
            work=work,
            request_side_tasks=(app_page.find, *((services.webhook.refused.run,) if takes_in else ())),
        ),
        on_crash=services.on_crash,
        around=lambda app: _with_layers(
            services, AccessMiddleware(_page_cache(services, views, app), access)
        ),
        problem_page=problem_page,
    )


def _with_layers(services: Services, app: ASGIApp) -> ASGIApp:
    settings = services.settings
    return response_headers.wrap_app(
        app, public_url=settings.public_url, is_public=settings.hud_access == "public"
    )


def _views(services: Services) -> SqlViews:
    return SqlViews(
        services.database,
        services.allowlists,
        services.upstreams,
        gate_policies(services.settings),
        ingests=services.settings.hud_ingest_token is not None,
        sandbox=services.settings.sandbox == "on",
        history=services.clickhouse.history(),
        channel_addresses={channel.name: channel.masked_address for channel in services.settings.channels},
        levels=level_policies(services.settings),
    )


def _frame(services: Services, views: SqlViews) -> Frame:
    return Frame(
        views,
        upstreams=services.upstreams,
        clock=services.clock,
        github_url=web_url(services.settings),
        public_url=services.settings.public_url,
        sandbox=services.settings.sandbox == "on",
        shadow=services.settings.is_shadow,
        health=services.health,
        is_public=services.settings.hud_access == "public",
        polls=services.settings.hud_live == "poll",
    )


def _admin_operations(services: Services) -> HttpAdminOperations:
    return HttpAdminOperations(
        services.database,
        services.acts,
        services.targets,
        services.upstreams,
        services.clock,
        known_failures=KnownFailures(services.database, web_url(services.settings)),
        bisections=services.bisections,
        allowlists=services.allowlists,
        levels=services.levels,
    )


def _page_cache(services: Services, views: SqlViews, app: ASGIApp) -> PageCache:
    metrics = services.metrics
    queue = RenderQueue(app, on_waiting=metrics.pages_waiting, on_refused=metrics.page_refused)
    return PageCache(
        queue,
        upstreams=services.upstreams,
        newest=NewestChanges(views.for_admins(), _changes_wakeups(services)),
        clock=services.clock,
        max_age_s=MAX_AGE_S if services.pages_kept_for_s is None else services.pages_kept_for_s,
        on_answer=metrics.page_answered,
    )


def _changes_wakeups(services: Services) -> Wakeups:
    signals = services.signals
    return Wakeups(partial(signals.subscribe, CHANGES), partial(signals.unsubscribe, CHANGES))


def _live_routes(services: Services, views: SqlViews, delay: LiveDelay) -> list[BaseRoute]:
    if services.settings.hud_live == "poll":
        return [Route("/api/v1/events", _refuse_stream, methods=["GET"], name="events")]
    return event_stream.routes(
        views,
        wakeups=_changes_wakeups(services),
        upstreams=services.upstreams,
        clock=services.clock,
        stopping=services.closing,
        address_of=partial(_client_address, services.settings),
        caps=event_stream.StreamLimits(services.settings.hud_streams_per_address),
        delay=delay,
        trace=services.trace,
        on_streams=services.metrics.live_streams,
        log_for_admins=views.for_admins(),
        health=HealthFeed(services.health, services.upstreams, services.clock),
    )


async def _refuse_stream(_: Request) -> Response:
    raise NotFound("this relay sends no stream of changes", hint="read the page or the API again instead")


def _named_tokens(settings: Settings) -> tuple[NamedToken, ...]:
    return tuple(
        NamedToken(token.name, token.digest, admin)
        for admin, group in ((True, settings.admin_tokens), (False, settings.hud_tokens))
        for token in group
    )


def _access_settings(services: Services, problem_page: ProblemPage) -> AccessSettings:
    settings = services.settings
    tokens = TokenStore(_named_tokens(settings))
    sessions = Sessions(
        tokens,
        secret=settings.github_webhook_secret.get_secret_value().encode(),
        clock=services.clock,
        secure=urlsplit(settings.public_url).scheme == "https",
    )

    def rotate(new: Settings) -> None:
        tokens.replace(_named_tokens(new))
        sessions.replace_secret(new.github_webhook_secret.get_secret_value().encode())

    services.secrets.follow(rotate)

    def refuse(request: Request, problem: CrcrError) -> Response:
        return problem_response(request, problem, problem_page)

    return AccessSettings(
        access=settings.hud_access,
        tokens=tokens,
        sessions=sessions,
        proxy_header=settings.hud_proxy_header,
        trusted_proxies=settings.trusted_proxies,
        public_url=settings.public_url,
        limits=services.limits,
        subject_of=lambda request: limit_subject(_client_address(settings, request)),
        refuse=refuse,
    )


def _setup_context(services: Services, views: SqlViews, access: AccessSettings) -> api_setup.SetupContext:
    return api_setup.SetupContext(
        views=views,
        upstreams=services.upstreams,
        inspections=Inspections(services.database),
        acts=services.acts,
        tokens=access.tokens,
        verify_token=services.callback.verifier.verify,
        limits=services.limits,
        subject_of=access.subject_of,
        clock=services.clock,
    )


def _onboarding_router(services: Services, app_page: AppPage) -> APIRouter:
    return api_setup.onboarding_router(
        services.upstreams,
        audience=services.settings.oidc_audiences[0],
        public_url=services.settings.public_url,
        app_page=lambda: app_page.address,
    )


def _onboarding_settings(
    services: Services, views: SqlViews, setup: api_setup.SetupContext, app_page: AppPage
) -> OnboardingSettings:
    async def request_inspection(request: Request, upstream: RepoName, repo: RepoName) -> bool:
        return (await setup.request_inspection(request, upstream, repo)).asked

    async def newest_change() -> int:
        return (await views.changes(None, 1)).newest

    return OnboardingSettings(
        audience=services.settings.oidc_audiences[0],
        allowlists={
            upstream.name: _allowlist_page(upstream.allowlist)
            for upstream in services.settings.upstreams
            if isinstance(upstream.allowlist, AllowlistOnGitHub)
        },
        app_page=lambda: app_page.address,
        request_inspection=request_inspection,
        newest_change=newest_change,
        is_public=services.settings.hud_access == "public",
    )


def _allowlist_page(source: AllowlistOnGitHub) -> str:
    location = source.location
    return f"{source.web}/{location.repository}/blob/{quote(location.ref, safe='')}/{quote(location.path)}"


def _client_address(settings: Settings, request: Request) -> str:
    peer = request.client.host if request.client else None
    return client_address(peer, request.headers.getlist("x-forwarded-for"), settings.trusted_proxies)
