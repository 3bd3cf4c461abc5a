"""JSON and CSV routes of refused reports and of the sandbox."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from crcr.decide.model import RepoName
from crcr.decide.views.joining import RefusalView, SandboxJob, SandboxQuery
from crcr.show.api import parameters as ask
from crcr.show.api.models import logs as models
from crcr.show.api.models.derive import Model
from crcr.show.api.parameters import backend_name
from crcr.show.csv.writer import CsvExport, CsvRow, CsvTable, CursorKey, describe_response
from crcr.show.render.status import refusal_meaning
from crcr.show.urls import cursors

TAG = "joining"
_TEXT = r"^[^\x00-\x1f\x7f]*$"

_REFUSAL = (
    *("refusal_id", "at", "code", "detail", "hint", "delivery", "delivery_known"),
    *("run_id", "workflow_name", "job_name", "settled"),
)
_refusal: Callable[[RefusalView], CsvRow] = attrgetter(*_REFUSAL)
REFUSALS: CsvTable[RefusalView] = CsvTable(
    (*_REFUSAL, "meaning"), lambda refusal: [(*_refusal(refusal), refusal_meaning(refusal.code))]
)
_TRIED = (
    *(
        "repository_id",
        "repository",
        "private",
        "event_type",
        "workflow_name",
        "run_id",
        "attempt",
        "job_name",
    ),
    *("state", "conclusion", "late", "started_at", "completed_at", "reported_at"),
    *("tests_passed", "tests_failed", "tests_skipped", "tests_total"),
)
_tried: Callable[[SandboxJob], CsvRow] = attrgetter(*_TRIED)


def _lines(job: SandboxJob) -> Iterator[CsvRow]:
    yield *_tried(job), "\n".join(test.name for test in job.failed_tests) or None


SANDBOX: CsvTable[SandboxJob] = CsvTable((*_TRIED, "failed_tests"), _lines)


def sandbox_query(
    *,
    repository: Annotated[
        str | None,
        Query(
            max_length=150,
            pattern=_TEXT,
            description="a repository's id, or part of its `owner/repo`; a private one is found by its id only",
        ),
    ] = None,
    cursor: ask.CursorParam = None,
) -> Callable[..., SandboxQuery]:
    return partial(SandboxQuery, repository=repository or None, after=cursors.decode(cursor))


SandboxAsked = Annotated[Callable[..., SandboxQuery], Depends(sandbox_query)]


def add(api: APIRouter) -> None:
    @api.get(
        "/backends/{org}/{repo}/refusals",
        tags=[TAG],
        summary="A backend's reports that were refused: why, when, of which run",
        response_model=models.REFUSALS,
    )
    async def refusals(name: Annotated[RepoName, Depends(backend_name)], asked: ask.RequestParam) -> Model:
        found = await asked.views.refusals(asked.upstream, name, asked.now)
        return models.REFUSALS.model_validate(found)

    @api.get(
        "/sandbox",
        tags=[TAG],
        summary="What repositories on no allowlist tried out; 404 where it is off",
        response_model=models.SANDBOX,
    )
    async def sandbox(query: SandboxAsked, asked: ask.RequestParam, limit: ask.LimitParam = 50) -> Model:
        page = await asked.views.sandbox(query(limit=limit), asked.now)
        return models.SANDBOX.model_validate(page)


def _describe_route(about: str) -> dict[str, Any]:
    return {"summary": f"{about}, as CSV", "responses": describe_response(about)}


def add_csv(api: APIRouter) -> None:
    @api.get(
        "/backends/{org}/{repo}/refusals.csv", **_describe_route("A backend's reports that were refused")
    )
    async def refusals_csv(
        request: Request, name: Annotated[RepoName, Depends(backend_name)], asked: ask.RequestParam
    ) -> Response:
        found = await asked.views.refusals(asked.upstream, name, asked.now)
        export = CsvExport(request, f"{asked.upstream}-{name}-refusals")
        return await export.all_of(REFUSALS, found.refusals)

    @api.get("/sandbox.csv", **_describe_route("What repositories on no allowlist tried out"))
    async def sandbox_csv(
        request: Request,
        query: SandboxAsked,
        asked: ask.RequestParam,
        limit: ask.LinesParam = ask.MOST_EXPORTED,
    ) -> Response:
        wanted = query()

        async def read(after: CursorKey, size: int) -> tuple[tuple[SandboxJob, ...], CursorKey]:
            page = await asked.views.sandbox(replace(wanted, after=after, limit=size), asked.now)
            return page.jobs, page.next

        return await CsvExport(request, "sandbox", limit, wanted.after).of(SANDBOX, read)
