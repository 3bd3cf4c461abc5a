"""Sends requests to GitHub: with which token, within which limits, and what the response means.

Sends what `github.api` describes and raises what `github.http.errors` makes of the response. It never sleeps and never
repeats a request, except after a 401 (GitHub has done nothing then) and after a read's redirect. A request that GitHub may
have carried out raises `OutsideUnsure`; one that was never sent raises `OutsideUnreachable`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Protocol

import httpx

from crcr import __version__
from crcr.decide.github.requests_and_answers import CallKind, Target, Urgency
from crcr.errors import HeldBy, OutsideLimited, OutsideRefused, OutsideUnreachable, OutsideUnsure
from crcr.github.api import request_response
from crcr.github.api.request_response import Permissions, Request, Response, Token
from crcr.github.app_auth import AppAuth, TokenCache, TokenScope
from crcr.github.http.errors import error_from_response, readable
from crcr.github.http.hour_budget import RETURN_AFTER_S
from crcr.github.http.rate_limiter import APP, GitHubRateLimiter
from crcr.ports import Clock, check_lease, no_lease

_NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)
_FIXED_HEADERS = (
    (b"User-Agent", f"crcr/{__version__}".encode()),
    (b"X-GitHub-Api-Version", b"2022-11-28"),
    # Responses are small, and an uncompressed one cannot expand beyond the bytes that were read.
    (b"Accept-Encoding", b"identity"),
)
_CONNECT_S = 3.0
CONCURRENT = "concurrent"
"""The reason of a pause when GitHub's limit on concurrent requests is reached."""
_LIMITS: Mapping[HeldBy, str] = {
    HeldBy.HOUR: "GitHub's hourly limit",
    HeldBy.MINUTE: "GitHub's limit a minute",
    HeldBy.CONTENT: "GitHub's limit on comments",
    HeldBy.SECONDARY: "GitHub's secondary limit",
}


class CallCounters(Protocol):
    """Where calls are counted."""

    def call(self, kind: CallKind, status: str, seconds: float) -> None:
        """One request; `status`: 2xx to 5xx, other, unsure (no response) or unreachable."""
        ...

    def pause(self, reason: str, urgency: Urgency) -> None:
        """A request was not sent, or was refused, because of this limit: a value of `HeldBy`, or `CONCURRENT`."""
        ...


class _Uncounted:
    def call(self, kind: CallKind, status: str, seconds: float) -> None: ...
    def pause(self, reason: str, urgency: Urgency) -> None: ...


