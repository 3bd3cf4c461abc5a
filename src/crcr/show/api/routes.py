"""The read API: the same views as the pages, as JSON and CSV, with cursors for long lists.

Errors are raised and formatted by the app. Nothing here writes, and no raw webhook body is ever returned.
"""

from copy import copy
from functools import cache
from typing import Any

from fastapi import APIRouter, Depends, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from crcr.decide.model import RepoName
from crcr.ports import Clock
from crcr.record.views.sql_views import SqlViews
from crcr.show.api import bisections, failures, lists, overview, refusals_and_sandbox, setup
from crcr.show.api.models.shared import ErrorBody
from crcr.show.api.parameters import CONTEXT, ApiContext, require_utf8
from crcr.show.compatibility import routes as compatibility
from crcr.show.csv import routes as csv_routes
from crcr.show.levels import routes as levels
from crcr.show.live.shared_health import SharedHealth

_ERRORS: dict[int | str, dict[str, Any]] = {
    # A range, which also keeps FastAPI from documenting its own 422.
    "4XX": {"model": ErrorBody, "description": "An error of the caller; `error.hint` says how to fix it."},
    503: {
        "model": ErrorBody,
        "description": "Unavailable; send the same request again later.",
        "headers": {"Retry-After": {"description": "seconds to wait", "schema": {"type": "integer"}}},
    },
}
_UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "Unchanged since the `ETag` that was sent as `If-None-Match`."}
}


class ReadRoute(APIRoute):
    """A route that passes the context of its app to its requests."""

    context: ApiContext

    def with_context(self, context: ApiContext) -> "ReadRoute":
        route = copy(self)
        route.context = context
        return route

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[CONTEXT] = self.context
        await super().handle(scope, receive, send)


def routes(
    views: SqlViews,
    *,
    upstreams: tuple[RepoName, ...],
    clock: Clock,
    public_url: str = "http://127.0.0.1:8000",
    audience: str = "crcr",
    health: SharedHealth | None = None,
) -> list[BaseRoute]:
    shared = health or SharedHealth(views, clock)
    context = ApiContext(views, upstreams, clock, shared, public_url.rstrip("/"), audience)
    return [route.with_context(context) for route in _build_routes()]


@cache
def _build_routes() -> tuple[ReadRoute, ...]:
    """Build all routes once, without a context: analysing their parameters and models is the slowest part of a start."""
    shared: dict[str, Any] = {"prefix": "/api/v1", "route_class": ReadRoute}
    csv = APIRouter(
        **shared,
        tags=["csv"],
        default_response_class=Response,
        responses=_ERRORS,
        dependencies=[Depends(require_utf8)],
    )
    csv_routes.add(csv)
    refusals_and_sandbox.add_csv(csv)
    failures.add_csv(csv)
    bisections.add_csv(csv)
    levels.add_csv(csv)
    compatibility.add_csv(csv)
    json = APIRouter(
        **shared, responses={**_ERRORS, **_UNCHANGED}, dependencies=[Depends(require_utf8), Depends(_headers)]
    )
    overview.add(json)
    lists.add(json)
    setup.add(json)
    refusals_and_sandbox.add(json)
    failures.add(json)
    bisections.add(json)
    levels.add(json)
    compatibility.add(json)
    # CSV first: otherwise `name.csv` would match the JSON route of a name.
    return tuple(route for route in (*csv.routes, *json.routes) if isinstance(route, ReadRoute))


def _headers(response: Response) -> None:
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-cache"
