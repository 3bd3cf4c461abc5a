"""The API's answers about pull requests, commits and waivers."""

from fastapi import APIRouter

from crcr.show.api.models import commit as models
from crcr.show.api.parameters import Asking, DeliveryParam, LimitParam, NumberPath, ShaPath, WaiversAsked
from crcr.show.urls import cursors

TAG = "commits"


def add(api: APIRouter) -> None:
    @api.get(
        "/pulls/{number}",
        tags=[TAG],
        summary="One pull request: gate, backends with their jobs, waivers, timeline",
    )
    async def pull(number: NumberPath, asked: Asking) -> models.PullRequest:
        return models.PullRequest.of(await asked.views.pull(asked.upstream, number, asked.now))

    @api.get(
        "/commits/{sha}", tags=[TAG], summary="One commit: gate, backends with their jobs, waivers, timeline"
    )
    async def commit(sha: ShaPath, asked: Asking, delivery: DeliveryParam = None) -> models.Commit:
        view = await asked.views.commit(asked.upstream, sha, asked.now, delivery=delivery or None)
        return models.Commit.of(view)

    @api.get("/waivers", tags=[TAG], summary="Waivers, those in force first")
    async def waivers(query: WaiversAsked, asked: Asking, limit: LimitParam = 50) -> models.Waivers:
        page = await asked.views.waiver_page(query(upstream=asked.upstream, limit=limit), asked.now)
        found = [models.Waiver.model_validate(each) for each in page.waivers]
        return models.Waivers(waivers=found, next=cursors.encode(page.next))
