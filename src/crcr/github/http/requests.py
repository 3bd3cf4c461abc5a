"""The line to GitHub: in whose name a request goes out, within which limits, and what comes back.

Sends what `api.py` describes and raises what `faults.py` makes of the answer. It never sleeps and never sends
anything again on its own, except after a 401 (which carries nothing out) and after a read's redirect. What may
have been carried out is `OutsideUnsure`; what was never sent is `OutsideUnreachable`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime, timedelta
from time import monotonic
from typing import Protocol

import httpx

from crcr import __version__
from crcr.decide.github.values import CallKind, Target
from crcr.decide.model import RepoName
from crcr.decide.outbox.urgency import Urgency
from crcr.errors import HeldBy, OutsideLimited, OutsideRefused, OutsideUnreachable, OutsideUnsure
from crcr.github.api import core
from crcr.github.api.core import Permissions, Request, Response, Token
from crcr.github.auth.app_key import AppAuth
from crcr.github.auth.installation_tokens import Scope, TokenCache
from crcr.github.http.call_kinds import kind_of, status_class
from crcr.github.http.errors import fault_of, readable
from crcr.github.http.etags import KeptAnswers, conditional
from crcr.github.http.hour_budget import RETURN_AFTER_S
from crcr.github.http.rate_limiter import APP, Governor
from crcr.ports import Clock, no_lease, still_held

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
    # Answers are small, and what is not packed cannot unpack to more than it said.
    (b"Accept-Encoding", b"identity"),
)
CONCURRENT = "concurrent"
"""Why a call was put off when as many are under way as GitHub takes at once."""
_LIMITS: Mapping[HeldBy, str] = {
    HeldBy.HOUR: "GitHub's hourly limit",
    HeldBy.MINUTE: "GitHub's limit a minute",
    HeldBy.CONTENT: "GitHub's limit on comments",
    HeldBy.SECONDARY: "GitHub's secondary limit",
}


class Tally(Protocol):
    """Where calls are counted."""

    def call(self, kind: CallKind, status: str, seconds: float) -> None:
        """One exchange; `status`: 2xx to 5xx, other, unsure (no answer came) or unreachable."""
        ...

    def pause(self, reason: str, urgency: Urgency) -> None:
        """A call was not made, or not carried out, because of this limit: a value of `HeldBy`, or `CONCURRENT`."""
        ...


class _Uncounted:
    def call(self, kind: CallKind, status: str, seconds: float) -> None: ...
    def pause(self, reason: str, urgency: Urgency) -> None: ...


class Line:
    """Sends requests under a token for their use. The caller owns `http` and closes it."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        api_url: str,
        auth: AppAuth,
        tokens: TokenCache,
        governor: Governor,
        clock: Clock,
        tally: Tally | None = None,
        connect_s: float = 3.0,
        total_s: float = 10.0,
    ) -> None:
        self._http = http
        self._api_url = api_url.rstrip("/")
        self._auth = auth
        self._tokens = tokens
        self._governor = governor
        self._clock = clock
        self._tally = tally or _Uncounted()
        self._total_s = total_s
        timeout = httpx.Timeout(total_s, connect=connect_s, pool=connect_s)
        self._extensions = {"timeout": timeout.as_dict()}
        self._answers = KeptAnswers()
        # Where the App is installed, as GitHub last said.
        self._installations: OrderedDict[RepoName, int] = OrderedDict()

    # Who asks

    async def _pages(self, request: Request, scope: Scope, most: int) -> list[Response]:
        """Ask for a list page by page: to its end, to `most` pages, or to one that is too large to read."""
        pages: list[Response] = []
        for number in range(1, most + 1):
            pages.append(await self._in_scope(core.turned(request, number), scope))
            if pages[-1].cut or core.next_link(pages[-1]) is None:
                break
        return pages

    async def _at(self, where: Target, request: Request, permissions: Permissions) -> Response:
        return await self._in_scope(request, scope_of(where, permissions))

    async def _in_scope(self, request: Request, scope: Scope) -> Response:
        kept = self._answers.find(request, scope)
        answer = await self._with_token(conditional(request, kept), scope)
        return self._answers.settle(request, scope, answer, kept)

    async def _with_token(self, request: Request, scope: Scope) -> Response:
        token = await self._tokens.get(scope, self._mint)
        try:
            return await self._ask(request, token, scope.installation_id)
        except OutsideRefused as refused:
            if refused.status != 401:
                raise
        self._tokens.forget(scope, token)
        token = await self._tokens.get(scope, self._mint)
        return await self._ask(request, token, scope.installation_id)

    async def _as_app(self, request: Request, *, points: int | None = None) -> Response:
        token = self._auth.token()
        try:
            return await self._ask(request, token, APP, points)
        except OutsideRefused as refused:
            if refused.status != 401:
                raise
        self._auth.forget(token)
        return await self._ask(request, self._auth.token(), APP, points)

    async def _mint(self, scope: Scope) -> Token:
        still_held.set(no_lease)  # in a task of its own: others wait for this token, too
        self._reserve(scope.installation_id, 0)
        ids = () if scope.repository_id is None else (scope.repository_id,)
        names = () if scope.repository is None else (scope.repository,)
        request = core.installation_token(scope.installation_id, ids, scope.permissions, repositories=names)
        # Counted by GitHub for the App and on an endpoint per installation, at most one an hour and scope:
        # points for it would hold up a start with a thousand installations for minutes. Blocks do count.
        return core.minted_token(await self._as_app(request, points=0))

    # How it is sent

    async def _ask(self, request: Request, token: Token, budget: int, points: int | None = None) -> Response:
        cost = request.points if points is None else points
        response = await self._exchange(request, token, budget, cost)
        onward = core.onward(request, response, self._api_url)
        if onward is not None:
            request, response = onward, await self._exchange(onward, token, budget, cost)
        self._judge(request, response, budget)
        return response

    async def _exchange(self, request: Request, token: Token, budget: int, cost: int) -> Response:
        try:
            async with self._governor.slot():
                await still_held.get()()
                # Within the slot, so that points are dated when they are spent.
                self._reserve(budget, cost, urgency=request.urgency, content=request.creates_content)
                try:
                    response = await self._counted(request, token)
                finally:
                    self._governor.release(budget, cost)
        except OutsideLimited as limit:
            if limit.held_by is None:
                self._tally.pause(CONCURRENT, request.urgency)
            raise
        await still_held.get()()
        return response

    async def _counted(self, request: Request, token: Token) -> Response:
        began, status = monotonic(), "unsure"
        try:
            response = await self._send(request, token)
            status = status_class(response.status)
        except OutsideUnreachable:
            status = "unreachable"
            raise
        finally:
            self._tally.call(kind_of(request.path), status, monotonic() - began)
        return response

    def _reserve(
        self, budget: int, cost: int, *, urgency: Urgency = Urgency.FIRST, content: bool = False
    ) -> None:
        now = self._clock.now()
        hold = self._governor.reserve(budget, cost, now.timestamp(), urgency=urgency, content=content)
        if hold is not None:
            self._tally.pause(hold.by, urgency)
            text = f"{_LIMITS[hold.by]} of {_whom(budget)}: held back {_until(now, hold.wait_s)}."
            raise OutsideLimited(text, retry_after_s=hold.wait_s, held_by=hold.by, urgency=urgency)

    def _judge(self, request: Request, response: Response, budget: int) -> None:
        now = self._clock.now()
        fault = fault_of(request, response, now)
        if isinstance(fault, OutsideLimited):
            held_by = fault.held_by or HeldBy.SECONDARY
            self._tally.pause(held_by, request.urgency)
            wait_s = self._governor.block(
                budget, fault.retry_after_s, now.timestamp(), by=held_by, headers=response.headers
            )
            wait_s += RETURN_AFTER_S[request.urgency]
            text = f"{fault.detail} ({_LIMITS[held_by]}: held back {_until(now, wait_s)})"
            fault = OutsideLimited(text, retry_after_s=wait_s, held_by=held_by, urgency=request.urgency)
        else:
            self._governor.observe(budget, response.headers, now.timestamp())
        if fault is not None:
            raise fault

    async def _send(self, request: Request, token: Token) -> Response:
        prepared = self._prepare(request, token)
        # `from None`: a transport error holds the request, and the request holds the token.
        try:
            async with asyncio.timeout(self._total_s):
                return await self._receive(prepared, request.most_bytes)
        except _NEVER_SENT as error:
            raise OutsideUnreachable(_trouble("GitHub cannot be reached", error)) from None
        except (httpx.HTTPError, TimeoutError) as error:
            raise OutsideUnsure(_trouble("GitHub's answer did not come", error)) from None

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
        answer = await self._http.send(prepared, stream=True, follow_redirects=False)
        try:
            body = await _read_capped(answer, most_bytes)
        finally:
            await answer.aclose()
        cut = len(body) > most_bytes
        return Response(answer.status_code, answer.headers, bytes(body), cut)


def scope_of(where: Target, permissions: Permissions) -> Scope:
    """Narrow a token to one repository: by its id, or by its name while the id is not known."""
    name = where.repository.name if where.repository_id is None else None
    return Scope(where.installation_id, where.repository_id, permissions, name)


async def _read_capped(answer: httpx.Response, most_bytes: int) -> bytearray:
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > most_bytes:
            break
    return body


def _whom(budget: int) -> str:
    return "the App" if budget == APP else f"installation {budget}"


def _until(now: datetime, wait_s: float) -> str:
    until = now + timedelta(seconds=wait_s)
    return f"until {until:%H:%M:%S} UTC"


def _trouble(what: str, error: Exception) -> str:
    return f"{what}: {type(error).__name__} {readable(str(error))}".rstrip()
