"""The simulated REST API as an ASGI app: it finds the route, then applies authentication, limits, faults and permission
in GitHub's order, calls the handler, and records the call.

It answers at the root and, as GitHub Enterprise Server does, below /api/v3. An unknown route is a 404 that also fails
the test at `finish()`.
"""

import hashlib
import re
from itertools import chain
from typing import TYPE_CHECKING

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from github_sim.rest import (
    actions,
    app_manifest,
    checks,
    comments,
    commits,
    github_app,
    oidc,
    repositories,
)
from github_sim.rest.auth import check_permission
from github_sim.rest.exchange import ApiError, ApiRequest, Auth, Caller, Reply, Route
from github_sim.web.pages import page_for, wants_html
from github_sim.world.faults import Fault, FaultKind
from github_sim.world.rate_limits import rate_limit_subject
from github_sim.world.records import Call, Repository

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

GHES_ROOT = "/api/v3"
# The longer template of two that fit comes first: commits/{ref}/check-runs before commits/{ref}.
ROUTES: tuple[Route, ...] = tuple(
    sorted(
        (
            *github_app.ROUTES,
            *app_manifest.ROUTES,
            *checks.ROUTES,
            *repositories.ROUTES,
            *commits.ROUTES,
            *comments.ROUTES,
            *actions.ROUTES,
            *oidc.ROUTES,
        ),
        key=lambda route: -len(route.template),
    )
)
_PATTERNS = tuple((route, route.pattern) for route in ROUTES)
_BY_ID = re.compile(r"/repositories/(?P<id>\d+)(?P<rest>/.*)?")
_BY_NAME = re.compile(r"/repos/(?P<name>[^/]+/[^/]+)(?P<rest>/.*)?")


class AnswerLost(httpx.ReadTimeout):
    """The act happened and its answer never arrives. In-process callers see it as their read time-out."""


