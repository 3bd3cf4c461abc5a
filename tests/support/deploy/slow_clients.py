"""`RawClient`: an HTTP client over a raw socket that can send incomplete requests and read no answer."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from crcr.cli.run.handover import adopt_connection, shared_http
from crcr.cli.run.http_limits import HttpLimits, WaitingConnections, limited_http

ENDS_WITHIN_S = 20.0


@dataclass
class RawClient:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        """Read the next response (with Content-Length); return its status and body."""
        async with asyncio.timeout(ENDS_WITHIN_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.strip().split(b"\r\n")[1:])
            body = await self.reader.readexactly(int(fields[b"content-length"]))
        return int(head.split()[1]), body

    async def rest(self) -> bytes:
        """Read until the server closes or resets the connection."""
        received = b""
        async with asyncio.timeout(ENDS_WITHIN_S):
            with suppress(ConnectionError):
                while part := await self.reader.read(65536):
                    received += part
        return received

    async def send_until_refused(self, part: bytes, most_bytes: int) -> int:
        """Send the same bytes repeatedly until an answer or the end arrives; return the number of bytes sent."""
        sent = 0
        with suppress(ConnectionError):
            while sent < most_bytes and not (self.reader.at_eof() or self.reader._buffer):  # type: ignore[attr-defined]
                await self.send(part)
                await asyncio.sleep(0)
                sent += len(part)
        return sent


@asynccontextmanager
async def open_raw_client(port: int) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def serve_with_limits(
    app: ASGIApp, limits: HttpLimits
) -> AsyncIterator[tuple[int, WaitingConnections]]:
    """Serve an app with the relay's HTTP protocol class; yield its port and its waiting connections."""
    protocol = limited_http(limits)
    async with _serve(app, protocol) as (port, _):
        yield port, protocol.waiting_connections


@asynccontextmanager
async def serve_passing_on(app: ASGIApp, limits: HttpLimits) -> AsyncIterator[tuple[int, WaitingConnections]]:
    """Like `serve_with_limits`, with two servers: the one that accepts passes every request on to the other."""
    waiting = WaitingConnections(limits)
    adopting: set[asyncio.Task[object]] = set()

    def pass_on(descriptor: int, start: bytes) -> bool:
        adoption = adopt_connection(other, socket.socket(fileno=os.dup(descriptor)), start)
        adopting.add(task := asyncio.create_task(adoption))
        task.add_done_callback(adopting.discard)
        return True

    async with (
        _serve(app, shared_http(waiting, lambda _: True, lambda *_: False)) as (_, other),
        _serve(app, shared_http(waiting, lambda _: False, pass_on)) as (port, _),
    ):
        yield port, waiting


@asynccontextmanager
async def _serve(app: ASGIApp, protocol: type[asyncio.Protocol]) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=1,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        serving = asyncio.create_task(server._serve([listener]))  # `serve` would take the process's signals
        try:
            yield listener.getsockname()[1], server
        finally:
            server.should_exit = True
            await serving
