"""JSON routes with numbers: all backends, one backend, one job, the metrics, a badge.

Large responses are built in a thread, so that they do not block the event loop.
"""

from asyncio import to_thread
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends

from crcr.decide.health.relay import Health as RelayHealth
from crcr.decide.model import Level, RepoName
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.backend import BackendMetrics
from crcr.decide.views.overview import Summary as SummaryView
from crcr.errors import NotFound
from crcr.show.api.models import backend as backends
from crcr.show.api.models.core import HEALTH_REASON, SUMMARY, TALLY
from crcr.show.api.models.derive import Model
from crcr.show.api.parameters import (
    BackendQueryParam,
    CursorParam,
    KindParam,
    LimitParam,
    OneBackend,
    RangeParam,
    RequestParam,
    TableChoice,
    TokenPath,
    backend_name,
)
from crcr.show.csv.writer import first_row
from crcr.show.urls import cursors
from crcr.show.urls.job_tokens import decode_job_key
from crcr.show.urls.sorting import ROWS_A_PAGE, TableFilters, pick_backend, tabulate

T = TypeVar("T")
TAG = "numbers"


def add(api: APIRouter) -> None:
    _add_all(api)
    _add_one(api)


def _add_all(api: APIRouter) -> None:
    """Of all backends together."""

    @api.get(
        "/summary",
        tags=[TAG],
        summary="Health, and the backends with their numbers, page by page",
        response_model=SUMMARY,
    )
    async def summary(
        asked: RequestParam,
        choice: TableChoice,
        *,
        kind: KindParam = ResultKind.PULLS,
        span: RangeParam = Span.FORTNIGHT,
        limit: LimitParam = ROWS_A_PAGE,
        cursor: CursorParam = None,
    ) -> Model:
        place = _RowSlice.of(cursor, limit)
        view = await asked.views.summary(
            asked.upstream,
            span,
            asked.now,
            kind=kind,
            pick=lambda every: place.cut(tabulate(every, choice).rows),
        )
        health = await asked.context.health.of(asked.upstream)
        return await to_thread(_narrowed, view, choice, place, health)

    @api.get(
        "/metrics",
        tags=[TAG],
        summary="The numbers over time: of all backends together, and of each",
        response_model=backends.METRICS,
    )
    async def metrics(
        asked: RequestParam,
        *,
        kind: KindParam = ResultKind.PULLS,
        span: RangeParam = Span.FORTNIGHT,
        backend: OneBackend = None,
        limit: LimitParam = ROWS_A_PAGE,
        cursor: CursorParam = None,
    ) -> Model:
        place = _RowSlice.of(cursor, limit)

        def pick(every: Sequence[BackendMetrics]) -> Sequence[BackendMetrics]:
            one = pick_backend(every, backend)
            return (one,) if one else place.cut(every)

        view = await asked.views.metrics(asked.upstream, span, asked.now, kind=kind, pick=pick)
        following = None if backend else place.following(len(view.backends))
        answer = await to_thread(backends.METRICS.model_validate, replace(view, backends=view.rows))
        return answer.model_copy(update={"next": following})


def _add_one(api: APIRouter) -> None:
    """Of one backend."""

    @api.get(
        "/badges/{org}/{repo}",
        tags=[TAG],
        summary="What a backend's badge says: state and pass rate",
        response_model=backends.BADGE,
    )
    async def badge(
        name: Annotated[RepoName, Depends(backend_name)],
        asked: RequestParam,
        kind: KindParam = ResultKind.PUSH,
        span: RangeParam = Span.FORTNIGHT,
    ) -> Model:
        view = await asked.views.badge(asked.upstream, name, kind, span, asked.now)
        return backends.BADGE.model_validate(view)

    @api.get(
        "/backends/{org}/{repo}/jobs/{token}",
        tags=[TAG],
        summary="One job: all attempts, failed tests, times, links",
        response_model=backends.JOB_DETAIL,
    )
    async def job(
        token: TokenPath,
        name: Annotated[RepoName, Depends(backend_name)],
        asked: RequestParam,
    ) -> Model:
        key = decode_job_key(token)
        if key is None:
            raise NotFound("that is not the token of a job", hint="pass on `token` of a job, unchanged")
        return backends.JOB_DETAIL.model_validate(await asked.views.job(asked.upstream, name, key))

    @api.get(
        "/backends/{org}/{repo}",
        tags=[TAG],
        summary="One backend: numbers, matrix of events and jobs, failures, levels",
        response_model=backends.BACKEND_PAGE,
    )
    async def backend(
        name: Annotated[RepoName, Depends(backend_name)],
        query: BackendQueryParam,
        asked: RequestParam,
        limit: LimitParam = 50,
    ) -> Model:
        wanted = query(upstream=asked.upstream, downstream=name, limit=limit)
        return await to_thread(backends.describe_backend, await asked.views.backend(wanted, asked.now))


@dataclass(frozen=True, slots=True)
class _RowSlice:
    """Which part of a table's rows a page has. Their order follows the newest numbers, so pages are counted by rows."""

    start: int
    limit: int

    @classmethod
    def of(cls, cursor: str | None, limit: int) -> "_RowSlice":
        return cls(first_row(cursors.decode(cursor)), limit)

    def cut(self, rows: Sequence[T]) -> Sequence[T]:
        return rows[self.start : self.start + self.limit]

    def following(self, total: int) -> str | None:
        end = self.start + self.limit
        return cursors.encode((end,)) if end < total else None


def _narrowed(view: SummaryView, choice: TableFilters, place: _RowSlice, health: RelayHealth | None) -> Model:
    """Return a page of the rows that the HTML page shows, in its order; the tally and all else cover every backend."""
    table = tabulate(view.backends, choice)
    answer = SUMMARY.model_validate(replace(view, levels=((Level.L4, view.rows),)))
    shown: Model = getattr(answer, "health")  # noqa: B009  a field of the derived model
    if health is not None:
        reasons = [HEALTH_REASON.model_validate(reason) for reason in health.reasons]
        shown = shown.model_copy(update={"state": health.state, "reasons": reasons})
    whole = {"tally": TALLY.model_validate(view.tally), "matching": table.shown, "health": shown}
    return answer.model_copy(update={**whole, "next": place.following(table.shown)})
