"""The web edge: routes, life span, and the one table from error codes to HTTP.

The two hot routes are answered before any framework code runs. FastAPI is imported only for an app with an API, not in a
process that serves no pages. Every refusal has the same shape, `{"ok": false, "error": {...}}`, and an unexpected error
shows nothing but its request id.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from crcr.decide.jobs.judge import RejectedReport
from crcr.errors import CrcrError, NotSignedIn, Unavailable
from crcr.receive.http.response import IntakeResponse

if TYPE_CHECKING:
    from fastapi import APIRouter

log = structlog.get_logger(__name__)

STATUS: Mapping[str, int] = {
    "bad_request": 400,
    "bad_report": 400,
    "bad_signature": 401,
    "not_authentic": 401,
    "not_signed_in": 401,
    "not_registered": 403,
    "identity_changed": 403,
    "not_allowlisted": 403,
    "suspended": 403,
    "claim_mismatch": 403,
    "wrong_event": 403,
    "wrong_ref": 403,
    "not_admin": 403,
    "cross_origin": 403,
    "stale_form": 403,
    "not_found": 404,
    "unknown_delivery": 404,
    "method_not_allowed": 405,
    "head_too_slow": 408,
    "run_bound_elsewhere": 409,
    "ambiguous_job": 409,
    "no_in_progress": 409,
    "conflicting_result": 409,
    "not_possible": 409,
    "too_large": 413,
    "target_too_long": 414,
    "wrong_content_type": 415,
    "rate_limited": 429,
    "head_too_large": 431,
    "internal": 500,
    "outside_fault": 502,
    "unavailable": 503,
    "store_unavailable": 503,
    "limiter_unavailable": 503,
    "keys_unavailable": 503,
    "no_allowlist": 503,
    "default_branch_unknown": 503,
    "stopping": 503,
}
"""Every code that a caller can see, with its status. docs/protocol.md lists them; a test compares."""

_HTTP_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
_SENTENCES = {
    404: "There is no page at this address.",
    405: "This address does not accept this method.",
}
_OUTAGES = {
    "store_unavailable": "the relay's database does not answer; try again in a moment",
    "limiter_unavailable": "the relay's rate limiter does not answer; try again in a moment",
}
"""The text for callers; the addresses of our services and their errors go to the log only."""
_ENCODE = msgspec.json.Encoder().encode
_JSON = (b"content-type", b"application/json")
_NOSNIFF = (b"x-content-type-options", b"nosniff")

Intake = Callable[[Request], Awaitable[IntakeResponse | RejectedReport]]
ProblemPage = Callable[[Request, CrcrError, int, Mapping[str, str]], Response | None]
"""Renders an error as a page where the client expects one; None for any other client."""
Handler = Callable[[Request, Exception], Awaitable[Response]]


class Background(Protocol):
    """Tasks that run beside the requests while the app is up."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Edge:
    """The outermost ASGI app: request ids, the hot routes, and the guard that answers 500."""

    def __init__(
        self,
        inner: Starlette,
        hot: Mapping[str, Intake],
        on_crash: Callable[[Exception], None],
        around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    ) -> None:
        self.inner = inner
        self._all_else = around(inner)
        self._hot = hot
        self._on_crash = on_crash

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        intake = self._hot.get(scope["path"])
        if intake is None:
            request_id = uuid4().hex
            scope.setdefault("state", {})["request_id"] = request_id
            await self._guarded(self._all_else, request_id, scope, receive, send)
            return
        answer = await self._answer(intake, Request(scope, receive))
        if isinstance(answer, Response):
            await answer(scope, receive, send)
            return
        body = _ENCODE(answer.body)
        headers = [_JSON, _NOSNIFF, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, intake: Intake, request: Request) -> IntakeResponse | Response:
        if request.method != "POST":
            return refusal("method_not_allowed", "this endpoint takes POST", request_id=uuid4().hex)
        try:
            answer = await intake(request)
        except CrcrError as error:
            return error_response(error, uuid4().hex)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001  one of the two places that catch all
            return self._crashed(error, uuid4().hex)
        if isinstance(answer, RejectedReport):
            return refusal(answer.code, answer.detail, hint=answer.hint, request_id=uuid4().hex)
        return answer

    async def _guarded(
        self, app: ASGIApp, request_id: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        started = False

        async def watch(message: Any) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await app(scope, receive, watch)
        except ClientDisconnect:
            return  # the client has gone
        except Exception as error:  # noqa: BLE001  the same guard, for all behind FastAPI
            response = self._crashed(error, request_id)
            if not started:
                await response(scope, receive, send)

    def _crashed(self, error: Exception, request_id: str) -> Response:
        log.error("request_crashed", request_id=request_id, exc_info=error)
        self._on_crash(error)
        return refusal("internal", "something went wrong inside the relay", request_id=request_id)


def create_app(
    *,
    hot: Mapping[str, Intake],
    routes: list[BaseRoute],
    routers: "list[APIRouter] | None",
    background: Background,
    on_crash: Callable[[Exception], None] = lambda _: None,
    around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    problem_page: ProblemPage = lambda *_: None,
) -> Edge:
    """`around` wraps everything but the hot routes: access, headers, compression.

    Without `routers` the app has no API, and needs no FastAPI.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            await background.start()
            yield
        finally:
            await asyncio.shield(background.stop())

    inner = _framework_app(routes, routers, lifespan)
    inner.router.redirect_slashes = False  # its redirects use the Host header of the caller
    for kind, handler in error_handlers(problem_page).items():
        inner.add_exception_handler(kind, handler)
    return Edge(inner, hot, on_crash, around)


def _framework_app(
    routes: list[BaseRoute],
    routers: "list[APIRouter] | None",
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
) -> Starlette:
    if routers is None:
        return Starlette(routes=routes, lifespan=lifespan)
    from crcr.openapi import create_api  # noqa: PLC0415  imports FastAPI

    return create_api(routes, routers, lifespan, _on_invalid)


def refusal(
    code: str,
    detail: str,
    *,
    request_id: str,
    hint: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    error = {"code": code, "detail": detail, "hint": hint, "request_id": request_id}
    body = _ENCODE({"ok": False, "error": {key: value for key, value in error.items() if value is not None}})
    sent = {"x-content-type-options": "nosniff", **(headers or {})}
    return Response(body, STATUS[code], headers=sent, media_type="application/json")


def error_response(error: CrcrError, request_id: str) -> Response:
    code, headers = _code_and_headers(error, request_id)
    return refusal(
        code, _OUTAGES.get(code, error.detail), hint=error.hint, request_id=request_id, headers=headers
    )


def error_handlers(page: ProblemPage = lambda *_: None) -> Mapping[type[Exception], Handler]:
    """Return the handlers that turn exceptions into responses: the only place where an error becomes a page."""
    return {
        CrcrError: partial(_on_error, page),
        ClientDisconnect: _on_gone,
        HTTPException: partial(_on_http, page),
        Exception: partial(_on_error, page),
    }


def problem_response(request: Request, error: CrcrError, page: ProblemPage) -> Response:
    """Return the error as a page where the client expects one, else as JSON."""
    request_id = _request_id(request)
    code, headers = _code_and_headers(error, request_id)
    if code in _OUTAGES:
        error = CrcrError(_OUTAGES[code], hint=error.hint)
    return page(request, error, STATUS[code], headers) or refusal(
        code, error.detail, hint=error.hint, request_id=request_id, headers=headers
    )


def _code_and_headers(error: CrcrError, request_id: str) -> tuple[str, dict[str, str]]:
    code = error.code if error.code in STATUS else "outside_fault"
    wait = getattr(error, "retry_after_s", None)
    headers = {"retry-after": str(max(1, ceil(wait)))} if wait is not None else {}
    if isinstance(error, NotSignedIn):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, Unavailable):
        log.warning("unavailable", code=code, request_id=request_id, detail=error.detail)
    return code, headers


def _request_id(request: Request) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))


async def _on_error(page: ProblemPage, request: Request, error: Exception) -> Response:
    if not isinstance(error, CrcrError):  # the guard around the app logs it
        error = CrcrError("something went wrong inside the relay")
    return problem_response(request, error, page)


async def _on_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=400)


def _on_invalid(request: Request, details: str) -> Response:
    return refusal("bad_request", details, request_id=_request_id(request))


async def _on_http(page: ProblemPage, request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = str(error.detail) if isinstance(error, HTTPException) else "error"
    allowed = {"allow": (getattr(error, "headers", None) or {}).get("Allow", "")} if status == 405 else {}
    code = _HTTP_CODES.get(status, "internal")
    response = page(request, CrcrError(_SENTENCES.get(status, detail)), STATUS[code], allowed)
    return response or refusal(code, detail, request_id=_request_id(request), headers=allowed)
