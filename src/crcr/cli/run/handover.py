"""Connections that two processes share: each passes on a connection whose next request belongs to the other one.

The decision is made from the request line, before anything is parsed, and only between two requests: then the socket
with the bytes read so far is the whole state. No byte is copied for a proxied connection, and the other process sees the
client's own address. A request that a client sends before it got the response to its previous one (pipelining) cannot be
passed on: the connection is closed after that response, and the client repeats the request.
"""

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from enum import Enum
from typing import cast
from urllib.parse import unquote

import uvicorn

from crcr.cli.run.http_limits import LimitedHttp, WaitingConnections

_REQUEST_LINE = re.compile(rb"[A-Z-]{1,20} ([^ \r\n]+)[ \r\n]")
_UNFINISHED = re.compile(rb"[A-Z-]{1,20}(?: [^ \r\n]*)?")
_SECONDS = struct.Struct("!d")

PassOn = Callable[[int, bytes], bool]
"""Passes a connection's descriptor and the bytes read to the other process; False when that is not possible now."""


class Owner(Enum):
    THIS = "this process"
    OTHER = "the other process"
    UNKNOWN = "not known before more bytes are read"


def request_path(target: bytes) -> str:
    """Return the path that routes a request, from the target of its request line."""
    if not target.startswith(b"/") and b"://" in target:
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
    path = target.partition(b"?")[0].partition(b"#")[0].decode("latin-1")
    return unquote(path) if "%" in path else path


class SharedHttp(LimitedHttp):
    """A limited connection that may be passed on. `shared_http` sets what belongs to this process, and how to pass on."""

    is_ours: Callable[[str], bool]
    pass_on: PassOn
    before_request: Callable[[], None]

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.passed_bytes: bytes | None = None
        """What the other process read of the first request."""
        self._start = b""  # of a request whose owner is not known yet
        self._is_routed = False  # whether the owner of the message being parsed is known
        self._is_leaving = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.passed_bytes is not None:
            (head_s,) = _SECONDS.unpack_from(self.passed_bytes)
            start, self.passed_bytes = self.passed_bytes[_SECONDS.size :], None
            self._set_deadline(head_s)
            self._parse(start)

    def data_received(self, data: bytes) -> None:
        if self._is_leaving:
            return
        if self._in_message or self._is_refused:
            super().data_received(data)
            return
        start, self._start = self._start + data, b""
        owner = self._find_owner(start.lstrip(b"\r\n"))
        if owner is Owner.THIS:
            self._parse(start)
        elif owner is Owner.UNKNOWN:
            self._wait_for_more(start)
        else:
            self._leave(start)

    def on_headers_complete(self) -> None:
        if not self._is_routed and not self.is_ours(request_path(self.url)):
            self._is_leaving = True
            raise ValueError("a pipelined request of the other process")
        self._is_routed = False
        super().on_headers_complete()

    def _find_owner(self, start: bytes) -> Owner:
        line = _REQUEST_LINE.match(start)
        if line is not None:
            return Owner.THIS if self.is_ours(request_path(line[1])) else Owner.OTHER
        most = self._limits.target_bytes
        is_unfinished = bool(start) and len(start) <= most and _UNFINISHED.fullmatch(start)
        return Owner.UNKNOWN if is_unfinished else Owner.THIS  # the parser refuses what is no request line

    def _parse(self, start: bytes) -> None:
        self.before_request()
        self._is_routed = True
        super().data_received(start)

    def _wait_for_more(self, start: bytes) -> None:
        self._start = start
        self._unset_keepalive_if_required()
        self.waiting_connections.add(self)
        if self._deadline is None:
            self._set_deadline(self._limits.head_s)

    def _leave(self, start: bytes) -> None:
        if self._is_answering() or self.transport.get_write_buffer_size():
            self._close_after_response()
            return
        left_s = self._limits.head_s
        if self._deadline is not None:
            left_s = max(0.0, self._deadline.when() - self.loop.time())
        descriptor = self.transport.get_extra_info("socket").fileno()
        if not self.pass_on(descriptor, _SECONDS.pack(left_s) + start):
            self._parse(start)  # answered here: the pages are not up
            return
        self._is_leaving = True
        self._clear_deadline()
        self.transport.abort()  # closes this process's descriptor, not the connection

    def _close_after_response(self) -> None:
        self._is_leaving = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    def _refuse(self, code: str, detail: str) -> None:
        if self._is_leaving:
            self._close_after_response()
        else:
            super()._refuse(code, detail)

    def _on_deadline(self) -> None:
        start, self._start = self._start, b""
        if start:
            self._parse(start)  # so that the refusal knows that a head is arriving
        super()._on_deadline()


async def adopt_connection(server: uvicorn.Server, passed: socket.socket, start: bytes) -> SharedHttp | None:
    """Continue a connection of which the other process has read the start of a request; None when it has gone."""
    loop = asyncio.get_running_loop()
    protocol_class = cast("type[SharedHttp]", server.config.http_protocol_class)
    protocol = protocol_class(server.config, server.server_state, server.lifespan.state, loop)
    protocol.passed_bytes = start
    passed.setblocking(False)
    try:
        await loop.connect_accepted_socket(lambda: protocol, passed)
    except OSError:
        passed.close()
        return None
    return protocol


def shared_http(
    waiting: WaitingConnections,
    is_ours: Callable[[str], bool],
    pass_on: PassOn,
    before_request: Callable[[], None] = lambda: None,
) -> type[SharedHttp]:
    """Return the protocol of one server; its connections are counted together.

    `before_request` is called before the first bytes of a request are parsed.
    """

    class PassingServerHttp(SharedHttp):
        waiting_connections = waiting

    PassingServerHttp.is_ours = staticmethod(is_ours)
    PassingServerHttp.pass_on = staticmethod(pass_on)
    PassingServerHttp.before_request = staticmethod(before_request)
    return PassingServerHttp
