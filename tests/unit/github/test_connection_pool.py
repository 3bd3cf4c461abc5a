"""Connections to GitHub over real sockets: reused one after another, never shared, freed after a failure."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from crcr.github.http.connections import ConnectionPool, open_http


@dataclass
class Listener:
    """Answers 200 with `ok`; `/hold` waits for `release`, `/drop` closes the connection unanswered."""

    url: str = ""
    connections: int = 0
    held: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self.answer(await reader.readuntil(b"\r\n\r\n"), writer):
                pass
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def answer(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        if b" /hold " in head:
            self.held.release()
            await self.release.wait()
        if b" /drop " in head:
            return False
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        return True


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0)
    listener.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield listener
    finally:
        server.close()
        await server.wait_closed()


async def test_sequential_requests_share_a_connection_and_concurrent_requests_do_not() -> None:
    async with listening() as listener, httpx.AsyncClient(transport=ConnectionPool()) as http:
        for _ in range(5):
            assert (await http.get(f"{listener.url}/")).text == "ok"
        assert listener.connections == 1
        requests = [asyncio.create_task(http.get(f"{listener.url}/hold")) for _ in range(4)]
        for _ in requests:
            await listener.held.acquire()
        listener.release.set()
        assert [answer.text for answer in await asyncio.gather(*requests)] == ["ok"] * 4
        assert listener.connections == 4


async def test_the_pool_works_after_a_failed_and_a_cancelled_request() -> None:
    transport = ConnectionPool()
    async with listening() as listener, httpx.AsyncClient(transport=transport) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get(f"{listener.url}/drop")
        waiting = asyncio.create_task(http.get(f"{listener.url}/hold"))
        await listener.held.acquire()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        listener.release.set()
        assert (await http.get(f"{listener.url}/")).text == "ok"
        assert (len(transport._idle), len(transport._busy)) == (1, 0)
    assert transport._closing == set()


@pytest.mark.parametrize("steps", range(24))
async def test_a_request_cancelled_at_any_step_leaves_no_unusable_connection(steps: int) -> None:
    """A frozen worker cancels its calls in all states; each connection that stays unusable would fail for ever."""
    transport = ConnectionPool()
    async with listening() as listener, httpx.AsyncClient(transport=transport, timeout=2.0) as http:
        listener.release.set()
        calls = [asyncio.create_task(http.get(f"{listener.url}/hold")) for _ in range(3)]
        for _ in range(steps):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for _ in range(2 * len(calls)):
            assert (await http.get(f"{listener.url}/")).text == "ok"
        assert len(transport._busy) == 0


async def test_a_response_left_unread_frees_its_connection() -> None:
    transport = ConnectionPool()
    async with listening() as listener, httpx.AsyncClient(transport=transport) as http:
        async with http.stream("GET", f"{listener.url}/"):
            assert len(transport._busy) == 1
        assert (len(transport._idle), len(transport._busy)) == (1, 0)
        assert (await http.get(f"{listener.url}/")).text == "ok"


async def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as listener:
        monkeypatch.setenv("http_proxy", listener.url)
        monkeypatch.setenv("no_proxy", "inside.test")
        async with open_http("http://github.test") as http:
            assert (await http.get("http://github.test/")).text == "ok"
        async with open_http("http://inside.test") as http:
            with pytest.raises(httpx.ConnectError):
                await http.get("http://inside.test/")
