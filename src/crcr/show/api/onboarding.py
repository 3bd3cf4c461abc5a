"""`/api/v1/onboarding`: what who joins must know of this relay, so that `crcr init` need not ask for it.

Nothing of it is a secret: an audience only says whom a token is meant for.
"""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends
from pydantic import ConfigDict, Field

from crcr.decide.model import RepoName
from crcr.show.api.models.core import ErrorBody, Link, Model
from crcr.show.api.parameters import readable

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "The caller's to fix; `error.hint` says how."},
}
_EXAMPLE: dict[str, Any] = {
    "upstreams": ["pytorch/pytorch"],
    "audience": "crcr",
    "callback_url": "https://relay.example.org/github/callback",
    "app_url": "https://github.com/apps/crcr",
}


class Onboarding(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    upstreams: list[str] = Field(description="Whose changes are relayed; the first is the default.")
    audience: str = Field(description="The `aud` of a token that is meant for this relay.")
    callback_url: str = Field(description="Where reports go.")
    app_url: Link = Field(description="Where the App is installed; null while GitHub has not said.")


def router(
    upstreams: tuple[RepoName, ...], *, audience: str, public_url: str, app_page: Callable[[], str | None]
) -> APIRouter:
    api = APIRouter(prefix="/api/v1", tags=["set-up"], responses=_ERRORS, dependencies=[Depends(readable)])

    @api.get("/onboarding", summary="What a repository that joins must know of this relay")
    async def onboarding() -> Onboarding:
        return Onboarding(
            upstreams=[str(each) for each in upstreams],
            audience=audience,
            callback_url=f"{public_url.rstrip('/')}/github/callback",
            app_url=app_page(),
        )

    return api