class GitHubTransport:
    """Sends each request with a token for its scope. The caller owns `http` and closes it."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        api_url: str,
        auth: AppAuth,
        tokens: TokenCache,
        limiter: GitHubRateLimiter,
        clock: Clock,
        counters: CallCounters | None = None,
        on_refused: Callable[[], Awaitable[object]] | None = None,
        total_s: float = 10.0,
        read_only: bool = False,
    ) -> None:
        """`on_refused` is awaited when GitHub refuses the App's own token: the key may have been rotated.

        With `read_only` a request that would write is refused here, whoever makes it; tokens are still requested.
        """
        self._read_only = read_only
        self._http = http
        self._api_url = api_url.rstrip("/")
        self._auth = auth
        self._tokens = tokens
        self._limiter = limiter
        self._clock = clock
        self._counters = counters or _Uncounted()
        self._on_refused = on_refused
        self._total_s = total_s
        timeout = httpx.Timeout(total_s, connect=_CONNECT_S, pool=_CONNECT_S)
        self._extensions = {"timeout": timeout.as_dict()}
        self._etags = EtagCache()

    # With which token

    async def send_pages(self, request: Request, scope: TokenScope, most: int) -> list[Response]:
        """Read a list page by page: to its end, to `most` pages, or to one that is too large to read."""
        pages: list[Response] = []
        for number in range(1, most + 1):
            pages.append(await self.send_in_scope(request_response.with_page(request, number), scope))
            if pages[-1].cut or request_response.find_next_link(pages[-1]) is None:
                break
        return pages

    async def send(self, target: Target, request: Request, permissions: Permissions) -> Response:
        return await self.send_in_scope(request, token_scope(target, permissions))

    async def send_in_scope(self, request: Request, scope: TokenScope) -> Response:
        self._refuse_write(request)
        cached = self._etags.find(request, scope)
        response = await self._send_with_token(conditional(request, cached), scope)
        return self._etags.resolve(request, scope, response, cached)

    async def send_as_app(self, request: Request) -> Response:
        self._refuse_write(request)
        return await self._send_as_app(request)

    def _refuse_write(self, request: Request) -> None:
        if self._read_only and (request.writes or request.method != "GET"):
            raise OutsideRefused("Shadow mode: nothing is written to GitHub.", status=403)

    async def _send_as_app(self, request: Request, *, points: int | None = None) -> Response:
        token = self._auth.token()
        try:
            return await self._send_within_limits(request, token, APP, points)
        except OutsideRefused as refusal:
            if refusal.status != 401:
                raise
        self._auth.forget(token)
        if self._on_refused is not None:
            await self._on_refused()
        return await self._send_within_limits(request, self._auth.token(), APP, points)

    async def _send_with_token(self, request: Request, scope: TokenScope) -> Response:
        token = await self._tokens.get(scope, self._mint)
        try:
            return await self._send_within_limits(request, token, scope.installation_id)
        except OutsideRefused as refusal:
            if refusal.status != 401:
                raise
        self._tokens.forget(scope, token)
        token = await self._tokens.get(scope, self._mint)
        return await self._send_within_limits(request, token, scope.installation_id)

    async def _mint(self, scope: TokenScope) -> Token:
        check_lease.set(no_lease)  # in a task of its own: other effects wait for this token, too
        self._reserve(scope.installation_id, 0)
        ids = () if scope.repository_id is None else (scope.repository_id,)
        names = () if scope.repository is None else (scope.repository,)
        request = request_response.create_installation_token(
            scope.installation_id, ids, scope.permissions, repositories=names
        )
        # GitHub counts it for the App, on an endpoint per installation, and there is at most one an hour and scope:
        # points for it would delay a start with a thousand installations for minutes. Blocks do count.
        return request_response.parse_token(await self._send_as_app(request, points=0))

    # Within which limits

    async def _send_within_limits(
        self, request: Request, token: Token, installation_id: int, points: int | None = None
    ) -> Response:
        """Send and follow a read's redirect. `installation_id` is `APP` for requests with the App's JWT."""
        cost = request.points if points is None else points
        response = await self._exchange(request, token, installation_id, cost)
        redirected = request_response.follow_redirect(request, response, self._api_url)
        if redirected is not None:
            request, response = redirected, await self._exchange(redirected, token, installation_id, cost)
        self._raise_for_error(request, response, installation_id)
        return response

    async def _exchange(self, request: Request, token: Token, installation_id: int, cost: int) -> Response:
        try:
            async with self._limiter.slot():
                await check_lease.get()()
                # Within the slot, so that points are dated when they are spent.
                self._reserve(installation_id, cost, urgency=request.urgency, content=request.creates_content)
                try:
                    response = await self._send_counted(request, token)
                finally:
                    self._limiter.release(installation_id, cost)
        except OutsideLimited as limit:
            if limit.held_by is None:
                self._counters.pause(CONCURRENT, request.urgency)
            raise
        await check_lease.get()()
        return response

    async def _send_counted(self, request: Request, token: Token) -> Response:
        began, status = monotonic(), "unsure"
        try:
            response = await self._send_once(request, token)
            status = status_class(response.status)
        except OutsideUnreachable:
            status = "unreachable"
            raise
        finally:
            self._counters.call(call_kind(request.path), status, monotonic() - began)
        return response

    def _reserve(
        self, installation_id: int, cost: int, *, urgency: Urgency = Urgency.FIRST, content: bool = False
    ) -> None:
        now = self._clock.now()
        hold = self._limiter.reserve(installation_id, cost, now.timestamp(), urgency=urgency, content=content)
        if hold is not None:
            self._counters.pause(hold.by, urgency)
            owner = "the App" if installation_id == APP else f"installation {installation_id}"
            text = f"{_LIMITS[hold.by]} of {owner}: held back {_until(now, hold.wait_s)}."
            raise OutsideLimited(text, retry_after_s=hold.wait_s, held_by=hold.by, urgency=urgency)

    def _raise_for_error(self, request: Request, response: Response, installation_id: int) -> None:
        now = self._clock.now()
        error = error_from_response(request, response, now)
        if isinstance(error, OutsideLimited):
            held_by = error.held_by or HeldBy.SECONDARY
            self._counters.pause(held_by, request.urgency)
            wait_s = self._limiter.block(
                installation_id, error.retry_after_s, now.timestamp(), by=held_by, headers=response.headers
            )
            wait_s += RETURN_AFTER_S[request.urgency]
            text = f"{error.detail} ({_LIMITS[held_by]}: held back {_until(now, wait_s)})"
            error = OutsideLimited(text, retry_after_s=wait_s, held_by=held_by, urgency=request.urgency)
        else:
            self._limiter.observe(installation_id, response.headers, now.timestamp())
        if error is not None:
            raise error

    # Over HTTP

    async def _send_once(self, request: Request, token: Token) -> Response:
        prepared = self._prepare(request, token)
        # `from None`: a transport error holds the request, and the request holds the token.
        try:
            async with asyncio.timeout(self._total_s):
                return await self._receive(prepared, request.most_bytes)
        except _NEVER_SENT as error:
            raise OutsideUnreachable(_error_text("GitHub cannot be reached", error)) from None
        except (httpx.HTTPError, TimeoutError) as error:
            raise OutsideUnsure(_error_text("GitHub's answer did not come", error)) from None

    def _prepare(self, request: Request, token: Token) -> httpx.Request:
        # Made directly: `http.build_request` would merge cookies, defaults and parameters into every call.
        headers = [
            *_FIXED_HEADERS,
            (b"Accept", request.accept.encode()),
            (b"Authorization", b"Bearer " + token.value.encode()),
        ]
        if request.body is not None:
            headers.append((b"Content-Type", b"application/json"))
        if request.etag is not None:
            headers.append((b"If-None-Match", request.etag.encode()))
        url = self._api_url + request.path
        return httpx.Request(
            request.method, url, headers=headers, content=request.body, extensions=self._extensions
        )

    async def _receive(self, prepared: httpx.Request, most_bytes: int) -> Response:
        response = await self._http.send(prepared, stream=True, follow_redirects=False)
        try:
            body = await _read_capped(response, most_bytes)
        finally:
            await response.aclose()
        cut = len(body) > most_bytes
        return Response(response.status_code, response.headers, bytes(body), cut)


def token_scope(target: Target, permissions: Permissions) -> TokenScope:
    """Narrow a token to one repository: by its id, or by its name while the id is not known."""
    name = target.repository.name if target.repository_id is None else None
    return TokenScope(target.installation_id, target.repository_id, permissions, name)


async def _read_capped(response: httpx.Response, most_bytes: int) -> bytearray:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > most_bytes:
            break
    return body


def _until(now: datetime, wait_s: float) -> str:
    until = now + timedelta(seconds=wait_s)
    return f"until {until:%H:%M:%S} UTC"


def _error_text(label: str, error: Exception) -> str:
    return f"{label}: {type(error).__name__} {readable(str(error))}".rstrip()


# ETags

_Key = tuple[str, str, TokenScope]
MOST_BYTES = 16 << 20
LARGEST_BYTES = 512 << 10
_OVERHEAD_BYTES = 1024


class EtagCache:
    """Responses to reads with their ETags, so that repeating a read does not count against the hourly limit.

    GitHub answers 304 while nothing has changed and does not count that. It makes an ETag from the address and the token's
    scope, so both are the key; a new token of the same scope costs one full response. Kept in memory up to a number of
    bytes; the least recently used response is dropped first.
    https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api#use-conditional-requests-if-appropriate
    """

    def __init__(self, *, most_bytes: int = MOST_BYTES, largest_bytes: int = LARGEST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._largest_bytes = largest_bytes
        self._bytes = 0
        self._responses: OrderedDict[_Key, Response] = OrderedDict()

    def find(self, request: Request, scope: TokenScope) -> Response | None:
        """Return the cached response; None where there is none, or where the request has an ETag of its own."""
        if not _is_cacheable(request):
            return None
        key = _key(request, scope)
        if key in self._responses:
            self._responses.move_to_end(key)
        return self._responses.get(key)

    def resolve(
        self, request: Request, scope: TokenScope, response: Response, cached: Response | None
    ) -> Response:
        """Return the full response: `cached`, as `find` returned it, where GitHub answered 304; cache a new one."""
        if cached is not None and response.status == 304:
            return cached
        if _is_cacheable(request):
            self._drop(_key(request, scope))
            if response.status == 200 and response.headers.get("etag") and not response.cut:
                self._add(_key(request, scope), response)
        return response

    def _add(self, key: _Key, response: Response) -> None:
        if len(response.body) > self._largest_bytes:
            return
        self._responses[key] = response
        self._bytes += _size_bytes(response)
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._responses)))

    def _drop(self, key: _Key) -> None:
        cached = self._responses.pop(key, None)
        if cached is not None:
            self._bytes -= _size_bytes(cached)


def conditional(request: Request, cached: Response | None) -> Request:
    """Return the request with the cached response's ETag, if there is one."""
    return request if cached is None else replace(request, etag=cached.headers["etag"])


