"""A cheap HTTP client for load: it sends prepared bytes over keep-alive connections, one request at a time on each."""

import asyncio
import time
from collections.abc import Iterator
from typing import cast


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's class does not derive from asyncio's

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator or self._answer is None or self._answer.done():
            return
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        if len(rest) >= length:
            self._buffer = rest[length:]
            self._answer.set_result((int(head[9:12]), rest[:length]))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    async def send(self, request: bytes) -> tuple[int, bytes]:
        if self._transport is None:
            raise RuntimeError("not connected")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def post_bytes(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: bench", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get_bytes(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: bench\r\nAccept: text/html, */*\r\n\r\n".encode()


async def connect(port: int) -> Connection:
    return (await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port))[1]


async def send_all(
    port: int, requests: list[bytes], clients: int
) -> tuple[float, list[float], dict[int, int]]:
    """Send everything over `clients` connections; return the time it took, each latency, and counts by status."""
    return await send_spread([port], requests, clients)


async def send_spread(
    ports: list[int], requests: list[bytes], clients: int
) -> tuple[float, list[float], dict[int, int]]:
    """Like `send_all`, with the connections spread over several servers."""
    latencies: list[float] = []
    statuses: dict[int, int] = {}
    waiting = iter(requests)
    connections = [await connect(ports[number % len(ports)]) for number in range(clients)]
    began = time.perf_counter()
    await asyncio.gather(
        *(_send_waiting(connection, waiting, latencies, statuses) for connection in connections)
    )
    took = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return took, latencies, statuses


async def send_steadily(
    port: int, requests: list[bytes], *, every_s: float
) -> tuple[list[float], dict[int, int]]:
    """Send one request every `every_s` seconds, each on a connection of its own; return latencies and statuses."""
    latencies: list[float] = []
    statuses: dict[int, int] = {}
    loop = asyncio.get_running_loop()
    sending = []
    for data in requests:
        connection = (await loop.create_connection(Connection, "127.0.0.1", port))[1]
        sending.append(asyncio.create_task(_send_waiting(connection, iter([data]), latencies, statuses)))
        await asyncio.sleep(every_s)
    await asyncio.gather(*sending)
    return latencies, statuses


async def _send_waiting(
    connection: Connection, waiting: Iterator[bytes], latencies: list[float], statuses: dict[int, int]
) -> None:
    for data in waiting:
        began = time.perf_counter()
        status, _ = await connection.send(data)
        latencies.append(time.perf_counter() - began)
        statuses[status] = statuses.get(status, 0) + 1


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
