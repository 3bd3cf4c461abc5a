"""Headers of every response, compression, and entity tags.

Two layers of plain ASGI around the app: `SecurityHeaders` adds the headers for browsers and search engines, `EntityTags`
gives pages and JSON an ETag and answers 304 when the client's ETag matches. Both leave event streams alone.
"""

from hashlib import sha256
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crcr.show.http.page_parts import PagePartsLayer
from crcr.show.render.templates import HEADERS

PAGE_HEADERS = {
    **{name: value for name, value in HEADERS.items() if name != "Cache-Control"},
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_TAGGED = ("text/html", "application/json", "application/atom+xml")
_MOST_TAGGED = 4 * 1024 * 1024
_LEFT_OUT_OF_304 = ("content-length", "content-type")
_SMALLEST_COMPRESSED = 1_024
_COMPRESSION_LEVEL = 5
_ROBOTS = """\
User-agent: *
Allow: /crcr
Disallow: /api/
Disallow: /badge/
Disallow: /crcr/admin/
Disallow: /crcr/audit
Disallow: /crcr/notices
Disallow: /crcr/deliveries
Disallow: /crcr/effects
Disallow: /crcr/login
Disallow: /crcr/search
Disallow: /*format=
Disallow: /*.csv
"""
_ROBOTS_DISALLOWED = "User-agent: *\nDisallow: /\n"


def wrap_app(app: ASGIApp, *, public_url: str, is_public: bool) -> ASGIApp:
    """Return the app wrapped in the layers of this module."""
    compressed = GZipMiddleware(
        PagePartsLayer(EntityTags(app)), minimum_size=_SMALLEST_COMPRESSED, compresslevel=_COMPRESSION_LEVEL
    )
    return SecurityHeaders(compressed, encrypted=urlsplit(public_url).scheme == "https", is_public=is_public)


def robots_route(*, is_public: bool) -> list[BaseRoute]:
    async def robots(_: Request) -> Response:
        return PlainTextResponse(_ROBOTS if is_public else _ROBOTS_DISALLOWED)

    return [Route("/robots.txt", robots)]


class SecurityHeaders:
    def __init__(self, app: ASGIApp, *, encrypted: bool, is_public: bool) -> None:
        self._app = app
        self._encrypted = encrypted
        self._is_public = is_public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        hidden = not self._is_public or scope["path"].startswith(("/api/", "/crcr/login", "/crcr/admin/"))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": list(message["headers"])}  # the app may send a list it keeps
                self._add(MutableHeaders(raw=message["headers"]), hidden=hidden)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _add(self, headers: MutableHeaders, *, hidden: bool) -> None:
        headers.setdefault("X-Content-Type-Options", "nosniff")
        if headers.get("content-type", "").startswith("text/html"):
            for name, value in PAGE_HEADERS.items():
                headers.setdefault(name, value)
        if hidden:
            headers.setdefault("X-Robots-Tag", "noindex")
        if self._encrypted:
            headers.setdefault("Strict-Transport-Security", "max-age=31536000")


class EntityTags:
    """The tag is weak: the same page may be compressed or not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in {"GET", "HEAD"}:
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _TaggingSend(send, Headers(scope=scope).get("if-none-match")))


class _TaggingSend:
    """Holds the start of a response back until its body is complete, if the body is one message."""

    def __init__(self, send: Send, if_none_match: str | None) -> None:
        self._send = send
        self._if_none_match = if_none_match
        self._head: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _may_be_tagged(message):
            self._head = message
            return
        head, self._head = self._head, None
        if head is not None:
            body = message.get("body", b"")
            is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_complete and len(body) <= _MOST_TAGGED:
                await self._send_tagged(head, message)
                return
            await self._send(head)
        await self._send(message)

    async def _send_tagged(self, head: Message, message: Message) -> None:
        head = {**head, "headers": list(head["headers"])}
        headers = MutableHeaders(raw=head["headers"])
        tag = f'W/"{sha256(message.get("body", b"")).hexdigest()[:32]}"'
        headers["ETag"] = tag
        if self._if_none_match is None or not has_tag(self._if_none_match, tag):
            await self._send(head)
            await self._send(message)
            return
        for name in _LEFT_OUT_OF_304:
            del headers[name]
        await self._send({**head, "status": 304})
        await self._send({"type": "http.response.body", "body": b""})


def _may_be_tagged(head: Message) -> bool:
    headers = Headers(raw=head["headers"])
    return (
        head["status"] == 200
        and headers.get("content-type", "").startswith(_TAGGED)
        and "no-store" not in headers.get("cache-control", "")
        and not {"etag", "set-cookie"} & set(headers.keys())
    )


def accepts_html(accept: str) -> bool:
    """Browsers name HTML; a client that accepts anything gets a page too, unless it names JSON."""
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return "text/html" in kinds or (bool(kinds & {"*/*", "text/*", ""}) and "application/json" not in kinds)


def has_tag(if_none_match: str, tag: str) -> bool:
    tags = {value.strip().removeprefix("W/") for value in if_none_match.split(",")}
    return "*" in tags or tag.removeprefix("W/") in tags
