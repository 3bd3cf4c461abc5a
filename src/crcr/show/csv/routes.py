"""CSV routes: the lists and tables of the API under the same addresses with `.csv`, with the same parameters."""

import sys
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from crcr.decide.model import RepoName
from crcr.decide.statistics.window import ResultKind, Span, Window
from crcr.decide.views.backend import BackendQuery, MatrixRow
from crcr.decide.views.commit import WaiverView
from crcr.decide.views.logs import AuditView, EffectView, Hit
from crcr.decide.views.overview import DeliveryView, JobView
from crcr.show.api import parameters as ask
from crcr.show.api.parameters import MOST_EXPORTED, backend_name
from crcr.show.csv import columns as tables
from crcr.show.csv.writer import CsvExport, CursorKey, describe_response
from crcr.show.urls import cursors
from crcr.show.urls.sorting import pick_backend, tabulate

_LONG = "Lists come in at most 10,000 lines; `Link` names the request for those that follow."


def add(api: APIRouter) -> None:
    _add_numbers(api)
    _add_backend(api)
    _add_lists(api)
    _add_deliveries(api)
    _add_logs(api)
    _add_commits(api)


def _describe_route(about: str, note: str = "") -> dict[str, Any]:
    return {"summary": f"{about}, as CSV", "description": note or None, "responses": describe_response(about)}


def _add_numbers(api: APIRouter) -> None:
    @api.get("/summary.csv", **_describe_route("All backends with their numbers"))
    async def summary_csv(
        request: Request,
        asked: ask.RequestParam,
        choice: ask.TableChoice,
        *,
        kind: ask.KindParam = ResultKind.PULLS,
        span: ask.RangeParam = Span.FORTNIGHT,
        limit: ask.LinesParam | None = None,
        cursor: ask.CursorParam = None,
    ) -> Response:
        view = await asked.views.summary(
            asked.upstream, span, asked.now, kind=kind, pick=lambda every: tabulate(every, choice).rows
        )
        name = f"{asked.upstream}-summary-{kind}-{span}"
        export = CsvExport(request, name, limit or sys.maxsize, cursors.decode(cursor))
        return await export.all_of(tables.SUMMARY, view.rows)

    @api.get(
        "/metrics.csv", **_describe_route("The numbers over time", "The whole window first, then its parts.")
    )
    async def metrics_csv(
        request: Request,
        asked: ask.RequestParam,
        *,
        kind: ask.KindParam = ResultKind.PULLS,
        span: ask.RangeParam = Span.FORTNIGHT,
        backend: ask.OneBackend = None,
        limit: ask.LinesParam | None = None,
        cursor: ask.CursorParam = None,
    ) -> Response:
        view = await asked.views.metrics(asked.upstream, span, asked.now, kind=kind)
        one = pick_backend(view.backends, backend)
        until = Window.of(span, view.at).until
        shown = (one,) if one else view.backends
        measured = (tables.MeasuredBackend(backend.figures, backend, until) for backend in shown)
        name = f"{asked.upstream}-metrics-{kind}-{span}"
        export = CsvExport(request, name, limit or sys.maxsize, cursors.decode(cursor))
        return await export.all_of(
            tables.METRICS, [tables.MeasuredBackend(view.total, None, until), *measured]
        )


def _add_backend(api: APIRouter) -> None:
    @api.get(
        "/backends/{org}/{repo}.csv",
        **_describe_route("A backend's matrix: a line for each job, and one for an event without any", _LONG),
    )
    async def backend_csv(
        request: Request,
        backend: Annotated[RepoName, Depends(backend_name)],
        query: ask.BackendQueryParam,
        asked: ask.RequestParam,
        limit: ask.LinesParam = MOST_EXPORTED,
    ) -> Response:
        wanted = query(upstream=asked.upstream, downstream=backend)

        async def read(after: CursorKey, size: int) -> tuple[tuple[MatrixRow, ...], CursorKey]:
            page = await asked.views.backend(replace(wanted, after=after, limit=size), asked.now)
            return page.matrix.rows, page.matrix.next

        name = f"{asked.upstream}-{backend}-{wanted.kind}-{wanted.span}"
        return await CsvExport(request, name, limit, wanted.after).of(tables.MATRIX, read)

    @api.get(
        "/backends/{org}/{repo}/jobs.csv", **_describe_route("A backend's jobs over the window, worst first")
    )
    async def backend_jobs_csv(
        request: Request,
        backend: Annotated[RepoName, Depends(backend_name)],
        asked: ask.RequestParam,
        kind: ask.KindParam = ResultKind.PULLS,
        span: ask.RangeParam = Span.FORTNIGHT,
    ) -> Response:
        query = BackendQuery(upstream=asked.upstream, downstream=backend, kind=kind, span=span, limit=1)
        page = await asked.views.backend(query, asked.now)
        name = f"{asked.upstream}-{backend}-jobs-{kind}-{span}"
        return await CsvExport(request, name).all_of(tables.JOB_FIGURES, page.jobs)

    @api.get(
        "/backends/{org}/{repo}/levels.csv", **_describe_route("Since when a backend stands at which level")
    )
    async def backend_levels_csv(
        request: Request,
        backend: Annotated[RepoName, Depends(backend_name)],
        asked: ask.RequestParam,
    ) -> Response:
        query = BackendQuery(upstream=asked.upstream, downstream=backend, limit=1)
        page = await asked.views.backend(query, asked.now)
        return await CsvExport(request, f"{asked.upstream}-{backend}-levels").all_of(
            tables.LEVELS, page.levels
        )


