"""JSON routes of lists (jobs, search, allowlist, deliveries, effects, audit log) and of pull requests, commits and waivers."""

from fastapi import APIRouter

from crcr.show.api.models import commit as commits
from crcr.show.api.models import logs as models
from crcr.show.api.models.derive import Model
from crcr.show.api.parameters import (
    AuditQueryParam,
    CursorParam,
    DeliveryParam,
    DeliveryQueryParam,
    EffectQueryParam,
    GuidPath,
    JobQueryParam,
    LimitParam,
    NumberPath,
    RequestParam,
    SearchParam,
    ShaPath,
    WaiverQueryParam,
)
from crcr.show.urls import cursors

LISTS = "lists"
RELAY = "relay"
COMMITS = "commits"


def add(api: APIRouter) -> None:
    _add_results(api)
    _add_relay(api)
    _add_commits(api)


def _add_results(api: APIRouter) -> None:
    @api.get("/jobs", tags=[LISTS], summary="Jobs, newest first", response_model=models.JOBS)
    async def jobs(query: JobQueryParam, asked: RequestParam, limit: LimitParam = 50) -> Model:
        page = await asked.views.jobs(query(upstream=asked.upstream, limit=limit))
        return models.JOBS.model_validate(page)

    @api.get(
        "/search",
        tags=[LISTS],
        summary="Pull requests, commits, authors, backends and jobs by a text",
        response_model=models.SEARCH,
    )
    async def search(q: SearchParam, asked: RequestParam, cursor: CursorParam = None) -> Model:
        after = cursors.decode(cursor)
        found = await asked.views.search(asked.upstream, q, asked.now, after=after)
        return models.SEARCH.model_validate(found)

    @api.get(
        "/allowlist",
        tags=[LISTS],
        summary="Who takes part, at which level; the version, its problems",
        response_model=models.ALLOWLIST,
    )
    async def allowlist(asked: RequestParam) -> Model:
        return models.ALLOWLIST.model_validate(await asked.views.allowlist(asked.upstream))


def _add_relay(api: APIRouter) -> None:
    @api.get(
        "/deliveries",
        tags=[RELAY],
        summary="Webhook deliveries by time, each with its dispatches",
        response_model=models.DELIVERIES,
    )
    async def deliveries(query: DeliveryQueryParam, asked: RequestParam, limit: LimitParam = 50) -> Model:
        page = await asked.views.deliveries(query(upstream=asked.upstream, limit=limit))
        return models.DELIVERIES.model_validate(page)

    @api.get(
        "/deliveries/{guid}",
        tags=[RELAY],
        summary="One delivery with its dispatches and their jobs",
        response_model=models.DELIVERY_WITH_JOBS,
    )
    async def delivery(guid: GuidPath, asked: RequestParam) -> Model:
        return models.DELIVERY_WITH_JOBS.model_validate(await asked.views.delivery(asked.upstream, guid))

    @api.get(
        "/effects",
        tags=[RELAY],
        summary="The outbox: counts by kind and state, and what was given up",
        response_model=models.EFFECTS,
    )
    async def effects(asked: RequestParam) -> Model:
        return models.EFFECTS.model_validate(await asked.views.effects(asked.upstream, asked.now))

    @api.get("/effects/list", tags=[RELAY], summary="Effects one by one", response_model=models.EFFECT_LIST)
    async def effect_list(query: EffectQueryParam, asked: RequestParam, limit: LimitParam = 50) -> Model:
        page = await asked.views.effect_page(query(upstream=asked.upstream, limit=limit))
        return models.describe_effects(page, asked.now)

    @api.get(
        "/health",
        tags=[RELAY],
        summary="The relay's health: green, amber or red, with the reasons",
        response_model=models.RELAY_HEALTH,
    )
    async def health(asked: RequestParam) -> Model:
        found = (await asked.context.health.read())[asked.upstream]
        values = {"state": found.state, "reasons": found.reasons, "held": found.held}
        return models.RELAY_HEALTH.model_validate({"upstream": asked.upstream, "at": asked.now, **values})

    @api.get("/audit", tags=[RELAY], summary="Every act by hand and every alarm", response_model=models.AUDIT)
    async def audit(query: AuditQueryParam, asked: RequestParam, limit: LimitParam = 50) -> Model:
        page = await asked.views.audit(query(upstream=asked.upstream, limit=limit))
        return models.AUDIT.model_validate(page)


def _add_commits(api: APIRouter) -> None:
    @api.get(
        "/pulls/{number}",
        tags=[COMMITS],
        summary="One pull request: gate, backends with their jobs, waivers, timeline",
        response_model=commits.PULL_REQUEST,
    )
    async def pull(number: NumberPath, asked: RequestParam) -> Model:
        return commits.describe_pull(await asked.views.pull(asked.upstream, number, asked.now))

    @api.get(
        "/commits/{sha}",
        tags=[COMMITS],
        summary="One commit: gate, backends with their jobs, waivers, timeline",
        response_model=commits.COMMIT,
    )
    async def commit(sha: ShaPath, asked: RequestParam, delivery: DeliveryParam = None) -> Model:
        view = await asked.views.commit(asked.upstream, sha, asked.now, delivery=delivery or None)
        return commits.describe_commit(view)

    @api.get(
        "/waivers", tags=[COMMITS], summary="Waivers, those in force first", response_model=commits.WAIVERS
    )
    async def waivers(query: WaiverQueryParam, asked: RequestParam, limit: LimitParam = 50) -> Model:
        page = await asked.views.waiver_page(query(upstream=asked.upstream, limit=limit), asked.now)
        return commits.WAIVERS.model_validate(page)
