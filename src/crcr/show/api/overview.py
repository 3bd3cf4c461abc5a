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
from crcr.show.api.models.derive import Model
from crcr.show.api.models.shared import HEALTH_REASON, SUMMARY, TALLY
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
    _add_summary(api)
    _add_metrics(api)
    _add_backend(api)


def _add_summary(api: APIRouter) -> None:
    @api.get(
        "/summary",
        tags=[TAG],
        summary="Health, and the backends with their numbers, page by page",
        response_model=SUMMARY,
    )
    async def summary(
        api_request: RequestParam,
        choice: TableChoice,
        *,
        kind: KindParam = ResultKind.PULLS,
        span: RangeParam = Span.FORTNIGHT,
        limit: LimitParam = ROWS_A_PAGE,
        cursor: CursorParam = None,
    ) -> Model:
        row_slice = _RowSlice.from_cursor(cursor, limit)
        view = await api_request.views.summary(
            api_request.upstream,
            span,
            api_request.now,
            kind=kind,
            pick=lambda every: row_slice.cut(tabulate(every, choice).rows),
        )
        health = await api_request.context.health.read_upstream(api_request.upstream)
        return await to_thread(_select_rows, view, choice, row_slice, health)


def _add_metrics(api: APIRouter) -> None:
    @api.get(
        "/metrics",
        tags=[TAG],
        summary="The numbers over time, for all backends together and for each",
        response_model=backends.METRICS,
    )
    async def metrics(
        api_request: RequestParam,
        *,
        kind: KindParam = ResultKind.PULLS,
        span: RangeParam = Span.FORTNIGHT,
        backend: OneBackend = None,
        limit: LimitParam = ROWS_A_PAGE,
        cursor: CursorParam = None,
    ) -> Model:
        row_slice = _RowSlice.from_cursor(cursor, limit)

        def pick(every: Sequence[BackendMetrics]) -> Sequence[BackendMetrics]:
            one = pick_backend(every, backend)
            return (one,) if one else row_slice.cut(every)

        view = await api_request.views.metrics(
            api_request.upstream, span, api_request.now, kind=kind, pick=pick
        )
        next_cursor = None if backend else row_slice.next_cursor(len(view.backends))
        answer = await to_thread(backends.METRICS.model_validate, replace(view, backends=view.rows))
        return answer.model_copy(update={"next": next_cursor})


def _add_backend(api: APIRouter) -> None:
    @api.get(
        "/badges/{org}/{repo}",
        tags=[TAG],
        summary="The content of a backend's badge: state and pass rate",
        response_model=backends.BADGE,
    )
    async def badge(
        name: Annotated[RepoName, Depends(backend_name)],
        api_request: RequestParam,
        kind: KindParam = ResultKind.PUSH,
        span: RangeParam = Span.FORTNIGHT,
    ) -> Model:
        view = await api_request.views.badge(api_request.upstream, name, kind, span, api_request.now)
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
        api_request: RequestParam,
    ) -> Model:
        key = decode_job_key(token)
        if key is None:
            raise NotFound("not the token of a job", hint="send the `token` of a job unchanged")
        return backends.JOB_DETAIL.model_validate(
            await api_request.views.job(api_request.upstream, name, key)
        )

    @api.get(
        "/backends/{org}/{repo}",
        tags=[TAG],
        summary="One backend: numbers, matrix of events and jobs, failures, levels",
        response_model=backends.BACKEND_PAGE,
    )
    async def backend(
        name: Annotated[RepoName, Depends(backend_name)],
        make_query: BackendQueryParam,
        api_request: RequestParam,
        limit: LimitParam = 50,
    ) -> Model:
        query = make_query(upstream=api_request.upstream, downstream=name, limit=limit)
        return await to_thread(
            backends.describe_backend, await api_request.views.backend(query, api_request.now)
        )


@dataclass(frozen=True, slots=True)
class _RowSlice:
    """The rows of a page. The order of the table follows the newest numbers, so a cursor is a number of rows."""

    start: int
    limit: int

    @classmethod
    def from_cursor(cls, cursor: str | None, limit: int) -> "_RowSlice":
        return cls(first_row(cursors.decode(cursor)), limit)

    def cut(self, rows: Sequence[T]) -> Sequence[T]:
        return rows[self.start : self.start + self.limit]

    def next_cursor(self, total: int) -> str | None:
        end = self.start + self.limit
        return cursors.encode((end,)) if end < total else None


def _select_rows(
    view: SummaryView, choice: TableFilters, row_slice: _RowSlice, health: RelayHealth | None
) -> Model:
    """Return a page of the rows that the HTML page shows, in its order; the tally and all else cover every backend."""
    table = tabulate(view.backends, choice)
    answer = SUMMARY.model_validate(replace(view, levels=((Level.L4, view.rows),)))
    health_model: Model = getattr(answer, "health")  # noqa: B009  a field of the derived model
    if health is not None:
        reasons = [HEALTH_REASON.model_validate(reason) for reason in health.reasons]
        health_model = health_model.model_copy(update={"state": health.state, "reasons": reasons})
    for_all = {"tally": TALLY.model_validate(view.tally), "matching": table.shown, "health": health_model}
    return answer.model_copy(update={**for_all, "next": row_slice.next_cursor(table.shown)})
