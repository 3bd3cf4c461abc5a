"""One reader of a live page, without a browser: the rules of live.js, over two sockets.

A reader holds an event stream. After an event it waits as the script does, then reads what the script reads, one read at a
time: the parts that differ from those that it has, at the newest change that it knows of. After a 503 it waits for
`Retry-After`. Times come from the script itself, so the bench follows it. Thousands of readers share one core with the relay:
an answer that another reader got to the same request is not decompressed and parsed again.
"""

import asyncio
import random
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import crcr.show

_SCRIPT = (Path(crcr.show.__file__).parent / "static" / "live.js").read_text()
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_TIMER_S = 0.001
_JOB = re.compile(rb">job (\d+)<")
_ALL_JOBS = re.compile(rb'data-key="jobs"[^>]*><h2>Jobs</h2>\s*<p class="figure[^"]*">([\d,]+)</p>')
_PART = re.compile(rb' data-part="([\w-]{6})"|<template data-same="([\d -]*)"')
_VERSION = 6
_MOST_PARTS = 500
_MOST_SEEN = 200
_HAS_PARTS = (Path(crcr.show.__file__).parent / "static" / "parts.js").exists()


def _script_s(name: str) -> float:
    found = re.search(rf"const {name} = (\d+);", _SCRIPT)
    if not found:
        raise SystemExit(f"live.js has no constant {name}: adapt bench/readers/live_reader.py to its rules")
    return int(found[1]) / 1000


SOON_S, QUIET_S, LONGEST_S = _script_s("SOON_MS"), _script_s("QUIET_MS"), _script_s("LONGEST_MS")


def refresh_address(path: str, have: str, change: str) -> str:
    """The address that the live script reads after a change of the page at `path` whose parts have these versions."""
    fragment = f"fragment=parts&have={have}" if have else "fragment=main"
    return f"{path}?{fragment}{f'&v={change}' if change else ''}"


@dataclass(frozen=True, slots=True)
class PageRead:
    sent_at: float
    done_at: float
    status: int
    size: int
    mark: int | None = None
    """A number on the page that grows with each new job: its jobs on the summary, the newest one on a pull request."""


@dataclass(frozen=True, slots=True)
class Event:
    """What the newest of some events says that concern a page."""

    spread_s: float
    change: str


@dataclass(slots=True)
class PageKind:
    path: str
    number: int | None = None
    """The pull request, where the page is about one."""
    _last: tuple[bytes, Event | None] = (b"", None)
    _seen: dict[tuple[str, bytes], tuple[str, int | None]] = field(default_factory=dict)

    def newest_event(self, data: bytes) -> Event | None:
        """The newest event that concerns the page. All readers get the same bytes, so the last answer is kept."""
        if data != self._last[0]:
            self._last = (data, self._find_event(data))
        return self._last[1]

    def _find_event(self, data: bytes) -> Event | None:
        events = [part for part in data.split(b"\n\n") if b"event: " in part and b"event: beat" not in part]
        if self.number is not None:
            own = b'"number":%d,' % self.number, b'"number":%d}' % self.number
            events = [
                event for event in events if any(mark in event for mark in own) or b'"number":null' in event
            ]
        if not events:
            return None
        spread = re.search(rb'"spread_ms":(\d+)', events[-1])
        change = re.search(rb"id: (\d+)", events[-1])
        return Event(int(spread[1]) / 1000 if spread else 0.0, change[1].decode() if change else "")

    def take(self, have: str, head: bytes, body: bytes) -> tuple[str, int | None]:
        """Return the versions of the parts that a page with `have` shows after this answer, and its mark."""
        if (have, body) not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            text = (
                zlib.decompress(body, zlib.MAX_WBITS | 16) if b"\r\ncontent-encoding: gzip" in head else body
            )
            versions = "".join(_versions(have, text))
            self._seen[have, body] = versions, _find_mark(text)
        return self._seen[have, body]


