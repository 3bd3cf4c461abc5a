"""Partial refreshes of live pages: the response is the page's <main> without the parts that the browser already has.

A template marks an element that can be refreshed alone with the filter `part`, which adds the version of its content:
`<tr data-part="Wq3_x0">`. The script sends the versions that the page shows (`fragment=parts&have=…`, in their order) and
gets the same <main> as everybody, with a stub in the place of each part whose version it named. So an answer never holds
anything that the whole page does not show to this reader, rows may come, go and change places, and the relay keeps nothing
about its readers: all who show the same ask for the same address.
"""

import gzip
import re
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import TypeVar

from markupsafe import Markup
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_VERSION_LENGTH = 6
_VERSIONS = re.compile(r"(?:[\w-]{6}){1,1000}", re.ASCII)
_MARK = re.compile(rb' data-part="([\w-]{6})">')
_START_TAG = re.compile(r"<[a-z][a-z0-9]*")
_COMPRESSION_LEVEL = 5
_KEPT_PAGES = 16
_KEPT_ANSWERS = 256
_LARGEST_KEPT_PAGE = 512 * 1024
_LARGEST_KEPT_ANSWER = 16 * 1024


def mark_part(html: str) -> Markup:
    """Add the version of its content to an element that can be refreshed alone.

    Its end is found by its tag: an element that holds another one of its own kind stays as it is, and is always sent.
    """
    text = str(html).strip()  # plain: each slice of a `Markup` is a `Markup` again
    start, content = _START_TAG.match(text), text.encode()
    if start is None or content.find(start[0].encode(), 1) > 0 or b" data-part=" in content:
        return Markup(html)  # noqa: S704  the template's own output, escaped before
    digest = urlsafe_b64encode(blake2b(content, digest_size=_VERSION_LENGTH).digest())
    version = digest[:_VERSION_LENGTH].decode()
    end_of_tag = text.index(">")
    return Markup(f'{text[:end_of_tag]} data-part="{version}"{text[end_of_tag:]}\n')  # noqa: S704


@dataclass(frozen=True, slots=True)
class CutPage:
    """A <main> as the text before each part, the parts with their versions, and the text after the last."""

    before: tuple[bytes, ...]
    parts: tuple[bytes, ...]
    versions: tuple[str, ...]
    after: bytes

    def without(self, have: str) -> bytes:
        """Return the page with a stub for each part whose version is in `have`; each of these is used once."""
        places: dict[str, list[int]] = {}
        for place in reversed(range(len(have) // _VERSION_LENGTH)):
            version = have[place * _VERSION_LENGTH : (place + 1) * _VERSION_LENGTH]
            places.setdefault(version, []).append(place)
        pieces: list[bytes] = []
        run: list[int] = []
        for before, part, version in zip(self.before, self.parts, self.versions, strict=True):
            same = places.get(version)
            if run and (not same or before.strip()):
                pieces.append(_stub(run))
                run = []
            pieces.append(b"" if run else before)
            if same:
                run.append(same.pop())
            else:
                pieces.append(part)
        return b"".join([*pieces, _stub(run) if run else b"", self.after])


def _stub(places: list[int]) -> bytes:
    """Return what stands for parts that the page shows already: their places among the versions that it sent."""
    ranges: list[list[int]] = [[places[0], places[0]]]
    for previous, place in pairwise(places):
        if place == previous + 1:
            ranges[-1][1] = place
        else:
            ranges.append([place, place])
    text = " ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return f'<template data-same="{text}"></template>'.encode()


def cut_page(html: bytes) -> CutPage:
    before, parts, versions, end = [], [], [], 0
    for mark in _MARK.finditer(html):
        start = html.rindex(b"<", end, mark.start())
        closing = b"</%b>" % html[start + 1 : mark.start()].split(None, 1)[0]
        before.append(html[end:start])
        end = html.index(closing, mark.end()) + len(closing)
        parts.append(html[start:end])
        versions.append(mark[1].decode())
    return CutPage(tuple(before), tuple(parts), tuple(versions), html[end:])


class PagePartsLayer:
    """A layer of ASGI: reads the whole <main> from the app, or from its cache, and leaves out what the page shows.

    The newest pages are kept cut and the newest answers compressed, by ETag: readers who show the same cost little more
    than one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._pages: OrderedDict[str, CutPage] = OrderedDict()
        self._answers: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        have = _read_versions(scope)
        if have is None:
            await self._app(scope, receive, send)
            return
        accepts_gzip = "gzip" in Headers(scope=scope).get("accept-encoding", "")

        def abbreviate(headers: MutableHeaders, body: bytes) -> bytes:
            answer = self._abbreviate(headers, body, have)
            del headers["ETag"]
            headers.add_vary_header("Accept-Encoding")
            if not accepts_gzip:
                return gzip.decompress(answer)
            headers["Content-Encoding"] = "gzip"
            return answer

        await self._app(_main_scope(scope), receive, _WholeBodySend(send, abbreviate))

    def _abbreviate(self, headers: MutableHeaders, body: bytes, have: str) -> bytes:
        """Return the answer, compressed."""
        tag = headers.get("etag")
        answer = self._answers.get((tag, have)) if tag else None
        if answer is None:
            page = self._pages.get(tag) if tag else None
            if page is None:
                page = cut_page(body)
            answer = gzip.compress(page.without(have), _COMPRESSION_LEVEL, mtime=0)
            if tag and len(body) <= _LARGEST_KEPT_PAGE:
                _keep(self._pages, tag, page, _KEPT_PAGES)
            if tag and len(answer) <= _LARGEST_KEPT_ANSWER:
                _keep(self._answers, (tag, have), answer, _KEPT_ANSWERS)
        return answer


K = TypeVar("K")
V = TypeVar("V")


def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


def _read_versions(scope: Scope) -> str | None:
    """Return the versions that a page has; empty when they are invalid; None when it does not ask for parts."""
    if scope["type"] != "http" or scope["method"] != "GET" or b"fragment=parts" not in scope["query_string"]:
        return None
    query = {
        name: value for name, _, value in (pair.partition(b"=") for pair in scope["query_string"].split(b"&"))
    }
    if query.get(b"fragment") != b"parts":
        return None
    have = query.get(b"have", b"").decode("latin-1")
    return have if _VERSIONS.fullmatch(have) else ""


def _main_scope(scope: Scope) -> Scope:
    """Return the request for the whole <main>; its address is the same for all readers of the page."""
    pairs = scope["query_string"].split(b"&")
    kept = [pair for pair in pairs if not pair.startswith((b"fragment=", b"have="))]
    left_out = (b"if-none-match", b"accept-encoding")
    headers = [(name, value) for name, value in scope["headers"] if name not in left_out]
    return {**scope, "query_string": b"&".join([*kept, b"fragment=main"]), "headers": headers}


class _WholeBodySend:
    """Passes a page that is one message through a function, and everything else on as it is."""

    def __init__(self, send: Send, change: Callable[[MutableHeaders, bytes], bytes]) -> None:
        self._send = send
        self._change = change
        self._head: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_page(message):
            self._head = {**message, "headers": list(message["headers"])}
            return
        head, self._head = self._head, None
        if head is not None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                headers = MutableHeaders(raw=head["headers"])
                message = {**message, "body": self._change(headers, message.get("body", b""))}
                headers["Content-Length"] = str(len(message["body"]))
            await self._send(head)
        await self._send(message)


def _is_page(head: Message) -> bool:
    headers = Headers(raw=head["headers"])
    return (
        head["status"] == 200
        and headers.get("content-type", "").startswith("text/html")
        and "content-encoding" not in headers
    )