def _add_lists(api: APIRouter) -> None:
    @api.get("/jobs.csv", **_describe_route("Jobs, newest first", _LONG))
    async def jobs_csv(
        request: Request,
        query: ask.JobQueryParam,
        asked: ask.RequestParam,
        limit: ask.LinesParam = MOST_EXPORTED,
    ) -> Response:
        wanted = query(upstream=asked.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[JobView, ...], CursorKey]:
            page = await asked.views.jobs(replace(wanted, after=after, limit=size))
            return page.jobs, page.next

        return await CsvExport(request, f"{asked.upstream}-jobs", limit, wanted.after).of(tables.JOBS, read)

    @api.get("/search.csv", **_describe_route("What a search finds"))
    async def search_csv(
        request: Request, q: ask.SearchParam, asked: ask.RequestParam, cursor: ask.CursorParam = None
    ) -> Response:
        async def read(after: CursorKey, _: int) -> tuple[tuple[Hit, ...], CursorKey]:
            found = await asked.views.search(asked.upstream, q, asked.now, after=after)
            return found.hits, found.next

        after = cursors.decode(cursor)
        return await CsvExport(request, f"{asked.upstream}-search", after=after).of(tables.HITS, read)

    @api.get("/allowlist.csv", **_describe_route("Who takes part, at which level"))
    async def allowlist_csv(request: Request, asked: ask.RequestParam) -> Response:
        view = await asked.views.allowlist(asked.upstream)
        return await CsvExport(request, f"{asked.upstream}-allowlist").all_of(tables.ALLOWLIST, view.backends)


def _add_deliveries(api: APIRouter) -> None:
    @api.get(
        "/deliveries.csv",
        **_describe_route("Deliveries: a line for each dispatch, and one for a delivery without any", _LONG),
    )
    async def deliveries_csv(
        request: Request,
        query: ask.DeliveryQueryParam,
        asked: ask.RequestParam,
        limit: ask.LinesParam = MOST_EXPORTED,
    ) -> Response:
        wanted = query(upstream=asked.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[DeliveryView, ...], CursorKey]:
            page = await asked.views.deliveries(replace(wanted, after=after, limit=size))
            return page.deliveries, page.next

        export = CsvExport(request, f"{asked.upstream}-deliveries", limit, wanted.after)
        return await export.of(tables.DELIVERIES, read)

    @api.get(
        "/deliveries/{guid}.csv", **_describe_route("One delivery: a line for each job of each dispatch")
    )
    async def delivery_csv(request: Request, guid: ask.GuidPath, asked: ask.RequestParam) -> Response:
        view = await asked.views.delivery(asked.upstream, guid)
        return await CsvExport(request, f"{asked.upstream}-delivery-{guid}").all_of(tables.DELIVERY, [view])


def _add_logs(api: APIRouter) -> None:
    @api.get("/effects.csv", **_describe_route("Effects one by one", _LONG))
    async def effects_csv(
        request: Request,
        query: ask.EffectQueryParam,
        asked: ask.RequestParam,
        limit: ask.LinesParam = MOST_EXPORTED,
    ) -> Response:
        wanted = query(upstream=asked.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[EffectView, ...], CursorKey]:
            page = await asked.views.effect_page(replace(wanted, after=after, limit=size))
            return page.effects, page.next

        return await CsvExport(request, f"{asked.upstream}-effects", limit, wanted.after).of(
            tables.EFFECTS, read
        )

    @api.get("/audit.csv", **_describe_route("Every act by hand and every alarm", _LONG))
    async def audit_csv(
        request: Request,
        query: ask.AuditQueryParam,
        asked: ask.RequestParam,
        limit: ask.LinesParam = MOST_EXPORTED,
    ) -> Response:
        wanted = query(upstream=asked.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[AuditView, ...], CursorKey]:
            page = await asked.views.audit(replace(wanted, after=after, limit=size))
            return page.acts, page.next

        return await CsvExport(request, f"{asked.upstream}-audit", limit, wanted.after).of(tables.AUDIT, read)


def _add_commits(api: APIRouter) -> None:
    @api.get(
        "/pulls/{number}.csv",
        **_describe_route("A pull request's backends and jobs, as its latest commit has them"),
    )
    async def pull_csv(request: Request, number: ask.NumberPath, asked: ask.RequestParam) -> Response:
        view = await asked.views.pull(asked.upstream, number, asked.now)
        return await CsvExport(request, f"{asked.upstream}-pull-{number}").all_of(
            tables.OF_COMMIT, view.backends
        )

    @api.get("/commits/{sha}.csv", **_describe_route("A commit's backends and jobs"))
    async def commit_csv(
        request: Request,
        sha: ask.ShaPath,
        asked: ask.RequestParam,
        delivery: ask.DeliveryParam = None,
    ) -> Response:
        view = await asked.views.commit(asked.upstream, sha, asked.now, delivery=delivery or None)
        export = CsvExport(request, f"{asked.upstream}-commit-{sha[:12]}")
        return await export.all_of(tables.OF_COMMIT, view.backends)

    @api.get("/waivers.csv", **_describe_route("Waivers, those in force first", _LONG))
    async def waivers_csv(
        request: Request,
        query: ask.WaiverQueryParam,
        asked: ask.RequestParam,
        limit: ask.LinesParam = MOST_EXPORTED,
    ) -> Response:
        wanted = query(upstream=asked.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[WaiverView, ...], CursorKey]:
            page = await asked.views.waiver_page(replace(wanted, after=after, limit=size), asked.now)
            return page.waivers, page.next

        return await CsvExport(request, f"{asked.upstream}-waivers", limit, wanted.after).of(
            tables.WAIVERS, read
        )