class RestApi:
    """The ASGI application of one simulation."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the simulated GitHub has no {scope['type']}")
        request = Request(scope, receive)
        reply = await _Exchange(self._sim, request, await request.body()).answer()
        response = Response(reply.content(), status_code=reply.status, media_type=reply.media)
        response.headers.update(reply.headers)
        await response(scope, receive, send)


class _Exchange:
    """One API call."""

    def __init__(self, sim: "Simulation", request: Request, body: bytes) -> None:
        self._sim = sim
        self._method = request.method
        self._path = request.url.path.removeprefix(GHES_ROOT) or "/"
        self._query = dict(request.query_params)
        self._headers = request.headers
        self._body = body
        self._caller: Caller | None = None
        self._route: Route | None = None

    async def answer(self) -> Reply:
        try:
            reply = await self._answer_with_faults()
        except AnswerLost:
            self._record(0)
            raise
        self._record(reply.status)
        return reply

    def _record(self, status: int) -> None:
        installation = self._caller.installation_id if self._caller else None
        template = self._route.template if self._route else None
        now = self._sim.clock.now()
        call = Call(self._method, self._path, template, status, installation, self._body, now)
        self._sim.calls.append(call)
        for listener in self._sim.on_call:
            listener(call)

    async def _answer_with_faults(self) -> Reply:
        match = _BY_NAME.fullmatch(self._path)
        chosen = self._sim.faults.claim(self._method, self._path, match["name"] if match else None)
        for fault in chosen:
            if fault.kind is FaultKind.LATENCY:
                await self._sim.sleep(fault.latency_s)
        others = [fault for fault in chosen if fault.kind is not FaultKind.LATENCY]
        return await (self._apply_fault(others[0]) if others else self._handle())

    async def _apply_fault(self, fault: Fault) -> Reply:
        if fault.kind is FaultKind.ANSWER:
            return self._fault_answer(fault)
        if fault.kind is FaultKind.LOSE_REQUEST:
            raise AnswerLost("the simulated GitHub never got the call")
        if fault.kind is FaultKind.HANG and fault.gate is not None:
            await fault.gate.wait()
            return await self._handle()
        reply = await self._handle()
        if fault.kind is FaultKind.LOSE_ANSWER:
            raise AnswerLost("the simulated GitHub lost its answer")
        if fault.kind is FaultKind.HANG_AFTER and fault.gate is not None:
            await fault.gate.wait()
            return reply
        return Reply(
            reply.status if reply.status != 204 else 200, raw=b'{"token": "ghs_', headers=reply.headers
        )

    def _fault_answer(self, fault: Fault) -> Reply:
        headers = dict(fault.headers)
        if fault.reset_in_s is not None:
            now = int(self._sim.clock.now().timestamp())
            headers |= {
                "x-ratelimit-limit": str(self._sim.limits.primary_per_hour),
                "x-ratelimit-reset": str(now + fault.reset_in_s),
                "x-ratelimit-resource": "core",
            }
        return ApiError(fault.status, fault.message, headers=headers).reply()

    async def _handle(self) -> Reply:
        """Call the route. A refusal becomes GitHub's error body; an error of the simulator becomes a 500 that fails the test."""
        try:
            return await self._call_route()
        except ApiError as refusal:
            return self._with_rate_headers(refusal.reply())
        except Exception as error:  # noqa: BLE001 - reported by finish(), never swallowed
            self._sim.unexpected.append(f"{self._method} {self._path}: {error!r}")
            return ApiError(500, "Server Error").reply()

    async def _call_route(self) -> Reply:
        path = self._path_by_name()
        if (page := page_for(self._sim, self._method, path, self._headers.get("accept", ""))) is not None:
            return page
        self._route, params = self._find_route(path)
        self._caller = self._authenticate(self._route)
        request = ApiRequest(self._route, path, params, self._query, self._headers, self._body, self._caller)
        subject, now = rate_limit_subject(self._caller), self._sim.clock.now()
        if self._route.auth is Auth.OPEN:
            return await self._route.handler(self._sim, request)
        with self._sim.rate_limiter.count_call(subject, self._route, now):
            redirect = self._bind(request)
            reply = redirect or self._with_etag(await self._route.handler(self._sim, request))
        if reply.status == 304:
            self._sim.rate_limiter.refund(subject, now)
        return self._with_rate_headers(reply)

    def _with_etag(self, reply: Reply) -> Reply:
        """Add an ETag to a read, and answer 304 when the client's ETag matches. Another token has another ETag."""
        if self._method != "GET" or reply.status != 200 or "etag" in reply.headers:
            return reply
        content = reply.content()
        authorization = self._headers.get("authorization", "").encode()
        etag = f'W/"{hashlib.sha256(authorization + content).hexdigest()}"'
        headers = {**reply.headers, "etag": etag}
        if self._headers.get("if-none-match") == etag:
            return Reply(304, headers=headers)
        return Reply(200, headers=headers, raw=content, media=reply.media)

    def _with_rate_headers(self, reply: Reply) -> Reply:
        if self._route is None or self._route.auth is Auth.OPEN:
            return reply
        rate_headers = self._sim.rate_limiter.headers(rate_limit_subject(self._caller), self._sim.clock.now())
        headers = {
            **rate_headers,
            "x-github-api-version-selected": "2022-11-28",
            "x-github-request-id": f"{len(self._sim.calls):04X}:SIM",
            **reply.headers,
        }
        return Reply(reply.status, reply.body, headers, reply.raw, reply.media)

    def _path_by_name(self) -> str:
        """`/repositories/{id}/…`, where redirects lead, means the repository of that id."""
        match = _BY_ID.fullmatch(self._path)
        if match is None:
            return self._path
        repository = self._sim.world.repositories.get(int(match["id"]))
        if repository is None:
            raise ApiError(404, "Not Found")
        return f"/repos/{repository.full_name}{match['rest'] or ''}"

    def _find_route(self, path: str) -> tuple[Route, dict[str, str]]:
        added = ((route, route.pattern) for route in self._sim.extra_routes)
        for route, pattern in chain(_PATTERNS, added):
            if route.method == self._method and (match := pattern.fullmatch(path)):
                return route, match.groupdict()
        if not wants_html(self._method, self._headers.get("accept", "")):
            self._sim.unexpected.append(f"unknown route {self._method} {self._path}")
        raise ApiError(404, "Not Found")

    def _authenticate(self, route: Route) -> Caller | None:
        header = self._headers.get("authorization")
        if route.auth is Auth.OPEN:
            return None
        if route.auth is Auth.APP:
            return self._sim.auth.app(header or "")
        return self._sim.auth.installation(header) if header else None

    def _bind(self, request: ApiRequest) -> Reply | None:
        """Find the route's repository and check the permission; a moved one redirects."""
        if "repo" not in request.params:
            return None
        name = f"{request.params['owner']}/{request.params['repo']}"
        repository = self._sim.world.find(name)
        if repository is None:
            return self._redirect(self._sim.world.find_former(name), request)
        if request.route.permission is not None:
            check_permission(self._sim.world, self._caller, repository, request.route.permission)
        request.bind(repository)
        return None

    def _redirect(self, moved: Repository | None, request: ApiRequest) -> Reply:
        if moved is None:
            raise ApiError(404, "Not Found")
        match = _BY_NAME.fullmatch(request.path)
        rest = (match["rest"] or "") if match else ""
        target = f"{self._sim.base_url}/repositories/{moved.id}{rest}"
        status = 301 if self._method == "GET" else 307
        message = "Moved Permanently" if status == 301 else "Temporary Redirect"
        body = {"message": message, "url": target, "documentation_url": "https://docs.github.com/rest"}
        return Reply(status, body, {"location": target})