def _is_cacheable(request: Request) -> bool:
    return request.method == "GET" and request.etag is None


def _key(request: Request, scope: TokenScope) -> _Key:
    return request.path, request.accept, scope


def _size_bytes(response: Response) -> int:
    return len(response.body) + _OVERHEAD_BYTES


# What a call is about, for counting: derived from the path, so that a new call is counted without further code and
# no repository's name becomes a label.

_APP_KINDS = {
    "installations": CallKind.TOKEN,
    "hook": CallKind.DELIVERY_LOG,
    "": CallKind.APP,
}
_REPOSITORY_KINDS = {
    "": CallKind.REPOSITORY,
    "actions": CallKind.ACTIONS,
    "check-runs": CallKind.CHECKS,
    "collaborators": CallKind.PERMISSION,
    "commits": CallKind.COMMITS,
    "compare": CallKind.COMMITS,
    "contents": CallKind.CONTENTS,
    "dispatches": CallKind.DISPATCH,
    "git": CallKind.COMMITS,
    "installation": CallKind.INSTALLATION,
    "issues": CallKind.COMMENTS,
    "pulls": CallKind.PULLS,
}


def call_kind(path: str) -> CallKind:
    segments = path.partition("?")[0].strip("/").split("/")
    if segments[0] == "app":
        return _APP_KINDS.get(_segment(segments, 1), CallKind.OTHER)
    # GitHub redirects calls to a renamed repository to `/repositories/ID/…`.
    subject_index = {"repos": 3, "repositories": 2}.get(segments[0])
    if subject_index is None:
        return CallKind.OTHER
    if segments[-1] == "check-runs":
        return CallKind.CHECKS
    return _REPOSITORY_KINDS.get(_segment(segments, subject_index), CallKind.OTHER)


def status_class(status: int) -> str:
    return f"{status // 100}xx" if 200 <= status < 600 else "other"


def _segment(segments: list[str], index: int) -> str:
    return segments[index] if index < len(segments) else ""
