"""JSON and CSV routes of refused reports and of the sandbox, which joining downstreams read."""

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
from crcr.show.api import parameters as params
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
_SANDBOX_JOB = (
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
_sandbox_job: Callable[[SandboxJob], CsvRow] = attrgetter(*_SANDBOX_JOB)


def _sandbox_rows(job: SandboxJob) -> Iterator[CsvRow]:
    yield *_sandbox_job(job), "\n".join(test.name for test in job.failed_tests) or None


SANDBOX: CsvTable[SandboxJob] = CsvTable((*_SANDBOX_JOB, "failed_tests"), _sandbox_rows)


def sandbox_query(
    *,
    repository: Annotated[
        str | None,
        Query(
            max_length=150,
            pattern=_TEXT,
            description="a repository's id, or part of its `owner/repo`; a private one matches by id only",
        ),
    ] = None,
    cursor: params.CursorParam = None,
) -> Callable[..., SandboxQuery]:
    return partial(SandboxQuery, repository=repository or None, after=cursors.decode(cursor))


SandboxQueryParam = Annotated[Callable[..., SandboxQuery], Depends(sandbox_query)]


def add(api: APIRouter) -> None:
    @api.get(
        "/backends/{org}/{repo}/refusals",
        tags=[TAG],
        summary="A backend's refused reports, with reason, time and run",
        response_model=models.REFUSALS,
    )
    async def refusals(
        name: Annotated[RepoName, Depends(backend_name)], api_request: params.RequestParam
    ) -> Model:
        view = await api_request.views.refusals(api_request.upstream, name, api_request.now)
        return models.REFUSALS.model_validate(view)

    @api.get(
        "/sandbox",
        tags=[TAG],
        summary="Test reports of repositories that are not on the allowlist; 404 if the sandbox is off",
        response_model=models.SANDBOX,
    )
    async def sandbox(
        make_query: SandboxQueryParam, api_request: params.RequestParam, limit: params.LimitParam = 50
    ) -> Model:
        page = await api_request.views.sandbox(make_query(limit=limit), api_request.now)
        return models.SANDBOX.model_validate(page)


def _describe_route(about: str) -> dict[str, Any]:
    return {"summary": f"{about}, as CSV", "responses": describe_response(about)}


def add_csv(api: APIRouter) -> None:
    @api.get("/backends/{org}/{repo}/refusals.csv", **_describe_route("A backend's refused reports"))
    async def refusals_csv(
        request: Request, name: Annotated[RepoName, Depends(backend_name)], api_request: params.RequestParam
    ) -> Response:
        view = await api_request.views.refusals(api_request.upstream, name, api_request.now)
        export = CsvExport(request, f"{api_request.upstream}-{name}-refusals")
        return await export.respond_with_items(REFUSALS, view.refusals)

    @api.get("/sandbox.csv", **_describe_route("Test reports of repositories that are not on the allowlist"))
    async def sandbox_csv(
        request: Request,
        make_query: SandboxQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = params.MOST_EXPORTED,
    ) -> Response:
        query = make_query()

        async def read(after: CursorKey, size: int) -> tuple[tuple[SandboxJob, ...], CursorKey]:
            page = await api_request.views.sandbox(replace(query, after=after, limit=size), api_request.now)
            return page.jobs, page.next

        return await CsvExport(request, "sandbox", limit, query.after).respond_with_pages(SANDBOX, read)
