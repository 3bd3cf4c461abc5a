"""Limits on what a client may send before a request exists: the size, fields and time of a head, and idle connections.

uvicorn has none of them. A connection waits for its client during a head, a body, the rest of a body that was answered
early, and between requests. This time is limited where no request limits it, and so is the number of waiting connections:
above it the one that has waited longest is closed. A head that arrives at once is never late, however many wait.
"""

import asyncio
import resource
from dataclasses import dataclass

import httptools
import msgspec
import structlog
import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from crcr.app import STATUS

log = structlog.get_logger(__name__)

_MOST_DESCRIPTORS = 65_536
_RESERVED_DESCRIPTORS = 256
"""File descriptors reserved for stores, log and outgoing calls."""
_MOST_WAITING = 1000
_CONTINUE = b"HTTP/1.1 100 "


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    head_bytes: int = 64 * 1024
    head_fields: int = 100
    target_bytes: int = 8 * 1024
    chunks: int = 1000
    """Chunks of a body that may have any size; beyond it they must have `chunk_bytes` on average. A chunk costs the
    same whatever its size."""
    chunk_bytes: int = 256
    head_s: float = 20.0
    """From the connection, or from the first byte of a later request, until the head is complete."""
    drain_s: float = 5.0
    """For a client to finish sending a body that was answered early and is not read any more."""
    unread_s: float = 60.0
    """For a client to continue reading after its response has filled all buffers."""
    pipelined: int = 16
    """Requests of one connection that wait behind the one being answered: each costs a hundred times its bytes."""
    waiting: int = _MOST_WAITING
    """Connections of the process that wait for their client."""
    sweep_s: float = 1.0
    """How long there may be more, so that connections opened at once have time to send their heads."""
    connections: int = _MOST_DESCRIPTORS


def http_limits() -> HttpLimits:
    """Raise the limit of open files as far as this process may, and return limits that fit into it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    open_files = _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    connections = max(open_files - _RESERVED_DESCRIPTORS, open_files // 2)
    return HttpLimits(connections=connections, waiting=min(_MOST_WAITING, connections // 2))


class WaitingConnections:
    """The connections of a process that wait for their client, the longest waiting first."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self._waiting: dict[LimitedHttp, None] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: "LimitedHttp") -> None:
        self._waiting.setdefault(connection)
        if len(self._waiting) > self.limits.waiting and self._sweep is None:
            self._sweep = connection.loop.call_later(self.limits.sweep_s, self._close_excess)

    def discard(self, connection: "LimitedHttp") -> None:
        self._waiting.pop(connection, None)

    def close_oldest(self) -> None:
        if self._waiting:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()

    def _close_excess(self) -> None:
        self._sweep = None
        excess = len(self._waiting) - self.limits.waiting
        for _ in range(excess):
            self.close_oldest()
        if excess > 0:
            log.info("connections_closed", count=excess, reason="too many wait for their client")


