"""Admission control for pages and API queries: a limit on concurrent requests, and a bounded queue.

A request over the limit waits in the queue for at most ten seconds, because its reader may have left by then. When the queue
is full, the response is 503 with Retry-After at once. Signed-in readers have additional slots of their own, so that an
operator can act during a flood.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crcr.show.access.reader import Reader
from crcr.show.http.response_headers import accepts_html

AT_ONCE = 4
"""They share one interpreter: more at once make each slower."""
WAITING = 64
LONGEST_WAIT_S = 10.0
_SIGNED_IN_AT_ONCE = 2
_SIGNED_IN_WAITING = 16
RETRY_AFTER_S = 2
_QUEUED = ("/crcr/", "/api/v1/", "/badge/", "/og/")
_NOT_QUEUED = frozenset({"/api/v1/events", "/api/v1/health", "/crcr/login", "/crcr/logout"})
_PAGE = (
    b"<!doctype html><html lang=en><meta charset=utf-8><title>Too many readers</title>"
    b"<h1>Too many readers right now</h1><p>The relay works; only its pages are busy. Try again in a few seconds.</p></html>"
)
_JSON = msgspec.json.encode(
    {
        "ok": False,
        "error": {
            "code": "unavailable",
            "detail": "too many pages and queries are asked for at once",
            "hint": f"try again in {RETRY_AFTER_S} seconds or later; webhooks and callbacks are not affected",
        },
    }
)


@dataclass(slots=True)
class _Places:
    at_once: int
    most_waiting: int
    slots: asyncio.Semaphore = field(init=False)
    waiting: int = 0

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.at_once)

    @property
    def are_full(self) -> bool:
        return self.slots.locked() and self.waiting >= self.most_waiting


class RenderQueue:
    def __init__(
        self,
        app: ASGIApp,
        *,
        at_once: int = AT_ONCE,
        waiting: int = WAITING,
        longest_wait_s: float = LONGEST_WAIT_S,
        on_waiting: Callable[[int], None] = lambda _: None,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._anyone = _Places(at_once, waiting)
        self._signed_in = _Places(_SIGNED_IN_AT_ONCE, _SIGNED_IN_WAITING)
        self._longest_wait_s = longest_wait_s
        self._on_waiting = on_waiting
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_queued(scope):
            await self._app(scope, receive, send)
            return
        places = self._choose_places(scope)
        if not await self._take_slot(places):
            self._on_refused()
            await _refuse(scope, send)
            return
        release = _Release(places.slots)
        try:
            await self._app(scope, receive, release.when_sent(send))
        finally:
            release()

    def _choose_places(self, scope: Scope) -> _Places:
        reader = scope.get("state", {}).get("reader")
        is_signed_in = isinstance(reader, Reader) and reader.name is not None
        return self._signed_in if is_signed_in and not self._signed_in.are_full else self._anyone

    async def _take_slot(self, places: _Places) -> bool:
        """Return False when there is no place to wait, and after the longest wait."""
        if places.are_full:
            return False
        places.waiting += 1
        self._count_waiting()
        try:
            async with asyncio.timeout(self._longest_wait_s):
                return await places.slots.acquire()
        except TimeoutError:
            return False
        finally:
            places.waiting -= 1
            self._count_waiting()

    def _count_waiting(self) -> None:
        self._on_waiting(self._anyone.waiting + self._signed_in.waiting)


class _Release:
    """Frees a slot once: when the first part of the body is ready, since sending waits for the reader's network."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots: asyncio.Semaphore | None = slots

    def __call__(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.release()

    def when_sent(self, send: Send) -> Send:
        async def send_and_release(message: Message) -> None:
            if message["type"] == "http.response.body":
                self()
            await send(message)

        return send_and_release


def _is_queued(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] not in {"GET", "HEAD"} or scope["path"] in _NOT_QUEUED:
        return False
    path = str(scope["path"])
    return path == "/crcr" or path.startswith(_QUEUED)


async def _refuse(scope: Scope, send: Send) -> None:
    is_page = not scope["path"].startswith("/api/") and accepts_html(Headers(scope=scope).get("accept", ""))
    body, kind = (_PAGE, b"text/html; charset=utf-8") if is_page else (_JSON, b"application/json")
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", str(RETRY_AFTER_S).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
