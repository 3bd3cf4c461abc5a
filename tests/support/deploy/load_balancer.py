"""A load balancer for tests: each request goes to a ready process, on its own connection.

It sends no request twice. It skips a process that refuses the connection, and answers 502 when a process closes it without
an answer.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import httpx

CHECKED_EVERY_S = 0.1


class LoadBalancer:
    def __init__(self, *ports: int) -> None:
        self.ports = ports
        self.ready: set[int] = set()
        self.sent: dict[int, int] = dict.fromkeys(ports, 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._turn = count()
        self._answering: set[asyncio.Task[None]] = set()

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._answer(reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def end(self) -> None:
        """Cancel the open requests, such as a page's live stream."""
        under_way = list(self._answering)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def check(self) -> None:
        """Poll every process's readiness."""
        async with httpx.AsyncClient(timeout=2) as http:
            while True:
                for port in self.ports:
                    await self._check(http, port)
                await asyncio.sleep(CHECKED_EVERY_S)

    async def _check(self, http: httpx.AsyncClient, port: int) -> None:
        answers = False
        with contextlib.suppress(httpx.HTTPError):
            answers = (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        (self.ready.add if answers else self.ready.discard)(port)

    async def has_ready(self, *ports: int) -> None:
        async with asyncio.timeout(30):
            while not self.ready >= set(ports):
                await asyncio.sleep(0.02)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _request(reader)
            await self._pass_on(request, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _pass_on(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        answered = False
        with contextlib.suppress(OSError):
            connection = await self._connect()
            if connection is not None:
                theirs, ours = connection
                with contextlib.closing(ours):
                    ours.write(request)
                    while part := await theirs.read(65536):
                        answered = True
                        writer.write(part)
                        await writer.drain()
        if not answered:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        ready, turn = sorted(self.ready), next(self._turn)
        for port in ready[turn % len(ready) :] + ready[: turn % len(ready)] if ready else ():
            with contextlib.suppress(OSError):
                connection = await asyncio.open_connection("127.0.0.1", port)
                self.sent[port] += 1
                return connection
        return None


async def _request(reader: asyncio.StreamReader) -> bytes:
    """Read one whole request, and add `Connection: close`."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head[:-4].split(b"\r\n")
    length = next((int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")), 0)
    kept = [line for line in lines if not line.lower().startswith(b"connection:")]
    return b"\r\n".join((*kept, b"Connection: close", b"", await reader.readexactly(length)))


@asynccontextmanager
async def run_load_balancer(*ports: int) -> AsyncIterator[LoadBalancer]:
    balancer = LoadBalancer(*ports)
    server = await asyncio.start_server(balancer.take, sock=balancer._listener)
    checking = asyncio.create_task(balancer.check())
    try:
        yield balancer
    finally:
        checking.cancel()
        server.close()
        await asyncio.gather(checking, return_exceptions=True)
        await balancer.end()
