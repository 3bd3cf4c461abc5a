"""Routes of administration: forms in a session under `/crcr/admin`, JSON with a bearer token under `/api/v1`.

A form needs the CSRF field of its session, so that no other site can send it. The JSON routes accept bearer tokens only
and never a cookie, so that no browser can be made to call them.
"""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Query
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message

from crcr.decide.views.bisections import BisectionDetail
from crcr.errors import NotAdmin, NotFound, NotSignedIn
from crcr.show.access.admin_orders import (
    ADMIN_ACTIONS,
    AdminAction,
    AdminOrder,
    AdminResult,
    Bisect,
    Known,
    LinkIssue,
    Perform,
    StopBisection,
    Unknown,
    read_order,
)
from crcr.show.access.login import check_form, require_session
from crcr.show.access.reader import Reader, SignInMethod, get_reader
from crcr.show.api.failures import FingerprintPath
from crcr.show.api.models.commit import BISECTION_DETAIL
from crcr.show.api.models.derive import Model
from crcr.show.api.models.shared import ErrorBody
from crcr.show.api.parameters import BisectionPath
from crcr.show.http.forms import read_form, read_small
from crcr.show.http.same_site import local_path
from crcr.show.render.notices import with_notice

_OFF = "administration is off"
_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorBody, "description": "No token, or one that is not known."},
    403: {"model": ErrorBody, "description": "The token may read, not act."},
    404: {"model": ErrorBody, "description": "Administration is off, or there is no such thing."},
    "4XX": {"model": ErrorBody, "description": "The caller's to fix; `error.hint` says how."},
    503: {"model": ErrorBody, "description": "Try again after `Retry-After`."},
}


def form_routes(perform: Perform, *, on: bool) -> list[BaseRoute]:
    forms = AdminForms(perform, on)
    return [Route("/crcr/admin/{act}", forms.handle, methods=["POST"])]


@dataclass(frozen=True, slots=True)
class AdminForms:
    perform: Perform
    on: bool

    async def handle(self, request: Request) -> Response:
        act = next((action for action in ADMIN_ACTIONS if action.name == request.path_params["act"]), None)
        if not self.on or act is None:
            raise NotFound("there is no such act" if self.on else _OFF)
        reader = require_session(get_reader(request))
        admin_name = _require_admin(reader)
        fields = await read_form(request)
        check_form(reader, fields)
        order_fields = {name: value for name, value in fields.items() if name not in {"csrf", "next"}}
        count = await self.perform(read_order(act, order_fields), admin_name)
        return RedirectResponse(with_notice(local_path(fields.get("next")), act.done, count), status_code=303)


ReadBisection = Callable[[str | None, int], Awaitable[BisectionDetail]]
"""Reads a bisection that was just written, by the requested upstream and its id."""


def router(perform: Perform, read_bisection: ReadBisection, *, on: bool) -> APIRouter:
    def read_admin_name(request: Request) -> str:
        if not on:
            raise NotFound(_OFF, hint="set CRCR_ADMIN_TOKENS")
        reader = get_reader(request)
        if reader.method is not SignInMethod.TOKEN:
            raise NotSignedIn(
                "this address takes bearer tokens only",
                hint="send Authorization: Bearer with an admin's token",
            )
        return _require_admin(reader)

    class CheckCallerFirst(APIRoute):
        """Checks the caller before it reads the body, and reads the body within limits."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def handler(request: Request) -> Response:
                read_admin_name(request)
                return await handle(_with_body(request, await read_small(request)))

            return handler

    api = APIRouter(prefix="/api/v1", tags=["admin"], responses=_ERRORS, route_class=CheckCallerFirst)
    _add_known_failures(api, perform, read_admin_name)
    _add_bisections(api, perform, read_admin_name, read_bisection)
    for act in (action for action in ADMIN_ACTIONS if action.has_route):
        api.add_api_route(
            f"/admin/{act.name}",
            _endpoint(act, perform, read_admin_name),
            methods=["POST"],
            summary=act.summary,
            name=act.name,
        )
    return api


def _add_known_failures(api: APIRouter, perform: Perform, read_name: Callable[[Request], str]) -> None:
    """The orders `known` and `unknown` at the address of their group."""

    @api.post("/failures/{fingerprint}/known", summary="Link a group of failures to an issue")
    async def link_failure(
        name: Annotated[str, Depends(read_name)],
        fingerprint: FingerprintPath,
        order: Annotated[LinkIssue, Body()],
    ) -> AdminResult:
        known = Known(fingerprint=fingerprint, **order.model_dump())
        return AdminResult(act="known", count=await perform(known, name))

    @api.delete("/failures/{fingerprint}/known", summary="End the link of a group of failures to its issue")
    async def unlink_failure(
        name: Annotated[str, Depends(read_name)],
        fingerprint: FingerprintPath,
        upstream: Annotated[str | None, Query(max_length=150, description="`owner/repo`")] = None,
    ) -> AdminResult:
        order = Unknown(fingerprint=fingerprint, upstream=upstream)
        return AdminResult(act="unknown", count=await perform(order, name))


def _add_bisections(
    api: APIRouter, perform: Perform, read_name: Callable[[Request], str], read_bisection: ReadBisection
) -> None:
    @api.post(
        "/bisections",
        summary="Begin to search for the commit that broke a job",
        status_code=201,
        response_model=BISECTION_DETAIL,
    )
    async def start_bisection(
        name: Annotated[str, Depends(read_name)], order: Annotated[Bisect, Body()]
    ) -> Model:
        """`409` where the backend does not allow it, a bisection of the job runs already, or its range is not recorded."""
        bisection_id = await perform(order, name)
        return BISECTION_DETAIL.model_validate(await read_bisection(order.upstream, bisection_id))

    @api.delete("/bisections/{id}", summary="Stop a bisection", response_model=BISECTION_DETAIL)
    async def stop_bisection(
        name: Annotated[str, Depends(read_name)],
        id: BisectionPath,
        upstream: Annotated[str | None, Query(max_length=150, description="`owner/repo`")] = None,
    ) -> Model:
        """Its run in progress is not waited for. `409` where it has ended."""
        await perform(StopBisection(bisection=id, upstream=upstream), name)
        return BISECTION_DETAIL.model_validate(await read_bisection(upstream, id))


def _endpoint(act: AdminAction, perform: Perform, read_name: Callable[[Request], str]) -> Callable[..., Any]:
    kind = act.order

    async def endpoint(
        name: Annotated[str, Depends(read_name)],
        order: Annotated[kind, Body()],  # type: ignore[valid-type]
    ) -> AdminResult:
        typed_order: AdminOrder = order
        return AdminResult(act=act.name, count=await perform(typed_order, name))

    return endpoint


def _with_body(request: Request, body: bytes) -> Request:
    """Return the request with its body unread again."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)


def _require_admin(reader: Reader) -> str:
    if not reader.admin or reader.name is None:
        raise NotAdmin(hint="ask the operator for a token that may act")
    return reader.name
