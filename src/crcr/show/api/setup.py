"""JSON routes for joining: a downstream's set-up, a new look at GitHub, a test dispatch, and the onboarding facts.

Reading changes nothing. Asking GitHub is everybody's who may read, and limited by repository and by address. A test
makes another's CI run: it takes an administrator's token or one that proves to be of that very repository, and no cookie.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Depends
from pydantic import ConfigDict, Field
from starlette.requests import Request

from crcr.decide.github.repository_setup import SetupFacts
from crcr.decide.model import RepoName
from crcr.errors import BadRequest, NotAdmin, NotAuthentic, NotFound, NotRegistered, NotSignedIn
from crcr.join.findings.examine import examine
from crcr.join.help_links import HintLinks, hint_links
from crcr.ports import Clock, RequestLimiter, VerifyToken
from crcr.record.admin.operations import AdminOperations
from crcr.record.repositories.inspections import Inspections
from crcr.record.views.sql_views import SqlViews
from crcr.show.access.middleware import FAILED_SIGN_IN
from crcr.show.access.reader import reader_of
from crcr.show.access.sessions import TokenStore
from crcr.show.api.models import setup as models
from crcr.show.api.models.core import ErrorBody
from crcr.show.api.models.derive import Link, Model
from crcr.show.api.parameters import (
    OrgPath,
    RepoPath,
    RequestParam,
    UpstreamParam,
    backend_name,
    require_utf8,
)
from crcr.show.urls.location import pick_upstream

INSPECTION = "inspection"
TEST_DISPATCH = "test_dispatch"
_SETUP = "set-up"
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "The caller's to fix; `error.hint` says how."},
    503: {"model": ErrorBody, "description": "Try again after `Retry-After`."},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupContext:
    """Who answers what is asked here."""

    views: SqlViews
    upstreams: tuple[RepoName, ...]
    inspections: Inspections
    acts: AdminOperations
    tokens: TokenStore
    verify_token: VerifyToken
    limits: RequestLimiter
    subject_of: Callable[[Request], str]
    clock: Clock

    async def ask(self, request: Request, upstream: RepoName, repo: RepoName) -> models.Asked:
        await self.limits.take(INSPECTION, self.subject_of(request))
        now = self.clock.now()
        views = self.views.for_admins() if reader_of(request).admin else self.views
        facts = await views.setup(upstream, repo, now)
        if facts.entry is None:
            raise NotFound(f"{repo} is not a backend of this upstream", hint="see /api/v1/allowlist")
        asked = await self.inspections.ask(upstream, facts.repository, now)
        return models.Asked(repository=str(facts.repository), asked=asked)

    async def test(self, request: Request, upstream: RepoName, repo: RepoName) -> models.TestSent:
        who = await self._who(request, upstream, repo)
        await self.limits.take(TEST_DISPATCH, repo.key)
        guid = str(uuid4())
        await self.acts.dispatch_test(upstream, repo, guid, who=who, now=self.clock.now())
        return models.TestSent(delivery=guid)

    async def _who(self, request: Request, upstream: RepoName, repo: RepoName) -> str:
        token = _bearer(request)
        subject = self.subject_of(request)
        await self.limits.check(FAILED_SIGN_IN, subject)
        holder = self.tokens.holder(token)
        if holder is not None and not holder.admin:
            raise NotAdmin(hint="ask the operator, or send a token of the repository itself")
        if holder is not None:
            return holder.name
        try:
            return await self._proved(token, upstream, repo)
        except (NotAuthentic, NotRegistered):
            await self.limits.take(FAILED_SIGN_IN, subject)
            raise

    async def _proved(self, unverified_token: str, upstream: RepoName, repo: RepoName) -> str:
        identity = await self.verify_token(unverified_token)
        if identity.repository != repo:
            raise NotAdmin(
                f"the token is of {identity.repository}, not of {repo}",
                hint="a repository may have only itself tested",
            )
        facts: SetupFacts = await self.views.for_admins().setup(upstream, repo, self.clock.now())
        if None not in (facts.repository_id, identity.repository_id) and (
            facts.repository_id != identity.repository_id
        ):
            raise NotAdmin(
                f"{repo} was admitted under another repository id", hint="ask the operator to rebind it"
            )
        return f"{identity.repository} (its own token)"


def add(api: APIRouter) -> None:
    @api.get(
        "/setup/{org}/{repo}", tags=[_SETUP], summary="A downstream's set-up, examined; nothing is asked anew"
    )
    async def setup(org: OrgPath, repo: RepoPath, asked: RequestParam) -> models.Setup:
        facts = await asked.views.setup(asked.upstream, backend_name(org, repo), asked.now)
        pointers = hint_links(
            asked.context.site,
            facts.upstream,
            facts.repository,
            audience=asked.context.audience,
            several=len(asked.context.upstreams) > 1,
        )
        return as_model(facts, asked.now, pointers)


def as_model(facts: SetupFacts, now: datetime, pointers: HintLinks) -> models.Setup:
    installation = facts.inspection.installation if facts.inspection else None
    return models.Setup(
        repository=facts.repository.full_name,
        upstream=facts.upstream.full_name,
        listed=facts.entry is not None,
        level=facts.entry.level if facts.entry else None,  # type: ignore[arg-type]  # read as its name
        inspected_at=facts.inspected_at,
        being_inspected=facts.is_being_inspected,
        reads_actions=installation.reads_actions if installation else None,
        findings=[models.Finding.model_validate(finding) for finding in examine(facts, now, pointers)],
    )


def router(context: SetupContext) -> APIRouter:
    """What changes something; made for one app, as the acts of administrators are."""
    api = APIRouter(
        prefix="/api/v1/setup", tags=[_SETUP], responses=_ERRORS, dependencies=[Depends(require_utf8)]
    )

    @api.post("/{org}/{repo}", status_code=202, summary="Have GitHub asked how the downstream is set up")
    async def inspect(
        request: Request, org: OrgPath, repo: RepoPath, upstream: UpstreamParam = None
    ) -> models.Asked:
        return await context.ask(request, pick_upstream(context.upstreams, upstream), backend_name(org, repo))

    @api.post("/{org}/{repo}/test", status_code=202, summary="Send the downstream a test dispatch")
    async def test(
        request: Request, org: OrgPath, repo: RepoPath, upstream: UpstreamParam = None
    ) -> models.TestSent:
        if upstream is None and len(context.upstreams) > 1:
            raise BadRequest(
                "upstream is needed: there are several",
                hint=f"one of {', '.join(map(str, context.upstreams))}",
            )
        return await context.test(
            request, pick_upstream(context.upstreams, upstream), backend_name(org, repo)
        )

    return api


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotSignedIn(
            "a test needs an administrator's token, or an OIDC token of the repository itself",
            hint="send Authorization: Bearer with one of them",
        )
    return token.strip()


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


def onboarding_router(
    upstreams: tuple[RepoName, ...], *, audience: str, public_url: str, app_page: Callable[[], str | None]
) -> APIRouter:
    errors: dict[int | str, dict[str, Any]] = {"4XX": _ERRORS["4XX"]}
    api = APIRouter(prefix="/api/v1", tags=[_SETUP], responses=errors, dependencies=[Depends(require_utf8)])

    @api.get("/onboarding", summary="What a repository that joins must know of this relay")
    async def onboarding() -> Onboarding:
        return Onboarding(
            upstreams=[str(upstream) for upstream in upstreams],
            audience=audience,
            callback_url=f"{public_url.rstrip('/')}/github/callback",
            app_url=app_page(),
        )

    return api
