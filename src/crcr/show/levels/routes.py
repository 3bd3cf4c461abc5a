"""Levels by evidence: the page `/crcr/levels`, and the same as JSON and CSV."""

from collections.abc import Callable, Iterator
from operator import attrgetter

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.levels import standings as views
from crcr.show.api import parameters as params
from crcr.show.api.models import backend
from crcr.show.api.models.derive import Model, derive_model
from crcr.show.csv.writer import CsvExport, CsvRow, CsvTable, describe_response
from crcr.show.pages.frame import Frame
from crcr.show.urls.location import PageLocation, data_links

TAG = "overview"


def routes(frame: Frame) -> list[BaseRoute]:
    async def levels(request: Request, location: PageLocation) -> Response:
        view = await frame.views(request).levels(location.upstream, frame.clock.now())
        return frame.page(
            request,
            "levels.html",
            location,
            cursor=view.cursor,
            view=view,
            formats=data_links(location, "levels"),
        )

    return [Route("/crcr/levels", frame.endpoint(levels))]


_AT = "2026-03-01T04:00:00Z"
_EXAMPLE = {
    "upstream": "org/project",
    "at": _AT,
    "silent_mode": True,
    "l4_downgrade": False,
    "evaluated_at": _AT,
    "window_days": 14,
    "leave_window_days": 7,
    "jobs": 50,
    "backends": [backend.LEVEL_EXAMPLE],
    "changes": [
        {
            "at": _AT,
            "downstream": "org/backend",
            "kind": "demoted",
            "before": "L3",
            "after": "L2",
            "reason": "jobs passed: 71.0% of 320 jobs (< 85%)",
        }
    ],
}
derive_model(views.RecordedChange, "LevelStandingChange", "A standing that turned.")
LEVELS = derive_model(
    views.LevelsView,
    "Levels",
    "Demotions first, then by level; `changes` newest first.",
    without=("cursor",),
    example=_EXAMPLE,
)


def add(api: APIRouter) -> None:
    @api.get(
        "/levels",
        tags=[TAG],
        summary="Every backend's level and standing, with its criteria as of the last evaluation",
        response_model=LEVELS,
    )
    async def levels(api_request: params.RequestParam) -> Model:
        return LEVELS.model_validate(await api_request.views.levels(api_request.upstream, api_request.now))


_BACKEND = (
    *(
        "name",
        "level",
        "level_since",
        "standing",
        "since",
        "demotion",
        "eligible",
        "proposed_level",
        "reason",
    ),
    *("evaluated_at", "left_out", "waivers"),
)
_CRITERION = (
    *(
        "name",
        "title",
        "target",
        "value",
        "measured",
        "met",
        "met_since",
        "leaves",
        "leave_measured",
        "broken",
    ),
)
_backend: Callable[[views.BackendLevel], CsvRow] = attrgetter(*_BACKEND)
_criterion: Callable[[views.CriterionView], CsvRow] = attrgetter(*_CRITERION)


def _rows(backend: views.BackendLevel) -> Iterator[CsvRow]:
    """A line for each criterion, and one for a backend that was not evaluated."""
    for criterion in backend.criteria:
        yield *_backend(backend), *_criterion(criterion)
    if not backend.criteria:
        yield *_backend(backend), *(None,) * len(_CRITERION)


TABLE: CsvTable[views.BackendLevel] = CsvTable(
    (*_BACKEND, *(f"criterion_{name}" for name in _CRITERION)), _rows
)


def add_csv(api: APIRouter) -> None:
    about = "Every backend's level: a line for each criterion"

    @api.get("/levels.csv", summary=f"{about}, as CSV", responses=describe_response(about))
    async def levels_csv(request: Request, api_request: params.RequestParam) -> Response:
        view = await api_request.views.levels(api_request.upstream, api_request.now)
        return await CsvExport(request, f"{api_request.upstream}-levels").respond_with_items(
            TABLE, view.backends
        )
