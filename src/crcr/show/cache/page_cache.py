"""A cache of rendered pages with single flight: simultaneous requests for a page share one rendering.

The key is the address; only readers who are not signed in are served from the cache, because they all see the same page. An
entry is valid while its upstream has no newer change, and for one second at most. A live reader names the change that it
needs (`v=<change id>`) and accepts any entry that is not older. A rendering runs in its own task: it continues when the
reader that started it disconnects.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crcr.decide.model import RepoName
from crcr.errors import NotFound, Unavailable
from crcr.ports import Clock
from crcr.show.access.reader import Reader
from crcr.show.cache.newest_changes import NewestChanges
from crcr.show.cache.rendered_page import MAX_AGE_S, RenderedPage, expiry, make_page
from crcr.show.http.response_headers import accepts_html
from crcr.show.urls.location import pick_upstream

MOST_BYTES = 48 * 1024 * 1024
_LARGEST_PAGE = MOST_BYTES // 4
"""The summary of 1,000 backends has 2.7 MB, which count twice."""
_LONGEST_QUERY = 2_000
_KEPT_PAGES = (
    "/crcr/pr/",
    "/crcr/commit/",
    "/crcr/bisections/",
    "/badge/",
    "/og/",
    "/api/v1/pulls/",
    "/api/v1/commits/",
    "/api/v1/backends/",
    "/api/v1/bisections/",
)
_KEPT_PATHS = frozenset(
    {
        *("/crcr", "/crcr/pulls", "/crcr/commits", "/crcr/metrics", "/crcr/failing", "/crcr/bisections"),
        *("/crcr/compat", "/api/v1/compat", "/api/v1/compat/latest-green"),
        *("/api/v1/pulls", "/api/v1/commits"),
        *("/api/v1/summary", "/api/v1/metrics", "/api/v1/failing", "/api/v1/culprits", "/api/v1/bisections"),
        "/api/v1/search/suggest",
        *("/crcr/failures", "/crcr/levels", "/api/v1/failures", "/api/v1/levels"),
    }
)
_OWN_PAGES = frozenset(
    {
        "admin",
        "audit",
        "bisections",
        "commits",
        "deliveries",
        "effects",
        "failing",
        "j",
        "login",
        "notices",
        "onboarding",
        "pulls",
        "sandbox",
        "search",
        "waivers",
    }
)
"""First words after `/crcr/` that are no owner of a backend."""
_FEED = "/feed.atom"
"""The end of a feed's address, after that of its page."""
_MANY_READERS = 8
_PAUSE_FACTOR = 3.0
_LONGEST_PAUSE_S = 1.0
_BIGGEST_VERSION = 2**63 - 1


class AnsweredFrom(StrEnum):
    KEPT = "kept"
    RENDERING = "rendering"
    SHARED_RENDERING = "shared_rendering"
    """A rendering that another reader's request began."""


PageKey = tuple[str, str, bool]
"""Path, query, and whether the client accepts HTML: an error is a page or JSON."""


@dataclass(slots=True)
class RenderPause:
    """Between two renderings of a page with many readers: three times what the last one took, a second at most."""

    ended: float
    took_s: float
    readers: int = 0

    def rest_s(self, now: float) -> float:
        if self.readers < _MANY_READERS:
            return 0.0
        return max(0.0, self.ended + min(_LONGEST_PAUSE_S, _PAUSE_FACTOR * self.took_s) - now)


