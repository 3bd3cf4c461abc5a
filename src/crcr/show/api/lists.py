"""JSON routes of lists (jobs, search, allowlist, deliveries, effects, audit log) and of pull requests, commits and waivers."""

from fastapi import APIRouter

from crcr.show.api.models import commit as commits
from crcr.show.api.models import logs as models
from crcr.show.api.models.core import Job
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
    @api.get("/jobs", tags=[LISTS], summary="Jobs, newest first")
    async def jobs(query: JobQueryParam, asked: RequestParam, limit: LimitParam = 50) -> models.Jobs:
        page = await asked.views.jobs(query(upstream=asked.upstream, limit=limit))
        found = [Job.model_validate(each) for each in page.jobs]
        return models.Jobs(jobs=found, next=cursors.encode(page.next))

    @api.get("/search", tags=[LISTS], summary="Pull requests, commits, authors, backends and jobs by a text")
    async def search(q: SearchParam, asked: RequestParam, cursor: CursorParam = None) -> models.Search:
        after = cursors.decode(cursor)
        found = await asked.views.search(asked.upstream, q, asked.now, after=after)
        hits = [models.Hit.model_validate(each) for each in found.hits]
        exact = models.Hit.model_validate(found.exact) if found.exact else None
        return models.Search(text=found.text, hits=hits, exact=exact, next=cursors.encode(found.next))

    @api.get("/allowlist", tags=[LISTS], summary="Who takes part, at which level; the version, its problems")
    async def allowlist(asked: RequestParam) -> models.Allowlist:
        return models.Allowlist.model_validate(await asked.views.allowlist(asked.upstream))


def _add_relay(api: APIRouter) -> None:
    @api.get("/deliveries", tags=[RELAY], summary="Webhook deliveries by time, each with its dispatches")
    async def deliveries(
        query: DeliveryQueryParam, asked: RequestParam, limit: LimitParam = 50
    ) -> models.Deliveries:
        page = await asked.views.deliveries(query(upstream=asked.upstream, limit=limit))
        found = [models.Delivery.model_validate(each) for each in page.deliveries]
        return models.Deliveries(deliveries=found, next=cursors.encode(page.next))

    @api.get("/deliveries/{guid}", tags=[RELAY], summary="One delivery with its dispatches and their jobs")
    async def delivery(guid: GuidPath, asked: RequestParam) -> models.DeliveryWithJobs:
        return models.DeliveryWithJobs.model_validate(await asked.views.delivery(asked.upstream, guid))

    @api.get("/effects", tags=[RELAY], summary="The outbox: counts by kind and state, and what was given up")
    async def effects(asked: RequestParam) -> models.Effects:
        return models.Effects.model_validate(await asked.views.effects(asked.upstream, asked.now))

    @api.get("/effects/list", tags=[RELAY], summary="Effects one by one")
    async def effect_list(
        query: EffectQueryParam, asked: RequestParam, limit: LimitParam = 50
    ) -> models.EffectList:
        page = await asked.views.effect_page(query(upstream=asked.upstream, limit=limit))
        found = [models.Effect.of(each, asked.now) for each in page.effects]
        return models.EffectList(effects=found, next=cursors.encode(page.next))

    @api.get("/health", tags=[RELAY], summary="The relay's health: green, amber or red, with the reasons")
    async def health(asked: RequestParam) -> models.RelayHealth:
        found = (await asked.desk.health.read())[asked.upstream]
        told = {"state": found.state, "reasons": found.reasons, "held": found.held}
        return models.RelayHealth.model_validate({"upstream": asked.upstream, "at": asked.now, **told})

    @api.get("/audit", tags=[RELAY], summary="Every act by hand and every alarm")
    async def audit(query: AuditQueryParam, asked: RequestParam, limit: LimitParam = 50) -> models.Audit:
        page = await asked.views.audit(query(upstream=asked.upstream, limit=limit))
        found = [models.Act.model_validate(each) for each in page.acts]
        return models.Audit(acts=found, next=cursors.encode(page.next))


def _add_commits(api: APIRouter) -> None:
    @api.get(
        "/pulls/{number}",
        tags=[COMMITS],
        summary="One pull request: gate, backends with their jobs, waivers, timeline",
    )
    async def pull(number: NumberPath, asked: RequestParam) -> commits.PullRequest:
        return commits.PullRequest.of(await asked.views.pull(asked.upstream, number, asked.now))

    @api.get(
        "/commits/{sha}",
        tags=[COMMITS],
        summary="One commit: gate, backends with their jobs, waivers, timeline",
    )
    async def commit(sha: ShaPath, asked: RequestParam, delivery: DeliveryParam = None) -> commits.Commit:
        view = await asked.views.commit(asked.upstream, sha, asked.now, delivery=delivery or None)
        return commits.Commit.of(view)

    @api.get("/waivers", tags=[COMMITS], summary="Waivers, those in force first")
    async def waivers(
        query: WaiverQueryParam, asked: RequestParam, limit: LimitParam = 50
    ) -> commits.Waivers:
        page = await asked.views.waiver_page(query(upstream=asked.upstream, limit=limit), asked.now)
        found = [commits.Waiver.model_validate(each) for each in page.waivers]
        return commits.Waivers(waivers=found, next=cursors.encode(page.next))