def _find_mark(text: bytes) -> int | None:
    if found := _ALL_JOBS.search(text):
        return int(found[1].replace(b",", b""))
    return max(map(int, _JOB.findall(text)), default=None)


def _versions(have: str, text: bytes) -> Iterator[str]:
    """The versions of all parts, in their order: of those in the answer, and of those that its stubs stand for."""
    for version, same in _PART.findall(text):
        if version:
            yield version.decode()
        for run in same.split():
            first, _, last = run.partition(b"-")
            yield have[int(first) * _VERSION : (int(last or first) + 1) * _VERSION]


class _Stream(asyncio.Protocol):
    def __init__(self, on_data: Callable[[bytes], None], opened: asyncio.Future[None]) -> None:
        self._on_data = on_data
        self._opened = opened
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._opened.done():
            if not data.startswith(b"HTTP/1.1 200"):
                self._opened.set_exception(SystemExit(f"a stream was refused: {data[:200]!r}"))
            else:
                self._opened.set_result(None)
            return
        self._on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._opened.done():
            self._opened.set_exception(exc or ConnectionError("the stream was closed at once"))

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()


class _PageConnection(asyncio.Protocol):
    """A keep-alive connection."""

    def __init__(self) -> None:
        self._head = b""
        self._in_body = False
        self._left = 0
        self._chunked = False
        self._size = 0
        self._body: list[bytes] = []
        self._tail = b""
        self._answer: asyncio.Future[tuple[bytes, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> asyncio.Future[tuple[bytes, bytes]]:
        """Send a request; the future gets the head, in small letters, and the body."""
        self._head, self._size, self._body, self._tail, self._in_body = b"", 0, [], b"", False
        self._answer = asyncio.get_running_loop().create_future()
        if self._transport is not None:
            self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            self._head += data
            head, separator, data = self._head.partition(b"\r\n\r\n")
            if not separator:
                return
            self._head = head.lower()
            self._in_body = True
            length = re.search(rb"\r\ncontent-length: (\d+)", self._head)
            self._chunked = b"\r\ntransfer-encoding: chunked" in self._head
            self._left = int(length[1]) if length and head[9:12] != b"304" else 0
        self._size += len(data)
        self._body.append(data)
        if self._chunked:
            self._tail = (self._tail + data)[-7:]
            is_complete = self._tail.endswith(b"\r\n0\r\n\r\n") or self._tail == b"0\r\n\r\n"
        else:
            is_complete = self._size >= self._left
        if is_complete and self._answer is not None and not self._answer.done():
            self._answer.set_result((self._head, b"".join(self._body)))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


@dataclass(slots=True)
class LiveReader:
    """The variables are those of live.js; a timer that is put off is not made anew, it looks when it fires."""

    port: int
    page: PageKind
    reads: list[PageRead] = field(default_factory=list)
    _stream: _Stream | None = None
    _connection: _PageConnection | None = None
    _timer: asyncio.TimerHandle | None = None
    _due: float = 0.0
    _since: float = 0.0
    _turn: float = 0.0
    _began: float = 0.0
    _is_reading: bool = False
    _wanted: bool = False
    _troubles: int = 0
    _change: str = ""
    """The newest change that it was told of."""
    _have: str = ""
    """The versions of the parts that it shows, one after the other."""
    _etag: bytes = b""
    _mark: int | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def open(self) -> None:
        """Read the page, then hold the stream."""
        await self.read_once()
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        _, self._stream = await loop.create_connection(
            lambda: _Stream(self._receive, opened), "127.0.0.1", self.port
        )
        request = "GET /api/v1/events HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n\r\n"
        cast("asyncio.Transport", self._stream.transport).write(request.encode())
        await opened

    async def read_once(self) -> None:
        while (pause_s := await self._read()) is not None:  # noqa: ASYNC110  it waits for the relay
            await asyncio.sleep(pause_s)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._stream is not None and self._stream.transport is not None:
            self._stream.transport.close()
        if self._connection is not None:
            self._connection.close()

    @property
    def is_settled(self) -> bool:
        return not (self._timer or self._is_reading or self._wanted)

    @property
    def has_stream(self) -> bool:
        return self._stream is not None and self._stream.is_open

    @property
    def shown(self) -> str:
        """What tells its page from others."""
        return f"{self.page.path} {self._have or self._etag.decode()}"

    def _receive(self, data: bytes) -> None:
        event = self.page.newest_event(data)
        if event is not None:
            self._change = event.change or self._change
            self._changed(event.spread_s)

    def _changed(self, spread_s: float = 0.0) -> None:
        now = time.monotonic()
        if self._timer is None:
            self._since, self._turn = now, random.random() * spread_s  # noqa: S311  a turn by chance
        quiet = SOON_S if now - self._began > LONGEST_S else QUIET_S
        self._due = now + max(0.0, self._turn + min(quiet, self._since + LONGEST_S - now))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._due - now, self._fire)

    def _fire(self) -> None:
        if (early_s := self._due - time.monotonic()) > _TIMER_S:
            self._timer = asyncio.get_running_loop().call_later(early_s, self._fire)
            return
        self._timer = None
        self._refresh()

    def _refresh(self) -> None:
        self._wanted = True
        if not self._is_reading:
            task = asyncio.get_running_loop().create_task(self._read_until_done())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read_until_done(self) -> None:
        self._is_reading = True
        self._wanted = False
        await self.read_once()
        self._is_reading = False
        if self._wanted:
            self._wanted = False
            self._changed()

    async def _read(self) -> float | None:
        """Read the page once; return how long to wait before another attempt, or None when it was read."""
        self._began = time.monotonic()
        have = self._have
        try:
            head, body = await self._exchange()
        except OSError:
            self._note(0, 0)
            return self._pause(None)
        status = int(head[9:12])
        if status not in {200, 304}:
            found = re.search(rb"\r\nretry-after: (\d+)", head)
            self._note(status, len(body))
            return self._pause(float(found[1]) if found else None)
        self._troubles = 0
        found = re.search(rb"\r\netag: ([^\r]+)", head)
        self._etag = found[1] if found else b""
        if status == 200:
            self._show(have, head, body)
        self._note(status, len(body))
        return None

    def _show(self, have: str, head: bytes, body: bytes) -> None:
        versions, mark = self.page.take(have, head, body)
        if mark is not None:
            self._mark = max(mark, self._mark or 0)
        if _HAS_PARTS:
            self._have = versions[: _MOST_PARTS * _VERSION]

    async def _exchange(self) -> tuple[bytes, bytes]:
        """Send the request; over a new connection when the server has just closed the idle one, as browsers do."""
        request = self._request()
        if self._connection is not None and self._connection.is_open:
            with suppress(OSError):
                return await self._connection.send(request)
        _, self._connection = await asyncio.get_running_loop().create_connection(
            _PageConnection, "127.0.0.1", self.port
        )
        return await self._connection.send(request)

    def _note(self, status: int, size: int) -> None:
        self.reads.append(PageRead(self._began, time.monotonic(), status, size, self._mark))

    def _pause(self, retry_after_s: float | None) -> float:
        pause_s = _RETRY_S[min(self._troubles, len(_RETRY_S) - 1)]
        self._troubles += 1
        return pause_s if retry_after_s is None else retry_after_s * (1 + random.random() / 2)  # noqa: S311

    def _request(self) -> bytes:
        address = refresh_address(self.page.path, self._have, self._change)
        lines = [f"GET {address} HTTP/1.1", "Host: bench", "Accept: text/html", "Accept-Encoding: gzip"]
        if self._etag:
            lines.append(f"If-None-Match: {self._etag.decode()}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n"
