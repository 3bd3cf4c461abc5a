"""JSON routes of lists (jobs, failing jobs, search, allowlist, deliveries, effects, audit log) and of pull requests, commits and waivers."""

from fastapi import APIRouter

from crcr.decide.statistics.window import Span
from crcr.decide.views.search import Hit, HitKind, SearchQuery, Suggestions
from crcr.show.api.models import commit as commits
from crcr.show.api.models import lists as lists_models
from crcr.show.api.models import logs as models
from crcr.show.api.models.derive import Model
from crcr.show.api.parameters import (
    AuditQueryParam,
    CommitListQueryParam,
    CursorParam,
    DeliveryParam,
    DeliveryQueryParam,
    EffectQueryParam,
    FailingQueryParam,
    GuidPath,
    HitKindParam,
    JobQueryParam,
    LimitParam,
    NoticeQueryParam,
    NumberPath,
    PullListQueryParam,
    ReadRequest,
    RequestParam,
    SearchParam,
    ShaPath,
    WaiverQueryParam,
)
from crcr.show.render.safe_text import visible
from crcr.show.search.hits import hit_chips, hit_url
from crcr.show.urls import cursors
from crcr.show.urls.location import PageLocation

LISTS = "lists"
RELAY = "relay"
COMMITS = "commits"
_MOST_TITLE = 200


def add(api: APIRouter) -> None:
    _add_results(api)
    _add_search(api)
    _add_deliveries(api)
    _add_effects(api)
    _add_health_and_audit(api)
    _add_grids(api)
    _add_commits(api)


def _add_results(api: APIRouter) -> None:
    @api.get("/jobs", tags=[LISTS], summary="Jobs, newest first", response_model=models.JOBS)
    async def jobs(make_query: JobQueryParam, api_request: RequestParam, limit: LimitParam = 50) -> Model:
        page = await api_request.views.jobs(make_query(upstream=api_request.upstream, limit=limit))
        return models.JOBS.model_validate(page)

    @api.get(
        "/failing",
        tags=[LISTS],
        summary="Jobs that fail on the base branch, or at night, without a pass since",
        response_model=commits.FAILING,
    )
    async def failing(
        make_query: FailingQueryParam, api_request: RequestParam, limit: LimitParam = 50
    ) -> Model:
        query = make_query(upstream=api_request.upstream, limit=limit)
        return commits.FAILING.model_validate(await api_request.views.failing(query, api_request.now))

    @api.get(
        "/allowlist",
        tags=[LISTS],
        summary="The backends with their levels; the version and its problems",
        response_model=models.ALLOWLIST,
    )
    async def allowlist(api_request: RequestParam) -> Model:
        return models.ALLOWLIST.model_validate(await api_request.views.allowlist(api_request.upstream))


def _add_search(api: APIRouter) -> None:
    @api.get(
        "/search",
        tags=[LISTS],
        summary="Pull requests, commits, authors, backends, jobs, failed tests and failures by a text",
        response_model=lists_models.SEARCH,
    )
    async def search(
        q: SearchParam, api_request: RequestParam, kind: HitKindParam = None, cursor: CursorParam = None
    ) -> Model:
        query = SearchQuery(upstream=api_request.upstream, text=q, kind=kind, after=cursors.decode(cursor))
        return lists_models.SEARCH.model_validate(await api_request.views.search(query, api_request.now))

    @api.get(
        "/search/suggest",
        tags=[LISTS],
        summary="The likeliest results of a text that is still being typed",
        response_model=lists_models.SuggestionList,
    )
    async def suggest(q: SearchParam, api_request: RequestParam) -> Model:
        query = SearchQuery(upstream=api_request.upstream, text=q)
        suggestions = await api_request.views.suggest(query, api_request.now)
        return _describe_suggestions(api_request, suggestions)


def _describe_suggestions(api_request: ReadRequest, suggestions: Suggestions) -> lists_models.SuggestionList:
    location = PageLocation(
        api_request.context.upstreams, api_request.upstream, Span.FORTNIGHT, "/crcr/search", ""
    )
    return lists_models.SuggestionList(
        text=suggestions.text,
        suggestions=[
            lists_models.Suggestion(
                kind=hit.kind,
                title=visible(hit.title, _MOST_TITLE),
                detail=visible(_describe_hit(hit), _MOST_TITLE) or None,
                url=hit_url(location, hit) or location.url(q=suggestions.text),
                chips=[lists_models.CHIP.model_validate(chip) for chip in hit_chips(hit)],
            )
            for hit in suggestions.hits
        ],
    )


def _describe_hit(hit: Hit) -> str:
    """What tells it apart from a result with the same title."""
    names = [str(hit.backend)] if hit.kind is HitKind.JOB else [str(name) for name in hit.backends[:1]]
    more = [f"and {len(hit.backends) - 1} more"] if len(hit.backends) > 1 else []
    number = [f"#{hit.number}"] if hit.number and hit.kind is not HitKind.COMMIT else []
    return " ".join([*number, *names, *more]) or hit.detail or ""


