"""The pages: `/crcr`, a backend's, a pull request's and a commit's own, whole or only their main part for live updates.

A page that cannot be shown says so as a page, with the right status; it never shows zeros for what it could
not read.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from crcr.decide.model import RepoName, is_repo_name
from crcr.decide.views import Span
from crcr.errors import BadRequest, CrcrError, NotFound, Unavailable
from crcr.ports import Clock
from crcr.show.docs_page import docs_endpoint
from crcr.show.here import Here, is_sha, pick_span, pick_upstream
from crcr.show.port import Views
from crcr.show.rendering import Renderer
from crcr.show.statics import Statics

_PROBLEMS: dict[type[CrcrError], tuple[int, str]] = {
    NotFound: (404, "Not found"),
    BadRequest: (400, "Not understood"),
    Unavailable: (503, "The data cannot be read right now"),
}

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_Build = Callable[[Request, Here], Awaitable[Response]]


def routes(
    views: Views, *, upstreams: tuple[RepoName, ...], clock: Clock, github_url: str = "https://github.com"
) -> list[BaseRoute]:
    """All HTML routes, static files and `/api/docs` included. Needs the app's OpenAPI only when that is asked."""
    statics = Statics()
    pages = Pages(views, Renderer(statics), upstreams, clock, github_url.rstrip("/"))
    return [
        Route("/", _home),
        Route("/crcr", pages.summary),
        Route("/crcr/pr/{number}", pages.pull),
        Route("/crcr/commit/{sha}", pages.commit),
        Route("/crcr/{org}/{repo}", pages.backend),
        Route("/api/docs", docs_endpoint(pages.renderer), include_in_schema=False),
        statics.route(),
    ]


class Pages:
    def __init__(
        self,
        views: Views,
        renderer: Renderer,
        upstreams: tuple[RepoName, ...],
        clock: Clock,
        github_url: str,
    ) -> None:
        self.renderer = renderer
        self._views = views
        self._upstreams = upstreams
        self._clock = clock
        self._github_url = github_url

    async def summary(self, request: Request) -> Response:
        return await self._answer(request, self._summary)

    async def backend(self, request: Request) -> Response:
        return await self._answer(request, self._backend)

    async def pull(self, request: Request) -> Response:
        return await self._answer(request, self._pull)

    async def commit(self, request: Request) -> Response:
        return await self._answer(request, self._commit)

    async def _summary(self, request: Request, here: Here) -> Response:
        summary = await self._views.summary(here.upstream, here.span, self._clock.now())
        return self._page(request, "summary.html", here, summary=summary, cursor=summary.cursor)

    async def _backend(self, request: Request, here: Here) -> Response:
        name = "{org}/{repo}".format(**request.path_params)
        if not is_repo_name(name):
            raise NotFound(f"{name[:150]} is not the name of a repository")
        page = await self._views.backend(here.upstream, RepoName(name), here.span, self._clock.now())
        return self._page(request, "backend.html", here, page=page, cursor=page.cursor)

    async def _pull(self, request: Request, here: Here) -> Response:
        asked = request.path_params["number"]
        if not _NUMBER.fullmatch(asked):
            raise NotFound(f"{asked[:50]} is not the number of a pull request")
        pull = await self._views.pull(here.upstream, int(asked), self._clock.now())
        return self._page(
            request, "pull.html", here, cursor=pull.cursor, pull=pull, number=pull.number, spans=[]
        )

    async def _commit(self, request: Request, here: Here) -> Response:
        sha = request.path_params["sha"].lower()
        if not is_sha(sha):
            raise NotFound(f"{sha[:50]} is not the whole SHA of a commit", hint="give all 40 digits")
        delivery = request.query_params.get("delivery", "")[:200] or None
        commit = await self._views.commit(here.upstream, sha, self._clock.now(), delivery=delivery)
        return self._page(request, "commit.html", here, cursor=commit.cursor, commit=commit, spans=[])

    async def _answer(self, request: Request, build: _Build) -> Response:
        here = self._here(request, self._upstreams[0])
        try:
            here = self._here(request, pick_upstream(self._upstreams, request.query_params.get("upstream")))
            return await build(request, here)
        except (NotFound, BadRequest, Unavailable) as problem:
            return self._problem(request, here, problem)

    def _here(self, request: Request, upstream: RepoName) -> Here:
        span = pick_span(request.query_params.get("range"))
        return Here(self._upstreams, upstream, span, request.url.path, self._github_url)

    def _page(
        self, request: Request, template: str, here: Here, *, cursor: int | None, **context: Any
    ) -> Response:
        frame = "fragment.html" if request.query_params.get("fragment") == "main" else "base.html"
        shared = {"frame": frame, "here": here, "spans": list(Span), "cursor": cursor, "number": None}
        return self.renderer.page(template, {**shared, **context})

    def _problem(self, request: Request, here: Here, problem: CrcrError) -> Response:
        code, title = next(row for kind, row in _PROBLEMS.items() if isinstance(problem, kind))
        frame = "fragment.html" if request.query_params.get("fragment") == "main" else "base.html"
        context = {"frame": frame, "here": here, "spans": [], "cursor": None, "number": None, "title": title}
        headers = {"Retry-After": "5"} if code == 503 else {}
        return self.renderer.page("problem.html", {**context, "problem": problem}, code=code, headers=headers)


async def _home(_: Request) -> Response:
    return RedirectResponse("/crcr", status_code=307)