class PageCache:
    def __init__(
        self,
        app: ASGIApp,
        *,
        upstreams: tuple[RepoName, ...],
        newest: NewestChanges,
        clock: Clock,
        max_age_s: float = MAX_AGE_S,
        most_bytes: int = MOST_BYTES,
        on_answer: Callable[[AnsweredFrom], None] = lambda _: None,
    ) -> None:
        """`on_answer` learns where each answer came from."""
        self._app = app
        self._upstreams = upstreams
        self._newest = newest
        self._clock = clock
        self._max_age_s = max_age_s
        self._most_bytes = most_bytes
        self._on_answer = on_answer
        self._pages: OrderedDict[PageKey, RenderedPage] = OrderedDict()
        self._bytes = 0
        self._renderings: dict[PageKey, _Rendering] = {}
        self._pauses: OrderedDict[PageKey, RenderPause] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _read_request(scope, self._upstreams)
        if request is None:
            await self._app(scope, receive, send)
            return
        try:
            newest = await self._read_newest(request)
            # An address that names a change which is not known yet must not be kept by others.
            may_be_shared = request.version is None or request.version <= self._newest.position
            page, crash = await self._find_or_render(request, scope, newest)
        except Unavailable:
            await self._app(scope, receive, send)  # which says so, as a page
            return
        await page.send(send, request.headers, may_be_shared=may_be_shared)
        if crash is not None:
            raise crash

    async def _find_or_render(
        self, request: "_PageRequest", scope: Scope, newest: int
    ) -> tuple[RenderedPage, BaseException | None]:
        needed = newest if request.version is None else min(request.version, newest)
        page = self._find(request.key, needed)
        if page is None:
            return await self._render(request, scope, needed)
        self._on_answer(AnsweredFrom.KEPT)
        return page, None

    async def _read_newest(self, request: "_PageRequest") -> int:
        newest = await self._newest.read(request.upstream)
        if request.version is not None and request.version > self._newest.position:
            await self._newest.catch_up()
            newest = await self._newest.read(request.upstream)
        return newest

    def _find(self, key: PageKey, version: int) -> RenderedPage | None:
        page = self._pages.get(key)
        if page is None or not page.is_current(version, self._clock.now()):
            return None
        self._pages.move_to_end(key)
        if pause := self._pauses.get(key):
            pause.readers += 1
        return page

    async def _render(
        self, request: "_PageRequest", scope: Scope, needed: int
    ) -> tuple[RenderedPage, BaseException | None]:
        """Wait for a rendering that is not older than `needed`: the running one, or the next.

        Who began it gets the exception of a page that crashed, too; the others get the error page.
        """
        while True:
            rendering, began = self._renderings.get(request.key), False
            if rendering is None:
                rendering, began = _Rendering(_scope_for_all(scope, request.key)), True
                self._renderings[request.key] = rendering
                rendering.task = asyncio.create_task(self._render_once(request, rendering))
            rendering.readers += 1
            self._on_answer(AnsweredFrom.RENDERING if began else AnsweredFrom.SHARED_RENDERING)
            await asyncio.wait({rendering.task})  # not cancelled with the reader
            crash = rendering.task.exception()
            if crash is not None and not rendering.headers:
                raise crash
            page = rendering.page()
            if page.version >= needed or crash is not None:
                return page, crash if began else None

    async def _render_once(self, request: "_PageRequest", rendering: "_Rendering") -> None:
        loop = asyncio.get_running_loop()
        try:
            if pause := self._pauses.get(request.key):
                await asyncio.sleep(pause.rest_s(loop.time()))
            # Read before the page's own snapshot, which is then not older.
            rendering.version = await self._newest.read(request.upstream)
            now, began = self._clock.now(), loop.time()
            rendering.began_at, rendering.expires_at = now, expiry(now, self._max_age_s)
            await self._app(rendering.scope, rendering.receive, rendering.add)
            self._keep(request.key, rendering.page(), now)
            self._note_pause(request.key, RenderPause(loop.time(), loop.time() - began, rendering.readers))
        finally:
            del self._renderings[request.key]

    def _keep(self, key: PageKey, page: RenderedPage, now: datetime) -> None:
        if (old := self._pages.pop(key, None)) is not None:
            self._bytes -= old.size
        if page.tag is None or page.size > _LARGEST_PAGE or now >= page.expires_at:
            return
        self._pages[key] = page
        self._bytes += page.size
        while self._bytes > self._most_bytes:
            _, oldest = self._pages.popitem(last=False)
            self._bytes -= oldest.size

    def _note_pause(self, key: PageKey, pause: RenderPause) -> None:
        self._pauses[key] = pause
        self._pauses.move_to_end(key)
        while len(self._pauses) > len(self._pages) + 1:
            self._pauses.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _PageRequest:
    key: PageKey
    upstream: RepoName
    version: int | None
    """The change that the reader waits for; None for the newest."""
    headers: Headers