def _add_deliveries(api: APIRouter) -> None:
    @api.get(
        "/deliveries",
        tags=[RELAY],
        summary="Webhook deliveries by time, each with its dispatches",
        response_model=models.DELIVERIES,
    )
    async def deliveries(
        make_query: DeliveryQueryParam, api_request: RequestParam, limit: LimitParam = 50
    ) -> Model:
        page = await api_request.views.deliveries(make_query(upstream=api_request.upstream, limit=limit))
        return models.DELIVERIES.model_validate(page)

    @api.get(
        "/deliveries/{guid}",
        tags=[RELAY],
        summary="One delivery with its dispatches and their jobs",
        response_model=models.DELIVERY_WITH_JOBS,
    )
    async def delivery(guid: GuidPath, api_request: RequestParam) -> Model:
        return models.DELIVERY_WITH_JOBS.model_validate(
            await api_request.views.delivery(api_request.upstream, guid)
        )


def _add_effects(api: APIRouter) -> None:
    @api.get(
        "/effects",
        tags=[RELAY],
        summary="The outbox: counts by kind and state, and undelivered effects",
        response_model=models.EFFECTS,
    )
    async def effects(api_request: RequestParam) -> Model:
        return models.EFFECTS.model_validate(
            await api_request.views.effects(api_request.upstream, api_request.now)
        )

    @api.get("/effects/list", tags=[RELAY], summary="Effects one by one", response_model=models.EFFECT_LIST)
    async def effect_list(
        make_query: EffectQueryParam, api_request: RequestParam, limit: LimitParam = 50
    ) -> Model:
        page = await api_request.views.effect_page(make_query(upstream=api_request.upstream, limit=limit))
        return models.describe_effects(page, api_request.now)


def _add_health_and_audit(api: APIRouter) -> None:
    @api.get(
        "/health",
        tags=[RELAY],
        summary="The relay's health: green, amber or red, with the reasons",
        response_model=models.RELAY_HEALTH,
    )
    async def health(api_request: RequestParam) -> Model:
        state = (await api_request.context.health.read())[api_request.upstream]
        values = {"state": state.state, "reasons": state.reasons, "held": state.held}
        return models.RELAY_HEALTH.model_validate(
            {"upstream": api_request.upstream, "at": api_request.now, **values}
        )

    @api.get(
        "/notices",
        tags=[RELAY],
        summary="Notices: what changed, and who was told",
        response_model=models.NOTICES,
    )
    async def notices(
        make_query: NoticeQueryParam, api_request: RequestParam, limit: LimitParam = 50
    ) -> Model:
        page = await api_request.views.notices(make_query(upstream=api_request.upstream, limit=limit))
        return models.NOTICES.model_validate(page)

    @api.get("/audit", tags=[RELAY], summary="Manual actions and alarms", response_model=models.AUDIT)
    async def audit(make_query: AuditQueryParam, api_request: RequestParam, limit: LimitParam = 50) -> Model:
        page = await api_request.views.audit(make_query(upstream=api_request.upstream, limit=limit))
        return models.AUDIT.model_validate(page)


def _add_grids(api: APIRouter) -> None:
    @api.get(
        "/pulls",
        tags=[COMMITS],
        summary="Pull requests with the state of each backend",
        response_model=lists_models.PULL_LIST,
    )
    async def pulls(
        make_query: PullListQueryParam, api_request: RequestParam, limit: LimitParam = 50
    ) -> Model:
        query = make_query(upstream=api_request.upstream, limit=limit)
        return lists_models.PULL_LIST.model_validate(await api_request.views.pulls(query))

    @api.get(
        "/commits",
        tags=[COMMITS],
        summary="A branch's commits, newest first, with the state of each backend",
        response_model=lists_models.COMMIT_LIST,
    )
    async def branch_commits(
        make_query: CommitListQueryParam, api_request: RequestParam, limit: LimitParam = 50
    ) -> Model:
        query = make_query(upstream=api_request.upstream, limit=limit)
        return lists_models.COMMIT_LIST.model_validate(await api_request.views.commits(query))


def _add_commits(api: APIRouter) -> None:
    @api.get(
        "/pulls/{number}",
        tags=[COMMITS],
        summary="One pull request: gate, backends with their jobs, waivers, timeline",
        response_model=commits.PULL_REQUEST,
    )
    async def pull(number: NumberPath, api_request: RequestParam) -> Model:
        return commits.describe_pull(
            await api_request.views.pull(api_request.upstream, number, api_request.now)
        )

    @api.get(
        "/commits/{sha}",
        tags=[COMMITS],
        summary="One commit: gate, backends with their jobs, waivers, timeline",
        response_model=commits.COMMIT,
    )
    async def commit(sha: ShaPath, api_request: RequestParam, delivery: DeliveryParam = None) -> Model:
        view = await api_request.views.commit(
            api_request.upstream, sha, api_request.now, delivery=delivery or None
        )
        return commits.describe_commit(view)

    @api.get(
        "/waivers", tags=[COMMITS], summary="Waivers, those in force first", response_model=commits.WAIVERS
    )
    async def waivers(
        make_query: WaiverQueryParam, api_request: RequestParam, limit: LimitParam = 50
    ) -> Model:
        page = await api_request.views.waiver_page(
            make_query(upstream=api_request.upstream, limit=limit), api_request.now
        )
        return commits.WAIVERS.model_validate(page)
