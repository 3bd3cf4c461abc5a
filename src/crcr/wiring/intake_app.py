"""The ASGI app of a process that takes in webhooks, callbacks and results, and serves no pages; and the app of a worker.

Nothing that only pages need is imported here: FastAPI, templates and charts cost memory and time at start.
"""

from collections.abc import Awaitable, Callable
from html import escape
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crcr.app import Edge, Intake, create_app, error_response
from crcr.errors import CrcrError, IntakeElsewhere, PagesElsewhere, PagesStarting
from crcr.receive.http.response import IntakeResponse
from crcr.receive.ingest.intake import IngestIntake
from crcr.record.views.sql_views import SqlViews
from crcr.show.metrics import health as probes
from crcr.wiring.background import BackgroundTasks
from crcr.wiring.core import gate_policies
from crcr.wiring.services import Services

_RESULTS = "/api/crcr/results"
_HOT = ("/github/webhook", "/github/webhook/", "/github/callback", "/github/callback/")
_PROBES = ("/healthz", "/readyz", "/readyz/callback", "/metrics")
INTAKE_PATHS = frozenset({*_HOT, _RESULTS, *_PROBES})
"""Paths that the intake process answers itself. All others are pages."""
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def build_intake_app(services: Services, *, work: bool = True, starts_pages: bool = False) -> Edge:
    """Return the app without pages; with `starts_pages`, pages are served by a process that is not up now."""
    views = SqlViews(
        services.database, services.allowlists, services.upstreams, gate_policies(services.settings)
    )
    encrypted = urlsplit(services.settings.public_url).scheme == "https"
    return create_app(
        hot=intake_routes(services),
        routes=[
            ingest_route(services.ingest),
            *health_routes(services, views, services.rate_limits.check),
            _no_pages_route(starts_pages=starts_pages),
        ],
        routers=None,
        background=BackgroundTasks(services, work=work, request_side_tasks=(services.webhook.refused.run,)),
        on_crash=services.on_crash,
        around=lambda app: _SafeHeaders(app, encrypted=encrypted),
    )


def build_probes(services: Services) -> Edge:
    """Return the ASGI app of a worker's own port: probes and metrics; the worker and its loops run beside it."""
    views = SqlViews(
        services.database, services.allowlists, services.upstreams, gate_policies(services.settings)
    )
    return create_app(
        hot={},
        routes=health_routes(services, views),
        routers=None,
        background=BackgroundTasks(services, work=True),
        on_crash=services.on_crash,
    )


def intake_routes(services: Services) -> dict[str, Intake]:
    services.metrics.accepts_requests()
    webhook, callback = services.webhook.handle, services.callback.handle
    return dict(zip(_HOT, (webhook, webhook, callback, callback), strict=True))


def refusing_intake_routes() -> dict[str, Intake]:
    async def refuse(_: Request) -> IntakeResponse:
        raise _intake_elsewhere()

    return dict.fromkeys(_HOT, refuse)


def _intake_elsewhere() -> IntakeElsewhere:
    return IntakeElsewhere(hint="a process with the role intake or all takes them in")


def ingest_route(intake: IngestIntake | None) -> Route:
    """The route for results of other relays; it refuses them without an intake."""

    async def ingest(request: Request) -> Response:
        if intake is None:
            raise _intake_elsewhere()
        try:
            answer = await intake.handle(request)
        except ClientDisconnect:
            return Response(status_code=400)
        return JSONResponse(answer.body, answer.status, headers={"Cache-Control": "no-store"})

    return Route(_RESULTS, ingest, methods=["POST"], include_in_schema=False)


def health_routes(
    services: Services, views: SqlViews, check_limiter: Callable[[], Awaitable[None]] | None = None
) -> list[BaseRoute]:
    return probes.routes(
        views,
        metrics=services.metrics,
        clock=services.clock,
        health=services.health,
        is_public=services.settings.hud_access == "public",
        stopping=services.stopping,
        check_limiter=check_limiter,
    )


def _no_pages_route(*, starts_pages: bool) -> Route:
    """Answer every path without a route: as a page for a browser, else as JSON."""

    async def refuse(request: Request) -> Response:
        problem: CrcrError = (
            PagesStarting()
            if starts_pages
            else PagesElsewhere(hint="a process with the role hud or all serves them")
        )
        response = error_response(problem, str(request.scope["state"]["request_id"]))
        response.headers["cache-control"] = "no-store"
        if "text/html" not in request.headers.get("accept", ""):
            return response
        headers = {name: value for name, value in response.headers.items() if name in _KEPT_HEADERS}
        return HTMLResponse(_page(problem), response.status_code, headers)

    return Route("/{path:path}", refuse, methods=_METHODS)


_KEPT_HEADERS = ("retry-after", "cache-control", "x-content-type-options")


def _page(problem: CrcrError) -> str:
    texts = [f"<p>{escape(text)}</p>" for text in (problem.detail, problem.hint) if text]
    refresh = '<meta http-equiv="refresh" content="2">' if isinstance(problem, PagesStarting) else ""
    return f'<!doctype html><html lang="en"><meta charset="utf-8">{refresh}<title>crcr</title>{"".join(texts)}</html>\n'


class _SafeHeaders:
    """Headers that every response has; pages have more (`show.http.response_headers`)."""

    def __init__(self, app: ASGIApp, *, encrypted: bool) -> None:
        self._app = app
        self._encrypted = encrypted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": list(message["headers"])}
                headers = MutableHeaders(raw=message["headers"])
                headers.setdefault("X-Content-Type-Options", "nosniff")
                headers.setdefault("X-Robots-Tag", "noindex")
                if self._encrypted:
                    headers.setdefault("Strict-Transport-Security", "max-age=31536000")
            await send(message)

        await self._app(scope, receive, send_with_headers)