def _read_request(scope: Scope, upstreams: tuple[RepoName, ...]) -> _PageRequest | None:
    """Return the request for a page that may be kept, from a reader who is not signed in; None for any other."""
    if scope["type"] != "http" or scope["method"] != "GET" or not _is_kept_path(scope["path"]):
        return None
    reader, query = scope.get("state", {}).get("reader"), scope["query_string"]
    if not isinstance(reader, Reader) or reader.name is not None or reader.admin:
        return None
    if len(query) > _LONGEST_QUERY or b"format=" in query.replace(b"format=text", b""):
        return None
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True)
        upstream = pick_upstream(upstreams, dict(pairs).get("upstream"))  # the last one, as for the page
    except (ValueError, NotFound):
        return None  # the app says what is wrong
    version, rest = _split_version(query.decode("ascii"))
    headers = Headers(scope=scope)
    key = (scope["path"], rest, accepts_html(headers.get("accept", "")))
    return _PageRequest(key, upstream, version, headers)


def _is_kept_path(path: str) -> bool:
    if path in _KEPT_PATHS or path.startswith(_KEPT_PAGES):
        return ".csv" not in path  # a route also matches an address with a line break at its end
    path = path.removesuffix(_FEED)
    owner, _, repository = (
        path.removeprefix("/crcr/").partition("/") if path.startswith("/crcr/") else ("", "", "")
    )
    return bool(owner and repository) and "/" not in repository and owner not in _OWN_PAGES


def _split_version(query: str) -> tuple[int | None, str]:
    """Return `v` of a query, and the query without it, otherwise as it was written.

    `v=<change id>-<mark>` stays: health is not in the log, so that a page from before this mark may be of the same change.
    """
    version, rest = None, []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        number, dash, _ = value.partition("-")
        is_version = (
            name == "v" and number.isdecimal() and number.isascii() and int(number) <= _BIGGEST_VERSION
        )
        if is_version:
            version = int(number)
        if not is_version or dash:
            rest.append(part)
    return version, "&".join(rest)


def _scope_for_all(scope: Scope, key: PageKey) -> Scope:
    """Return the request without what belongs to the reader who caused the rendering."""
    _, query, wants_html = key
    accept = b"text/html" if wants_html else b"application/json"
    return {
        **scope,
        "method": "GET",
        "query_string": query.encode("ascii"),
        "headers": [(b"host", b"relay"), (b"accept", accept)],
        "state": dict(scope.get("state", {})),
        "extensions": {},
    }


class _Rendering:
    """One rendering: buffers the app's response for all requests that share it."""

    task: asyncio.Task[None]
    began_at: datetime
    expires_at: datetime

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.version = 0
        self.readers = 0
        self._is_received = False
        self.headers: list[tuple[bytes, bytes]] = []
        self._status = 500
        self._body = b""
        self._page: RenderedPage | None = None

    async def receive(self) -> Message:
        """Return a request without a body; after it nothing comes, since no reader of many can disconnect for all."""
        if self._is_received:
            await asyncio.Event().wait()
        self._is_received = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def add(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self.headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")

    def page(self) -> RenderedPage:
        if self._page is None:
            self._page = make_page(
                self._status,
                self.headers,
                self._body,
                version=self.version,
                rendered_at=self.began_at,
                expires_at=self.expires_at,
            )
        return self._page
