"""What all pages share: where the reader is, whose eyes they see with, the frame around them, and how they fail.

A page that cannot be shown says so as a page, with the right status; it never shows zeros for what it could
not read.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from crcr.decide.model import RepoName
from crcr.errors import BadRequest, CrcrError, NotFound, Unavailable
from crcr.ports import Clock
from crcr.show.access.reader import reader_of
from crcr.show.http.same_site import local_path
from crcr.show.live.shared_health import SharedHealth, mark_of
from crcr.show.ports import Views
from crcr.show.render.notices import notice_of
from crcr.show.render.templates import Renderer
from crcr.show.urls.location import Here, pick_kind, pick_span, pick_upstream

PROBLEMS: dict[type[CrcrError], tuple[int, str]] = {
    NotFound: (404, "Not found"),
    BadRequest: (400, "Not understood"),
    Unavailable: (503, "The data cannot be read right now"),
}

Build = Callable[[Request, Here], Awaitable[Response]]


class NotListed(NotFound):
    """A repository that is not on the allowlist, or not to be seen: the page leads to how one joins."""

    def __init__(self, repository: RepoName, upstream: RepoName) -> None:
        super().__init__(
            f"{repository} is not a backend of this upstream: it is not on the allowlist of {upstream}."
        )
        self.repository = repository


class Frame:
    def __init__(
        self,
        views: Views,
        *,
        upstreams: tuple[RepoName, ...],
        clock: Clock,
        github_url: str = "https://github.com",
        public_url: str = "http://127.0.0.1:8000",
        sandbox: bool = False,
        health: SharedHealth | None = None,
    ) -> None:
        self.renderer = Renderer()
        self.clock = clock
        self.site = public_url.rstrip("/")
        """Where readers reach us; a request only says what its sender calls us."""
        self.sandbox = sandbox
        self._health = health
        self._views = views
        self._upstreams = upstreams
        self._github_url = github_url.rstrip("/")

    def views(self, request: Request) -> Views:
        """The views as this reader may see them."""
        return self._views.for_admins() if reader_of(request).admin else self._views

    def endpoint(self, build: Build) -> Callable[[Request], Awaitable[Response]]:
        """`build` as a route's end, given where the reader is; what it raises becomes a page."""

        async def answer(request: Request) -> Response:
            here = self.here(request, self._upstreams[0])
            try:
                asked = request.query_params.get("upstream")
                here = self.here(request, pick_upstream(self._upstreams, asked))
                request.state.health = await self._health.of(here.upstream) if self._health else None
                return await build(request, here)
            except (NotFound, BadRequest, Unavailable) as problem:
                return self.problem(request, here, problem)

        return answer

    def here(self, request: Request, upstream: RepoName | None = None) -> Here:
        return Here(
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
        here: Here,
        *,
        cursor: int | None = None,
        **context: Any,
    ) -> Response:
        """`cursor` makes the page live."""
        shared = {**self._shared(request, here), "cursor": cursor}
        return self.renderer.page(template, {**shared, **context})

    def problem(self, request: Request, here: Here, problem: CrcrError) -> Response:
        code, title = next(row for kind, row in PROBLEMS.items() if isinstance(problem, kind))
        shared = {**self._shared(request, here), "cursor": None}
        headers = {"Retry-After": "5"} if code == 503 else {}
        unlisted = problem.repository if isinstance(problem, NotListed) else None
        context = {**shared, "title": title, "problem": problem, "unlisted": unlisted}
        return self.renderer.page("problem.html", context, code=code, headers=headers)

    def _shared(self, request: Request, here: Here) -> Mapping[str, Any]:
        health = getattr(request.state, "health", None)
        return {
            **_around(request, here),
            "number": None,
            "sandbox": self.sandbox,
            "relay_health": health,
            "health_mark": mark_of(health),
            "now": self.clock.now(),
        }


def _around(request: Request, here: Here) -> Mapping[str, Any]:
    part = request.query_params.get("fragment") == "main"
    return {
        "frame": "fragment.html" if part else "base.html",
        "here": here,
        "reader": reader_of(request),
        "notice": notice_of(request),
        "asked": request.query_params,
        "address": _address(request),
    }


_PASSING = frozenset({"fragment", "done", "n"})
"""What a script or a redirect adds to an address; nobody chose it."""


def _address(request: Request) -> str:
    """The page itself with all that was chosen on it, to come back to."""
    chosen = [pair for pair in request.query_params.multi_items() if pair[0] not in _PASSING]
    path = quote(request.scope["path"], safe="/")
    return local_path(f"{path}?{urlencode(chosen)}" if chosen else path)


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


class ProblemPages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def page(
        self, request: Request, problem: CrcrError, status: int, headers: Mapping[str, str]
    ) -> Response | None:
        if not _is_page(request):
            return None
        title = _TITLES.get(status, "Something went wrong")
        here = self._frame.here(request)
        answer = self._frame.page(request, "problem.html", here, title=title, problem=problem)
        answer.status_code = status
        answer.headers.update(headers)
        return answer


def _is_page(request: Request) -> bool:
    """Whether people look at this address, and this caller can show a page."""
    path = str(request.scope["path"])
    looked_at = path in {"/", "/crcr", "/api/docs"} or path.startswith("/crcr/")
    return looked_at and _shows_pages(request.headers.get("accept", ""))


def _shows_pages(accept: str) -> bool:
    """A browser says so, in whichever case; who takes anything gets what stands at such addresses: a page."""
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return "text/html" in kinds or (bool(kinds & {"*/*", "text/*", ""}) and "application/json" not in kinds)
