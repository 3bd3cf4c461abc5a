"""The routes of all pages; each family of pages has its own module."""

from functools import partial
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from crcr.show.compatibility import routes as compatibility
from crcr.show.feeds import routes as feeds
from crcr.show.help import docs_site
from crcr.show.http.static_files import load_static_files
from crcr.show.levels import routes as levels
from crcr.show.live.change_feed import LiveDelay
from crcr.show.pages import (
    backend,
    badge,
    bisections,
    commit,
    failing,
    failures,
    grids,
    logs,
    onboarding,
    overview,
    sandbox,
)
from crcr.show.pages.api_docs import docs_endpoint
from crcr.show.pages.frame import Frame
from crcr.show.pages.onboarding import OnboardingSettings
from crcr.show.previews import routes as previews
from crcr.show.search import page as search
from crcr.show.urls.location import PageLocation


def routes(
    frame: Frame, delay: LiveDelay | None = None, settings: OnboardingSettings | None = None
) -> list[BaseRoute]:
    """All HTML routes, static files and `/api/docs` included. Literal addresses come before `{org}/{repo}`."""
    return [
        Route("/", _home),
        Route("/crcr/", _without_slash),
        Route("/crcr/help", frame.endpoint(partial(_help, frame))),
        *overview.routes(frame, delay, (settings or OnboardingSettings()).app_page),
        *grids.routes(frame),
        *commit.routes(frame),
        *failing.routes(frame),
        *levels.routes(frame),
        *compatibility.routes(frame),
        *logs.routes(frame),
        *search.routes(frame),
        *failures.routes(frame),
        *bisections.routes(frame),
        *onboarding.routes(frame, settings),
        *sandbox.routes(frame, (settings or OnboardingSettings()).audience),
        *backend.routes(frame),
        *feeds.routes(frame),
        Route("/crcr/{rest:path}/", _without_slash),
        *badge.routes(frame),
        *previews.routes(frame),
        Route("/api/docs", docs_endpoint(frame.renderer), include_in_schema=False),
        *docs_site.routes(),
        load_static_files().route(),
    ]


async def _help(frame: Frame, request: Request, location: PageLocation) -> Response:
    """Its text is generated from docs/help.md and docs/glossary.md by `make docs`."""
    return frame.page(request, "help.html", location)


async def _home(_: Request) -> Response:
    return RedirectResponse("/crcr", status_code=307)


async def _without_slash(request: Request) -> Response:
    """The page that was meant, on this site whatever the caller calls it."""
    query = request.scope["query_string"].decode("latin-1")
    path = quote(request.scope["path"].rstrip("/"))
    return RedirectResponse(f"{path}?{query}" if query else path, status_code=308)
