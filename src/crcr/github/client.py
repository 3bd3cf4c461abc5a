"""Asks GitHub: one call per dispatch once token and installation are known.

Sends what `api.py` describes and raises what `faults.py` makes of the answer. It never sleeps and never sends
anything again on its own, except after a 401 (which carries nothing out) and after a read's redirect. What may
have been carried out is `OutsideUnsure`; what was never sent is `OutsideUnreachable`.
"""

import asyncio
from collections import OrderedDict

import httpx

from crcr import __version__
from crcr.decide.model import RepoName
from crcr.decide.outside import FilePlace, FileText, PullFacts, RepositoryFacts, Target
from crcr.errors import OutsideLimited, OutsideRefused, OutsideUnreachable, OutsideUnsure
from crcr.github import api
from crcr.github.api import Request, Response, Token
from crcr.github.app_auth import AppAuth
from crcr.github.faults import fault_of, readable
from crcr.github.governor import APP, Governor
from crcr.github.tokens import Scope, TokenCache
from crcr.ports import Clock

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
_KNOWN_INSTALLATIONS = 1000


class GitHubClient:
    """The `GitHub` port over HTTP. The caller owns `http` and closes it."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        api_url: str,
        auth: AppAuth,
        tokens: TokenCache,
        governor: Governor,
        clock: Clock,
        connect_s: float = 3.0,
        total_s: float = 10.0,
    ) -> None:
        self._http = http
        self._api_url = api_url.rstrip("/")
        self._auth = auth
        self._tokens = tokens
        self._governor = governor
        self._clock = clock
        self._total_s = total_s
        timeout = httpx.Timeout(total_s, connect=connect_s, pool=connect_s)
        self._extensions = {"timeout": timeout.as_dict()}
        self._installations: OrderedDict[RepoName, int] = OrderedDict()

    # The port

    async def find_installation(self, repo: RepoName) -> int:
        """Ask GitHub anew; `read_file` goes by the last answer."""
        try:
            found = api.installation_id(await self._as_app(api.find_installation(repo)))
        except OutsideRefused as refused:
            self._installations.pop(repo, None)
            if refused.status != 404:
                raise
            raise OutsideRefused(f"The App is not installed on {repo}.", status=404) from None
        self._installations[repo] = found
        if len(self._installations) > _KNOWN_INSTALLATIONS:
            self._installations.popitem(last=False)
        return found

    async def read_repository(self, repo: RepoName, installation_id: int) -> RepositoryFacts:
        scope = Scope(installation_id, None, api.METADATA_READ)
        return api.repository_facts(await self._in_scope(api.read_repository(repo), scope))

    async def dispatch(self, target: Target, body: bytes) -> None:
        name = target.repository.name if target.repository_id is None else None
        scope = Scope(target.installation_id, target.repository_id, api.CONTENTS_WRITE, name)
        await self._in_scope(api.dispatch(target.repository, body), scope)

    async def read_pull(self, repo: RepoName, number: int, installation_id: int) -> PullFacts:
        scope = Scope(installation_id, None, api.PULLS_READ)
        return api.pull_facts(await self._in_scope(api.read_pull(repo, number), scope))

    async def read_file(self, place: FilePlace, *, etag: str | None) -> FileText | None:
        request = api.read_file(place, etag)
        repo = place.repository
        installation_id = self._installations.get(repo) or await self.find_installation(repo)
        scope = Scope(installation_id, None, api.CONTENTS_READ)
        try:
            return api.file_text(await self._in_scope(request, scope))
        except OutsideRefused:
            # The App may have been installed anew, under another id.
            self._installations.pop(repo, None)
            raise

    # Who asks

    async def _in_scope(self, request: Request, scope: Scope) -> Response:
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
        self._reserve(scope.installation_id, 0)
        ids = () if scope.repository_id is None else (scope.repository_id,)
        names = () if scope.repository is None else (scope.repository,)
        request = api.installation_token(scope.installation_id, ids, scope.permissions, repositories=names)
        # Counted by GitHub for the App and on an endpoint per installation, at most one an hour and scope:
        # points for it would hold up a start with a thousand installations for minutes. Blocks do count.
        return api.minted_token(await self._as_app(request, points=0))

    # How it is sent

    async def _ask(self, request: Request, token: Token, budget: int, points: int | None = None) -> Response:
        cost = request.points if points is None else points
        response = await self._exchange(request, token, budget, cost)
        onward = api.onward(request, response, self._api_url)
        if onward is not None:
            request, response = onward, await self._exchange(onward, token, budget, cost)
        self._judge(request, response, budget)
        return response

    async def _exchange(self, request: Request, token: Token, budget: int, cost: int) -> Response:
        async with self._governor.slot():
            # Within the slot, so that points are dated when they are spent.
            self._reserve(budget, cost)
            return await self._send(request, token)

    def _reserve(self, budget: int, cost: int) -> None:
        wait_s = self._governor.reserve(budget, cost, self._clock.now().timestamp())
        if wait_s > 0:
            whom = "The App" if budget == APP else f"Installation {budget}"
            raise OutsideLimited(f"{whom} is at its limit of requests to GitHub.", retry_after_s=wait_s)

    def _judge(self, request: Request, response: Response, budget: int) -> None:
        now = self._clock.now()
        fault = fault_of(request, response, now)
        if isinstance(fault, OutsideLimited):
            fault.retry_after_s = self._governor.block(budget, fault.retry_after_s, now.timestamp())
        else:
            self._governor.observe(budget, response.headers, now.timestamp())
        if fault is not None:
            raise fault

    async def _send(self, request: Request, token: Token) -> Response:
        prepared = self._prepare(request, token)
        # `from None`: a transport error holds the request, and the request holds the token.
        try:
            async with asyncio.timeout(self._total_s):
                return await self._receive(prepared)
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

    async def _receive(self, prepared: httpx.Request) -> Response:
        answer = await self._http.send(prepared, stream=True, follow_redirects=False)
        try:
            body = await _read_capped(answer)
        finally:
            await answer.aclose()
        cut = len(body) > api.MAX_ANSWER_BYTES
        return Response(answer.status_code, answer.headers, bytes(body), cut)


async def _read_capped(answer: httpx.Response) -> bytearray:
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > api.MAX_ANSWER_BYTES:
            break
    return body


def _trouble(what: str, error: Exception) -> str:
    return f"{what}: {type(error).__name__} {readable(str(error))}".rstrip()