class _WholeResponse(asyncio.Transport):
    """A connection as the response to a POST sees it: head and body, which follow each other at once, are one write."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.close = transport.close  # type: ignore[method-assign]

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if self._head is not None:
            self._transport.write(self._head + data)
            self._head = b""
        elif data.startswith(_CONTINUE):
            self._transport.write(data)
        else:
            self._head = data


class LimitedHttp(HttpToolsProtocol):
    """uvicorn's connection with limits. `limited_http` sets the waiting connections of its server."""

    waiting_connections: WaitingConnections
    cycle: RequestResponseCycle | None  # type: ignore[assignment]  # None before the first request

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: "uvicorn.server.ServerState",
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = self.waiting_connections.limits
        self._deadline: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._problem: tuple[str, str] | None = None
        self._is_refused = False
        self._answering_cycle: RequestResponseCycle | None = (
            None  # `cycle` is the newest request; earlier ones may still be answered
        )
        self._in_message = False  # from its first byte to its last
        self._in_head = True
        self._head_bytes = 0
        self._head_fields = 0
        self._unassigned_bytes = 0  # received since the last body, or since the end of a head or message
        self._chunks = 0
        self._body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline(self._limits.head_s)
        self.waiting_connections.add(self)
        if len(self.connections) > self._limits.connections:
            self.waiting_connections.close_oldest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self._clear_unread_timer()
        self.waiting_connections.discard(self)
        self.pipeline.clear()
        if self._answering_cycle is not None:  # uvicorn notifies only the newest request
            self._answering_cycle.disconnected = True
            self._answering_cycle.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self._limits.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._clear_unread_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        self._unassigned_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # upgrades are not supported: answered like any other request
        except httptools.HttpParserError:
            self._refuse(*(self._problem or ("bad_request", "this is not an HTTP request")))
            return
        if self._unassigned_bytes > self._limits.head_bytes:
            self._refuse(*self._describe_too_large())
        elif self._deadline is None and (self._in_head or self._is_idle()):
            self._set_deadline(self._limits.head_s)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self._limits.pipelined:
            self._stop_parsing("bad_request", "too many requests were sent without waiting for an answer")
        super().on_message_begin()
        self._in_message = self._in_head = True
        self._head_bytes = self._head_fields = 0
        self.waiting_connections.add(self)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head_bytes += len(url)
        if len(self.url) > self._limits.target_bytes:
            most = self._limits.target_bytes
            self._stop_parsing("target_too_long", f"the address has more than {most:,} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_fields += 1
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.head_bytes or self._head_fields > self._limits.head_fields:
            self._stop_parsing(*self._describe_too_large())
        # Trailers come after the body and pass proxies that remove headers: they are counted and dropped.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unassigned_bytes = self._chunks = self._body_bytes = 0
        self._clear_deadline()
        super().on_headers_complete()
        if not self.pipeline:
            self._answering_cycle = self.cycle

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["method"] == "POST":
            cycle.transport = _WholeResponse(self.transport)
        super()._start_asgi_task(cycle, app)

    def on_chunk_header(self) -> None:
        self._chunks += 1
        small = self._body_bytes < (self._chunks - 1) * self._limits.chunk_bytes
        if small and self._chunks > self._limits.chunks:
            self._stop_parsing("bad_request", "the chunks of the body are too small")

    def on_body(self, body: bytes) -> None:
        self._unassigned_bytes = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._unassigned_bytes = 0
        super().on_message_complete()
        if not self._is_idle():
            self.waiting_connections.discard(self)
        elif self._deadline is not None:  # the rest of a body that was answered early has arrived
            self._clear_deadline()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        self._answering_cycle = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self.transport.is_closing() or self._is_answering():
            return
        self.waiting_connections.add(self)
        if self._in_message and not self._in_head:
            self._unset_keepalive_if_required()
            self._set_deadline(self._limits.drain_s)

    def _is_idle(self) -> bool:
        """Whether neither a request is arriving nor a response is due."""
        return not self._in_message and not self._is_answering()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _describe_too_large(self) -> tuple[str, str]:
        most = f"{self._limits.head_bytes:,} bytes and {self._limits.head_fields:,} fields"
        return "head_too_large", f"the headers have more than {most}"

    def _stop_parsing(self, code: str, detail: str) -> None:
        self._problem = code, detail
        raise ValueError(code)  # the parser wraps it into its own error

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _clear_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if self._in_message and self._in_head and not self._is_refused:
            self._refuse("head_too_slow", f"the headers did not arrive within {self._limits.head_s:g} s")
        else:
            self.transport.abort()

    def _refuse(self, code: str, detail: str) -> None:
        """Answer and close. Further bytes of the client are dropped for a while, so that it can read the answer."""
        self._is_refused = True
        if self.transport.is_closing():
            return
        if self._is_answering():
            self.transport.close()  # an earlier request is being answered: its response must not be mixed with this one
            return
        body = msgspec.json.encode({"ok": False, "error": {"code": code, "detail": detail}})
        head = (
            b"content-type: application/json\r\nx-content-type-options: nosniff\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n" % len(body)
        )
        self.transport.write(STATUS_LINE[STATUS[code]] + head + body)
        self.transport.write_eof()
        self._set_deadline(self._limits.drain_s)


def limited_http(limits: HttpLimits) -> type[LimitedHttp]:
    """Return the protocol of one server; its connections are counted together."""

    class ServerHttp(LimitedHttp):
        waiting_connections = WaitingConnections(limits)

    return ServerHttp
