"""JSON routes for joining: a downstream's set-up, an inspection on GitHub, a test dispatch, and the onboarding facts.

Reading changes nothing. Every reader may request an inspection on GitHub, within limits by repository and by address. A
test dispatch starts the CI of a repository: it needs an administrator's token or an OIDC token of that very repository, and
accepts no cookie.
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
from crcr.ports import FAILED_SIGN_IN, INSPECTION, TEST_DISPATCH, Clock, RequestLimiter, VerifyToken
from crcr.record.admin.operations import AdminOperations
from crcr.record.repositories.inspections import Inspections
from crcr.record.views.sql_views import SqlViews
from crcr.show.access.reader import get_reader
from crcr.show.access.sessions import TokenStore
from crcr.show.api.models import setup as models
from crcr.show.api.models.derive import Link, Model
from crcr.show.api.models.shared import ErrorBody
from crcr.show.api.parameters import (
    OrgPath,
    RepoPath,
    RequestParam,
    UpstreamParam,
    backend_name,
    require_utf8,
)
from crcr.show.urls.location import pick_upstream

_SETUP = "set-up"
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "An error of the caller; `error.hint` says how to fix it."},
    503: {"model": ErrorBody, "description": "Try again after `Retry-After`."},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupContext:
    """What the set-up routes need."""

    views: SqlViews
    upstreams: tuple[RepoName, ...]
    inspections: Inspections
    acts: AdminOperations
    tokens: TokenStore
    verify_token: VerifyToken
    limits: RequestLimiter
    subject_of: Callable[[Request], str]
    clock: Clock

    async def request_inspection(self, request: Request, upstream: RepoName, repo: RepoName) -> models.Asked:
        await self.limits.take(INSPECTION, self.subject_of(request))
        now = self.clock.now()
        views = self.views.for_admins() if get_reader(request).admin else self.views
        facts = await views.setup(upstream, repo, now)
        if facts.entry is None:
            raise NotFound(f"{repo} is not a backend of this upstream", hint="see /api/v1/allowlist")
        is_new = await self.inspections.ask(upstream, facts.repository, now)
        return models.Asked(repository=str(facts.repository), asked=is_new)

    async def send_test(self, request: Request, upstream: RepoName, repo: RepoName) -> models.TestSent:
        sender = await self._authorize_test(request, upstream, repo)
        await self.limits.take(TEST_DISPATCH, repo.key)
        guid = str(uuid4())
        await self.acts.dispatch_test(upstream, repo, guid, who=sender, now=self.clock.now())
        return models.TestSent(delivery=guid)

    async def _authorize_test(self, request: Request, upstream: RepoName, repo: RepoName) -> str:
        token = _read_bearer_token(request)
        subject = self.subject_of(request)
        await self.limits.check(FAILED_SIGN_IN, subject)
        holder = self.tokens.find_holder(token)
        if holder is not None and not holder.admin:
            raise NotAdmin(hint="ask the operator, or send a token of the repository itself")
        if holder is not None:
            return holder.name
        try:
            return await self._verify_repository_token(token, upstream, repo)
        except (NotAuthentic, NotRegistered):
            await self.limits.take(FAILED_SIGN_IN, subject)
            raise

    async def _verify_repository_token(
        self, unverified_token: str, upstream: RepoName, repo: RepoName
    ) -> str:
        identity = await self.verify_token(unverified_token)
        if identity.repository != repo:
            raise NotAdmin(
                f"the token is of {identity.repository}, not of {repo}",
                hint="a repository can request a test of itself only",
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
        "/setup/{org}/{repo}",
        tags=[_SETUP],
        summary="A downstream's set-up with findings; does not query GitHub",
    )
    async def setup(org: OrgPath, repo: RepoPath, api_request: RequestParam) -> models.Setup:
        facts = await api_request.views.setup(api_request.upstream, backend_name(org, repo), api_request.now)
        pointers = hint_links(
            api_request.context.site,
            facts.upstream,
            facts.repository,
            audience=api_request.context.audience,
            several=len(api_request.context.upstreams) > 1,
        )
        return describe_setup(facts, api_request.now, pointers)


def describe_setup(facts: SetupFacts, now: datetime, pointers: HintLinks) -> models.Setup:
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
    """Routes that change something; built for one app, like those of administrators."""
    api = APIRouter(
        prefix="/api/v1/setup", tags=[_SETUP], responses=_ERRORS, dependencies=[Depends(require_utf8)]
    )

    @api.post("/{org}/{repo}", status_code=202, summary="Inspect the downstream's set-up on GitHub")
    async def inspect(
        request: Request, org: OrgPath, repo: RepoPath, upstream: UpstreamParam = None
    ) -> models.Asked:
        return await context.request_inspection(
            request, pick_upstream(context.upstreams, upstream), backend_name(org, repo)
        )

    @api.post("/{org}/{repo}/test", status_code=202, summary="Send the downstream a test dispatch")
    async def test(
        request: Request, org: OrgPath, repo: RepoPath, upstream: UpstreamParam = None
    ) -> models.TestSent:
        if upstream is None and len(context.upstreams) > 1:
            raise BadRequest(
                "upstream is needed: there are several",
                hint=f"one of {', '.join(map(str, context.upstreams))}",
            )
        return await context.send_test(
            request, pick_upstream(context.upstreams, upstream), backend_name(org, repo)
        )

    return api


def _read_bearer_token(request: Request) -> str:
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

    upstreams: list[str] = Field(
        description="The upstreams whose changes are relayed; the first is the default."
    )
    audience: str = Field(description="The `aud` of a token for this relay.")
    callback_url: str = Field(description="The address that reports are sent to.")
    app_url: Link = Field(description="The page to install the App; null while it is unknown.")


def onboarding_router(
    upstreams: tuple[RepoName, ...], *, audience: str, public_url: str, app_page: Callable[[], str | None]
) -> APIRouter:
    errors: dict[int | str, dict[str, Any]] = {"4XX": _ERRORS["4XX"]}
    api = APIRouter(prefix="/api/v1", tags=[_SETUP], responses=errors, dependencies=[Depends(require_utf8)])

    @api.get("/onboarding", summary="The facts about this relay that a joining repository needs")
    async def onboarding() -> Onboarding:
        return Onboarding(
            upstreams=[str(upstream) for upstream in upstreams],
            audience=audience,
            callback_url=f"{public_url.rstrip('/')}/github/callback",
            app_url=app_page(),
        )

    return api
