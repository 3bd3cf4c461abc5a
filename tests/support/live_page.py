"""`open_page`: a client of the live event stream, and the events that it received."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.running_relay import RunningRelay


@asynccontextmanager
async def open_page(relay: RunningRelay) -> AsyncIterator[list[bytes]]:
    """Open the event stream; yield the list of received bytes, which grows."""
    received: list[bytes] = []
    disconnected = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        received.append(message.get("body", b""))

    server = {"asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""}
    request = {"method": "GET", "path": "/api/v1/events", "raw_path": b"/api/v1/events", "query_string": b""}
    connection = {
        "client": ("127.0.0.1", 1),
        "server": ("relay.test", 80),
        "headers": [(b"host", b"relay.test")],
    }
    scope = {"type": "http", **server, **request, **connection}
    reading = asyncio.create_task(relay.app(scope, receive, send))
    while not received:
        await asyncio.sleep(0.01)
    try:
        yield received
    finally:
        disconnected.set()
        await reading


async def wait_for_event(received: list[bytes], words: bytes) -> None:
    async with asyncio.timeout(5):
        while not any(words in part for part in received):
            await asyncio.sleep(0.01)
