"""The API's answers with numbers in them: all backends, one backend, one job, the metrics, a badge.

The large ones are put together in a thread of their own, so that nobody else waits for them.
"""

from asyncio import to_thread
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends

from crcr.decide.health import Health as RelayHealth
from crcr.decide.model import RepoName
from crcr.decide.views import Summary as SummaryView
from crcr.decide.window import Kind, Span
from crcr.errors import NotFound
from crcr.show import api_models_backend as backends
from crcr.show.api_asked import (
    Asking,
    BackendAsked,
    KindParam,
    LimitParam,
    OneBackend,
    RangeParam,
    TableChoice,
    TokenPath,
    backend_name,
)
from crcr.show.api_models import HealthReason, Summary
from crcr.show.job_links import key_of
from crcr.show.sorting import Choice, pick_backend, tabulate

TAG = "numbers"


def add(api: APIRouter) -> None:
    _add_all(api)
    _add_one(api)


def _add_all(api: APIRouter) -> None:
    """Of all backends together."""

    @api.get("/summary", tags=[TAG], summary="Health, and all backends with their numbers")
    async def summary(
        asked: Asking,
        choice: TableChoice,
        kind: KindParam = Kind.PULLS,
        span: RangeParam = Span.FORTNIGHT,
    ) -> Summary:
        view = await asked.views.summary(asked.upstream, span, asked.now, kind=kind)
        health = await asked.desk.health.of(asked.upstream)
        return await to_thread(_narrowed, view, choice, health)

    @api.get("/metrics", tags=[TAG], summary="The numbers over time: of all backends together, and of each")
    async def metrics(
        asked: Asking,
        kind: KindParam = Kind.PULLS,
        span: RangeParam = Span.FORTNIGHT,
        backend: OneBackend = None,
    ) -> backends.Metrics:
        view = await asked.views.metrics(asked.upstream, span, asked.now, kind=kind)
        if one := pick_backend(view, backend):
            view = replace(view, backends=(one,))
        return await to_thread(backends.Metrics.model_validate, view)


def _add_one(api: APIRouter) -> None:
    """Of one backend."""

    @api.get("/badges/{org}/{repo}", tags=[TAG], summary="What a backend's badge says: state and pass rate")
    async def badge(
        name: Annotated[RepoName, Depends(backend_name)],
        asked: Asking,
        kind: KindParam = Kind.PUSH,
        span: RangeParam = Span.FORTNIGHT,
    ) -> backends.Badge:
        view = await asked.views.badge(asked.upstream, name, kind, span, asked.now)
        return backends.Badge.model_validate(view)

    @api.get(
        "/backends/{org}/{repo}/jobs/{token}",
        tags=[TAG],
        summary="One job: all attempts, failed tests, times, links",
    )
    async def job(
        token: TokenPath,
        name: Annotated[RepoName, Depends(backend_name)],
        asked: Asking,
    ) -> backends.JobDetail:
        key = key_of(token)
        if key is None:
            raise NotFound("that is not the token of a job", hint="pass on `token` of a job, unchanged")
        return backends.JobDetail.model_validate(await asked.views.job(asked.upstream, name, key))

    @api.get(
        "/backends/{org}/{repo}",
        tags=[TAG],
        summary="One backend: numbers, matrix of events and jobs, failures, levels",
    )
    async def backend(
        name: Annotated[RepoName, Depends(backend_name)],
        query: BackendAsked,
        asked: Asking,
        limit: LimitParam = 50,
    ) -> backends.BackendPage:
        wanted = query(upstream=asked.upstream, downstream=name, limit=limit)
        return await to_thread(backends.BackendPage.of, await asked.views.backend(wanted, asked.now))


def _narrowed(view: SummaryView, choice: Choice, health: RelayHealth | None) -> Summary:
    """The rows that the page shows, in its order; all else, the tally too, is of everybody."""
    answer = Summary.model_validate(view)
    by_name = {each.name: each for each in answer.backends}
    rows = tabulate(view.backends, choice).rows
    told = answer.health
    if health is not None:
        reasons = [HealthReason.model_validate(each) for each in health.reasons]
        told = told.model_copy(update={"state": health.state, "reasons": reasons})
    shown = [by_name[each.name.full_name] for each in rows]
    return answer.model_copy(update={"backends": shown, "health": told})
