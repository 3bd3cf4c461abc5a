"""The connections to GitHub: one lane each, so that a request costs the same however many are under way.

httpx's own pool walks over all its connections and polls the idle ones at every request and every answer:
64 at once cost 3 to 4 ms of processor time a request, lanes less than 1. How many may be open is the governor's affair.
"""

from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

_ONE = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=30.0)


def open_http(api_url: str) -> httpx.AsyncClient:
    """Return a client made for `GitHubClient`; proxies of the environment are obeyed, the caller closes it."""
    return httpx.AsyncClient(transport=ConnectionPool(proxy=_environment_proxy(api_url)))


def _environment_proxy(api_url: str) -> str | None:
    address = urlsplit(api_url)
    if proxy_bypass(address.hostname or ""):
        return None
    return getproxies().get(address.scheme)


class ConnectionPool(httpx.AsyncBaseTransport):
    """Lanes of one connection; the one used last is taken first, so that few stay warm in quiet times."""

    def __init__(self, *, proxy: str | None = None) -> None:
        self._proxy = proxy
        # Reading the certificates costs tens of milliseconds: once for all lanes.
        self._ssl = httpx.create_ssl_context()
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._busy: set[httpx.AsyncHTTPTransport] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lane = self._enter()
        try:
            response = await lane.handle_async_request(request)
        except BaseException:
            self._leave(lane)
            raise
        if isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _Stream(response.stream, lambda: self._leave(lane))
        return response

    def _enter(self) -> httpx.AsyncHTTPTransport:
        lane = self._idle.pop() if self._idle else self._open()
        self._busy.add(lane)
        return lane

    def _leave(self, lane: httpx.AsyncHTTPTransport) -> None:
        if lane in self._busy:
            self._busy.remove(lane)
            self._idle.append(lane)

    def _open(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(verify=self._ssl, limits=_ONE, proxy=self._proxy, trust_env=False)

    async def aclose(self) -> None:
        lanes = [*self._idle, *self._busy]
        self._idle.clear()
        self._busy.clear()
        for lane in lanes:
            await lane.aclose()


class _Stream(httpx.AsyncByteStream):
    """An answer's body that frees its lane when it is closed."""

    def __init__(self, body: httpx.AsyncByteStream, leave: Callable[[], None]) -> None:
        self._body = body
        self._leave = leave

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._body:
            yield chunk

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            self._leave()
