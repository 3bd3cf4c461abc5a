"""The pages' addresses, put together; each family of pages has a module of its own."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from crcr.show import (
    badge,
    pages_backend,
    pages_commit,
    pages_log,
    pages_numbers,
    pages_onboarding,
    pages_sandbox,
)
from crcr.show.docs_page import docs_endpoint
from crcr.show.frame import Frame
from crcr.show.live_delay import LiveDelay
from crcr.show.pages_onboarding import Welcome
from crcr.show.statics import shared_statics


def routes(frame: Frame, delay: LiveDelay | None = None, welcome: Welcome | None = None) -> list[BaseRoute]:
    """All HTML routes, static files and `/api/docs` included. Literal addresses stand before `{org}/{repo}`."""
    return [
        Route("/", _home),
        Route("/crcr/", _without_slash),
        *pages_numbers.routes(frame, delay),
        *pages_commit.routes(frame),
        *pages_log.routes(frame),
        *pages_onboarding.routes(frame, welcome),
        *pages_sandbox.routes(frame, welcome),
        *pages_backend.routes(frame),
        Route("/crcr/{rest:path}/", _without_slash),
        *badge.routes(frame),
        Route("/api/docs", docs_endpoint(frame.renderer), include_in_schema=False),
        shared_statics().route(),
    ]


async def _home(_: Request) -> Response:
    return RedirectResponse("/crcr", status_code=307)


async def _without_slash(request: Request) -> Response:
    """The page that was meant, on this site whatever the caller calls it."""
    query = request.scope["query_string"].decode("latin-1")
    path = quote(request.scope["path"].rstrip("/"))
    return RedirectResponse(f"{path}?{query}" if query else path, status_code=308)
