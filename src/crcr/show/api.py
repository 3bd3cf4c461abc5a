"""The JSON API for readers: the same views as the pages, with pages of lists by cursor.

Failures are raised and given their one shape by the app. Nothing here writes, and no raw body ever leaves.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response

from crcr.decide.model import JobState, RepoName, is_repo_name
from crcr.decide.views import JobQuery, Span
from crcr.errors import BadRequest, NotFound
from crcr.ports import Clock
from crcr.show import api_models as models
from crcr.show import api_models_commit as commits
from crcr.show import cursors
from crcr.show.here import pick_upstream
from crcr.show.port import Views

_ERRORS: dict[int | str, dict[str, Any]] = {
    # A range, because it also keeps FastAPI from documenting its own shape of 422.
    "4XX": {"model": models.ErrorBody, "description": "The caller's to fix; `error.hint` says how."},
    503: {"model": models.ErrorBody, "description": "Try again after `Retry-After`."},
}

UpstreamParam = Annotated[
    str | None, Query(description="`owner/repo`; default the first upstream", max_length=150)
]
RangeParam = Annotated[Span, Query(alias="range", description="how far back the numbers go")]
LimitParam = Annotated[int, Query(ge=1, le=200)]
CursorParam = Annotated[str | None, Query(description="`next` of the page before", max_length=16_384)]
NumberParam = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="pull request")]
GuidPath = Annotated[str, Path(max_length=200)]
NumberPath = Annotated[int, Path(ge=1, le=2**31 - 1)]
ShaPath = Annotated[str, Path(pattern="^([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$", description="all of it")]
NamePath = Annotated[str, Path(max_length=110)]


def router(views: Views, *, upstreams: tuple[RepoName, ...], clock: Clock) -> APIRouter:
    api = APIRouter(prefix="/api/v1", tags=["read"], responses=_ERRORS, dependencies=[Depends(_headers)])

    def chosen(upstream: UpstreamParam = None) -> RepoName:
        return pick_upstream(upstreams, upstream)

    _add_numbers(api, views, clock, chosen)
    _add_lists(api, views, chosen)
    _add_commits(api, views, clock, chosen)
    _add_relay(api, views, clock, chosen)
    return api


def _add_numbers(api: APIRouter, views: Views, clock: Clock, chosen: Any) -> None:
    @api.get("/summary", summary="Health, and all backends with their numbers")
    async def summary(
        upstream: Annotated[RepoName, Depends(chosen)], span: RangeParam = Span.FORTNIGHT
    ) -> models.Summary:
        return models.Summary.model_validate(await views.summary(upstream, span, clock.now()))

    @api.get("/backends/{org}/{repo}", summary="One backend: numbers, newest dispatches and failures")
    async def backend(
        org: NamePath,
        repo: NamePath,
        upstream: Annotated[RepoName, Depends(chosen)],
        span: RangeParam = Span.FORTNIGHT,
    ) -> models.BackendPage:
        name = _repository(f"{org}/{repo}", NotFound)
        return models.BackendPage.of(await views.backend(upstream, name, span, clock.now()))


def _add_lists(api: APIRouter, views: Views, chosen: Any) -> None:
    @api.get("/jobs", summary="Jobs, newest first")
    async def jobs(
        *,
        upstream: Annotated[RepoName, Depends(chosen)],
        downstream: Annotated[str | None, Query(description="`owner/repo`", max_length=150)] = None,
        delivery: Annotated[str | None, Query(max_length=200)] = None,
        number: NumberParam = None,
        state: Annotated[JobState | None, Query()] = None,
        cursor: CursorParam = None,
        limit: LimitParam = 50,
    ) -> models.Jobs:
        query = JobQuery(
            upstream=upstream,
            downstream=_repository(downstream, BadRequest) if downstream else None,
            delivery=delivery,
            number=number,
            state=state,
            after=cursors.decode(cursor),
            limit=limit,
        )
        page = await views.jobs(query)
        return models.Jobs(
            jobs=[models.Job.model_validate(each) for each in page.jobs], next=cursors.encode(page.next)
        )

    @api.get("/deliveries", summary="Webhook deliveries, newest first, each with its dispatches")
    async def deliveries(
        upstream: Annotated[RepoName, Depends(chosen)], cursor: CursorParam = None, limit: LimitParam = 50
    ) -> models.Deliveries:
        page = await views.deliveries(upstream, after=cursors.decode(cursor), limit=limit)
        found = [models.Delivery.model_validate(each) for each in page.deliveries]
        return models.Deliveries(deliveries=found, next=cursors.encode(page.next))

    @api.get("/deliveries/{guid}", summary="One delivery with its dispatches and their jobs")
    async def delivery(
        guid: GuidPath, upstream: Annotated[RepoName, Depends(chosen)]
    ) -> models.DeliveryWithJobs:
        return models.DeliveryWithJobs.model_validate(await views.delivery(upstream, guid))


def _add_commits(api: APIRouter, views: Views, clock: Clock, chosen: Any) -> None:
    @api.get("/pulls/{number}", summary="One pull request: gate, backends with their jobs, waivers, timeline")
    async def pull(number: NumberPath, upstream: Annotated[RepoName, Depends(chosen)]) -> commits.PullRequest:
        return commits.PullRequest.model_validate(await views.pull(upstream, number, clock.now()))

    @api.get("/commits/{sha}", summary="One commit: gate, backends with their jobs, waivers, timeline")
    async def commit(
        sha: ShaPath,
        upstream: Annotated[RepoName, Depends(chosen)],
        delivery: Annotated[
            str | None, Query(max_length=200, description="finds a commit that is not new")
        ] = None,
    ) -> commits.Commit:
        view = await views.commit(upstream, sha.lower(), clock.now(), delivery=delivery)
        return commits.Commit.model_validate(view)

    @api.get("/waivers", summary="Waivers, newest first, in force and past")
    async def waivers(
        upstream: Annotated[RepoName, Depends(chosen)], cursor: CursorParam = None, limit: LimitParam = 50
    ) -> commits.Waivers:
        page = await views.waivers(upstream, clock.now(), after=cursors.decode(cursor), limit=limit)
        found = [commits.Waiver.model_validate(each) for each in page.waivers]
        return commits.Waivers(waivers=found, next=cursors.encode(page.next))


def _add_relay(api: APIRouter, views: Views, clock: Clock, chosen: Any) -> None:
    @api.get("/effects", summary="The outbox: counts by kind and state, and what was given up")
    async def effects(upstream: Annotated[RepoName, Depends(chosen)]) -> models.Effects:
        return models.Effects.model_validate(await views.effects(upstream, clock.now()))

    @api.get("/allowlist", summary="Who takes part, at which level; the version and its problems")
    async def allowlist(upstream: Annotated[RepoName, Depends(chosen)]) -> models.Allowlist:
        return models.Allowlist.model_validate(await views.allowlist(upstream))


def _headers(response: Response) -> None:
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-cache"


def _repository(name: str, failure: type[BadRequest | NotFound]) -> RepoName:
    if not is_repo_name(name):
        raise failure(f"{name[:150]!r} is not owner/name")
    return RepoName(name)
