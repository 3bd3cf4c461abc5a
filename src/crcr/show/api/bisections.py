"""JSON and CSV routes of bisections; administrators begin and stop them by `access.admin_routes`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from crcr.decide.views.bisections import BisectionRun, BisectionView
from crcr.show.api import parameters as params
from crcr.show.api.models import commit as models
from crcr.show.api.models.derive import Model
from crcr.show.csv.writer import CsvExport, CsvRow, CsvTable, CursorKey, describe_response

TAG = "commits"
_FIELDS = (
    *("id", "backend", "workflow", "job", "branch", "state", "outcome", "reason", "good", "bad", "commits"),
    *("left", "left_good", "left_bad", "runs", "most_runs", "flake_rate", "who", "created_at", "ends_at"),
    *("finished_at", "sentence"),
)
_CULPRIT = ("sha", "number", "title")
_fields: Callable[[BisectionView], CsvRow] = attrgetter(*_FIELDS)


def _rows(bisection: BisectionView) -> Iterator[CsvRow]:
    culprit = bisection.culprit
    yield (*_fields(bisection), *(attrgetter(*_CULPRIT)(culprit) if culprit else (None,) * len(_CULPRIT)))


BISECTIONS: CsvTable[BisectionView] = CsvTable((*_FIELDS, *(f"culprit_{name}" for name in _CULPRIT)), _rows)

_RUN = ("number", "sha", "delivery", "result", "sample", "url", "sent_at", "finished_at")
_run: Callable[[BisectionRun], CsvRow] = attrgetter(*_RUN)
RUNS: CsvTable[BisectionRun] = CsvTable(_RUN, lambda run: [_run(run)])


def add(api: APIRouter) -> None:
    @api.get(
        "/bisections",
        tags=[TAG],
        summary="Searches for the commit that broke a job, newest first",
        response_model=models.BISECTIONS,
    )
    async def bisections(
        make_query: params.BisectionQueryParam,
        api_request: params.RequestParam,
        limit: params.LimitParam = 50,
    ) -> Model:
        query = make_query(upstream=api_request.upstream, limit=limit)
        return models.BISECTIONS.model_validate(await api_request.views.bisections(query))

    @api.get(
        "/bisections/{id}",
        tags=[TAG],
        summary="One bisection with the commits of its range and its runs",
        response_model=models.BISECTION_DETAIL,
    )
    async def bisection(id: params.BisectionPath, api_request: params.RequestParam) -> Model:
        detail = await api_request.views.bisection(api_request.upstream, id)
        return models.BISECTION_DETAIL.model_validate(detail)


def add_csv(api: APIRouter) -> None:
    about = "Searches for the commit that broke a job"

    @api.get("/bisections.csv", summary=f"{about}, as CSV", responses=describe_response(about))
    async def bisections_csv(
        request: Request,
        make_query: params.BisectionQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = params.MOST_EXPORTED,
    ) -> Response:
        query = make_query(upstream=api_request.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[BisectionView, ...], CursorKey]:
            page = await api_request.views.bisections(replace(query, after=after, limit=size))
            return page.items, page.next

        export = CsvExport(request, f"{api_request.upstream}-bisections", limit, query.after)
        return await export.respond_with_pages(BISECTIONS, read)

    of_one = "The runs of one bisection"

    @api.get("/bisections/{id}.csv", summary=f"{of_one}, as CSV", responses=describe_response(of_one))
    async def bisection_csv(
        request: Request,
        id: params.BisectionPath,
        api_request: params.RequestParam,
    ) -> Response:
        detail = await api_request.views.bisection(api_request.upstream, id)
        export = CsvExport(request, f"{api_request.upstream}-bisection-{id}")
        return await export.respond_with_items(RUNS, detail.runs)
