"""Shared by all pages: the location, the views that the reader may see, the frame around the content, and error pages.

A page that cannot be shown becomes an error page with the right status; it never shows zeros for data that could not
be read.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from crcr.decide.model import RepoName
from crcr.errors import CrcrError, NotFound
from crcr.ports import Clock
from crcr.record.views.sql_views import SqlViews
from crcr.show.access.reader import get_reader
from crcr.show.http.response_headers import accepts_html
from crcr.show.http.same_site import local_path
from crcr.show.live.shared_health import SharedHealth, health_signature
from crcr.show.render.notices import read_notice
from crcr.show.render.templates import Renderer
from crcr.show.urls.location import PageLocation, pick_kind, pick_span, pick_upstream

_TITLES: Mapping[int, str] = {
    400: "Not understood",
    401: "Not signed in",
    403: "Not allowed",
    404: "Not found",
    405: "Not possible here",
    409: "Not possible now",
    413: "Too large",
    429: "Too many attempts",
    503: "The data cannot be read right now",
}

Build = Callable[[Request, PageLocation], Awaitable[Response]]


class NotListed(NotFound):
    """A repository that is not on the allowlist, or hidden: the page links to the onboarding."""

    def __init__(self, repository: RepoName, upstream: RepoName) -> None:
        super().__init__(
            f"{repository} is not a backend of this upstream: it is not on the allowlist of {upstream}."
        )
        self.repository = repository


class Frame:
    def __init__(
        self,
        views: SqlViews,
        *,
        upstreams: tuple[RepoName, ...],
        clock: Clock,
        github_url: str = "https://github.com",
        public_url: str = "http://127.0.0.1:8000",
        sandbox: bool = False,
        shadow: bool = False,
        health: SharedHealth | None = None,
        is_public: bool = False,
        polls: bool = False,
    ) -> None:
        """With `is_public` everybody may read the pages, and pasted links have previews.

        With `polls`, live pages are read again from time to time, because there is no stream of changes.
        """
        self.renderer = Renderer()
        self.clock = clock
        self.site = public_url.rstrip("/")
        """The public address; the `Host` of a request may be anything."""
        self.sandbox = sandbox
        self.shadow = shadow
        self.is_public = is_public
        self._polls = polls
        self._health = health
        self._views = views
        self._upstreams = upstreams
        self._github_url = github_url.rstrip("/")

    def views(self, request: Request) -> SqlViews:
        """Return the views that this reader may see."""
        return self._views.for_admins() if get_reader(request).admin else self._views

    def endpoint(self, build: Build) -> Callable[[Request], Awaitable[Response]]:
        """Return `build` as the endpoint of a route, called with the location of the page.

        Errors are not caught here: the app's handlers call `problem`, which finds the location in the request's state.
        """

        async def endpoint(request: Request) -> Response:
            request.state.location = self.location(request)
            upstream = pick_upstream(self._upstreams, request.query_params.get("upstream"))
            location = request.state.location = self.location(request, upstream)
            request.state.health = (
                await self._health.read_upstream(location.upstream) if self._health else None
            )
            return await build(request, location)

        return endpoint

    def location(self, request: Request, upstream: RepoName | None = None) -> PageLocation:
        return PageLocation(
            self._upstreams,
            upstream or self._upstreams[0],
            pick_span(request.query_params.get("range")),
            request.scope["path"],  # `request.url` is built with the caller's `Host`
            self._github_url,
            pick_kind(request.query_params.get("kind")),
        )

    def page(
        self,
        request: Request,
        template: str,
        location: PageLocation,
        *,
        cursor: int | None = None,
        **context: Any,
    ) -> Response:
        """Render a page; with `cursor` it is live."""
        shared = {**self._shared(request, location), "cursor": cursor}
        return self.renderer.page(template, {**shared, **context})

    def problem(
        self, request: Request, problem: CrcrError, status: int, headers: Mapping[str, str]
    ) -> Response | None:
        """Return an error as a page; None where the client does not expect one."""
        location = getattr(request.state, "location", None)
        if location is None and not _expects_page(request):
            return None
        shared = {**self._shared(request, location or self.location(request)), "cursor": None}
        unlisted = problem.repository if isinstance(problem, NotListed) else None
        title = _TITLES.get(status, "Something went wrong")
        context = {**shared, "title": title, "problem": problem, "unlisted": unlisted}
        return self.renderer.page("problem.html", context, code=status, headers=headers)

    def _shared(self, request: Request, location: PageLocation) -> Mapping[str, Any]:
        health = getattr(request.state, "health", None)
        return {
            **_request_context(request, location),
            "number": None,
            "preview": None,
            "feed": None,
            "sandbox": self.sandbox,
            "shadow": self.shadow,
            "polls": self._polls,
            "relay_health": health,
            "health_mark": health_signature(health),
            "now": self.clock.now(),
        }


def _request_context(request: Request, location: PageLocation) -> Mapping[str, Any]:
    is_fragment = request.query_params.get("fragment") in {"main", "parts"}
    return {
        "frame": "fragment.html" if is_fragment else "base.html",
        "location": location,
        "reader": get_reader(request),
        "notice": read_notice(request),
        "query_params": request.query_params,
        "address": _address(request),
    }


_TRANSIENT = frozenset({"fragment", "have", "done", "n", "v"})
"""Parameters that a script or a redirect adds to an address; the reader did not choose them."""


def _address(request: Request) -> str:
    """Return the address of the page with all choices of the reader, to return to."""
    chosen = [pair for pair in request.query_params.multi_items() if pair[0] not in _TRANSIENT]
    path = quote(request.scope["path"], safe="/")
    return local_path(f"{path}?{urlencode(chosen)}" if chosen else path)


def _expects_page(request: Request) -> bool:
    """Return whether the address is one of a page, and the client accepts HTML."""
    path = str(request.scope["path"])
    is_page = path in {"/", "/crcr", "/api/docs"} or path.startswith(("/crcr/", "/docs/"))
    return is_page and accepts_html(request.headers.get("accept", ""))
