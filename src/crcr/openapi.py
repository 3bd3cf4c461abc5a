"""The FastAPI app: its description in `/api/openapi.json`, and the refusal of invalid parameters."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from crcr import __version__

TYPE_NAMES: Mapping[str, str] = {
    "AdminResult": "Done",
    "CountedAs": "Counted",
    "DispatchAnswer": "Answer",
    "EffectFault": "Fault",
    "EffectFilter": "EffectsIn",
    "EndedAs": "Ended",
    "GateStatus": "Standing",
    "ResultKind": "Kind",
    "TimeOrder": "Order",
}
"""Types that have another name in `/api/openapi.json` than in the code: clients generate code from the published name."""


class _Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Describe the API once, under the published names of its types."""
        if self.openapi_schema is None:
            self.openapi_schema = _with_published_names(super().openapi())
        return self.openapi_schema


def _with_published_names(description: dict[str, Any]) -> dict[str, Any]:
    text = msgspec.json.encode(description).decode()
    for name, published in TYPE_NAMES.items():
        text = text.replace(f'"#/components/schemas/{name}"', f'"#/components/schemas/{published}"')
    renamed: dict[str, Any] = msgspec.json.decode(text)
    schemas = renamed.get("components", {}).get("schemas", {})
    for name, published in TYPE_NAMES.items():
        if name in schemas:
            schemas[published] = {**schemas.pop(name), "title": published}
    return renamed


def create_api(
    routes: list[BaseRoute],
    routers: list[APIRouter],
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
    refuse: Callable[[Request, str], Response],
) -> FastAPI:
    """`refuse` answers a request with invalid parameters, given what is wrong with them."""
    api = _Api(
        title="Cross-Repository CI Relay",
        version=__version__,
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    api.router.routes.extend(routes)
    for router in routers:
        api.include_router(router)

    async def on_invalid(request: Request, error: Exception) -> Response:
        problems = error.errors() if isinstance(error, RequestValidationError) else []
        details = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}" for problem in problems[:5]
        )
        return refuse(request, details or "the request is not valid")

    api.add_exception_handler(RequestValidationError, on_invalid)
    return api
