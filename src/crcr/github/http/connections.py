"""A pool of connections to GitHub, one transport each, so that a request costs the same however many are open.

httpx's own pool iterates over all its connections and polls the idle ones at every request and every response: with 64
open that costs 3 to 4 ms of processor time a request, and this pool less than 1. How many may be open is decided by
`rate_limiter`.

A connection whose request failed or was cancelled is closed and never used again: httpx keeps the place of a request that
was cancelled before it connected, and each later request would wait for that place in vain.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

_ONE = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=30.0)


def open_http(api_url: str) -> httpx.AsyncClient:
    """Return a client for `GitHubTransport`; it uses the environment's proxies, and the caller closes it."""
    return httpx.AsyncClient(transport=open_pool(api_url))


def open_pool(api_url: str, context: ssl.SSLContext | None = None) -> "ConnectionPool":
    """Return a pool for a client of our own; with `context`, pools share the certificates."""
    return ConnectionPool(proxy=_environment_proxy(api_url), context=context)


def _environment_proxy(api_url: str) -> str | None:
    address = urlsplit(api_url)
    if proxy_bypass(address.hostname or ""):
        return None
    return getproxies().get(address.scheme)


class ConnectionPool(httpx.AsyncBaseTransport):
    """Transports of one connection; the last one used is taken first, so that few stay open in quiet times."""

    def __init__(self, *, proxy: str | None = None, context: ssl.SSLContext | None = None) -> None:
        self._proxy = proxy
        # Reading the certificates costs tens of milliseconds: once for all connections.
        self._ssl = context or httpx.create_ssl_context()
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._busy: set[httpx.AsyncHTTPTransport] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        connection = self._acquire()
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            self._discard(connection)
            raise
        if isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _Stream(
                response.stream, lambda: self._release(connection), lambda: self._discard(connection)
            )
        return response

    def _acquire(self) -> httpx.AsyncHTTPTransport:
        connection = self._idle.pop() if self._idle else self._open()
        self._busy.add(connection)
        return connection

    def _release(self, connection: httpx.AsyncHTTPTransport) -> None:
        if connection in self._busy:
            self._busy.remove(connection)
            self._idle.append(connection)

    def _discard(self, connection: httpx.AsyncHTTPTransport) -> None:
        """Close it in a task of its own, which the cancellation of the request does not reach."""
        if connection in self._busy:
            self._busy.remove(connection)
            task = asyncio.create_task(connection.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _open(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(verify=self._ssl, limits=_ONE, proxy=self._proxy, trust_env=False)

    async def close_idle(self) -> None:
        """Close the connections that no request uses: the next requests connect again."""
        idle, self._idle = self._idle, []
        for connection in idle:
            with suppress(httpx.HTTPError, OSError):  # it may be dead already
                await connection.aclose()

    async def aclose(self) -> None:
        connections = [*self._idle, *self._busy]
        self._idle.clear()
        self._busy.clear()
        for connection in connections:
            await connection.aclose()
        await asyncio.gather(*self._closing, return_exceptions=True)


class _Stream(httpx.AsyncByteStream):
    """A response's body that frees its connection when it is closed."""

    def __init__(
        self, body: httpx.AsyncByteStream, release: Callable[[], None], discard: Callable[[], None]
    ) -> None:
        self._body = body
        self._release = release
        self._discard = discard

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._body:
            yield chunk

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        except BaseException:
            self._discard()
            raise
        self._release()
