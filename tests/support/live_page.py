"""A page that is open on the stage and listens for changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.running_relay import RunningRelay


@asynccontextmanager
async def open_page(relay: RunningRelay) -> AsyncIterator[list[bytes]]:
    """A page that listens for changes; yields what it was sent."""
    told: list[bytes] = []
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        told.append(message.get("body", b""))

    told_by_server = {"asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""}
    asked = {"method": "GET", "path": "/api/v1/events", "raw_path": b"/api/v1/events", "query_string": b""}
    between = {
        "client": ("127.0.0.1", 1),
        "server": ("relay.test", 80),
        "headers": [(b"host", b"relay.test")],
    }
    scope = {"type": "http", **told_by_server, **asked, **between}
    reading = asyncio.create_task(relay.app(scope, receive, send))
    while not told:
        await asyncio.sleep(0.01)
    try:
        yield told
    finally:
        gone.set()
        await reading


async def wait_for_event(told: list[bytes], words: bytes) -> None:
    async with asyncio.timeout(5):
        while not any(words in each for each in told):
            await asyncio.sleep(0.01)
