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
from crcr.decide.views.failing import FailingJob
from crcr.decide.views.grids import CommitLine, PullLine
from crcr.decide.views.logs import AuditView, EffectView, NoticeView
from crcr.decide.views.overview import DeliveryView, JobView
from crcr.decide.views.search import Hit, SearchQuery
from crcr.show.api import parameters as params
from crcr.show.api.parameters import MOST_EXPORTED, backend_name
from crcr.show.csv import columns as tables
from crcr.show.csv.writer import CsvExport, CursorKey, describe_response
from crcr.show.urls import cursors
from crcr.show.urls.sorting import pick_backend, tabulate

_MOST_FOUND = 1_000
"""Lines of a search: finding them costs more than reading a list."""
_LONG = "Lists come in at most 10,000 lines; `Link` names the request for those that follow."


def add(api: APIRouter) -> None:
    _add_numbers(api)
    _add_backend(api)
    _add_lists(api)
    _add_deliveries(api)
    _add_logs(api)
    _add_notices(api)
    _add_grids(api)
    _add_commits(api)
    _add_failing_and_waivers(api)


def _describe_route(about: str, note: str = "") -> dict[str, Any]:
    return {"summary": f"{about}, as CSV", "description": note or None, "responses": describe_response(about)}


def _add_numbers(api: APIRouter) -> None:
    @api.get("/summary.csv", **_describe_route("All backends with their numbers"))
    async def summary_csv(
        request: Request,
        api_request: params.RequestParam,
        choice: params.TableChoice,
        *,
        kind: params.KindParam = ResultKind.PULLS,
        span: params.RangeParam = Span.FORTNIGHT,
        limit: params.LinesParam | None = None,
        cursor: params.CursorParam = None,
    ) -> Response:
        view = await api_request.views.summary(
            api_request.upstream,
            span,
            api_request.now,
            kind=kind,
            pick=lambda every: tabulate(every, choice).rows,
        )
        name = f"{api_request.upstream}-summary-{kind}-{span}"
        export = CsvExport(request, name, limit or sys.maxsize, cursors.decode(cursor))
        return await export.respond_with_items(tables.SUMMARY, view.rows)

    @api.get(
        "/metrics.csv", **_describe_route("The numbers over time", "The whole window first, then its parts.")
    )
    async def metrics_csv(
        request: Request,
        api_request: params.RequestParam,
        *,
        kind: params.KindParam = ResultKind.PULLS,
        span: params.RangeParam = Span.FORTNIGHT,
        backend: params.OneBackend = None,
        limit: params.LinesParam | None = None,
        cursor: params.CursorParam = None,
    ) -> Response:
        view = await api_request.views.metrics(api_request.upstream, span, api_request.now, kind=kind)
        one = pick_backend(view.backends, backend)
        until = Window.of(span, view.at).until
        backends = (one,) if one else view.backends
        measured = (tables.MeasuredBackend(backend.figures, backend, until) for backend in backends)
        name = f"{api_request.upstream}-metrics-{kind}-{span}"
        export = CsvExport(request, name, limit or sys.maxsize, cursors.decode(cursor))
        return await export.respond_with_items(
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
        make_query: params.BackendQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = MOST_EXPORTED,
    ) -> Response:
        query = make_query(upstream=api_request.upstream, downstream=backend)

        async def read(after: CursorKey, size: int) -> tuple[tuple[MatrixRow, ...], CursorKey]:
            page = await api_request.views.backend(replace(query, after=after, limit=size), api_request.now)
            return page.matrix.rows, page.matrix.next

        name = f"{api_request.upstream}-{backend}-{query.kind}-{query.span}"
        return await CsvExport(request, name, limit, query.after).respond_with_pages(tables.MATRIX, read)

    @api.get(
        "/backends/{org}/{repo}/jobs.csv", **_describe_route("A backend's jobs over the window, worst first")
    )
    async def backend_jobs_csv(
        request: Request,
        backend: Annotated[RepoName, Depends(backend_name)],
        api_request: params.RequestParam,
        kind: params.KindParam = ResultKind.PULLS,
        span: params.RangeParam = Span.FORTNIGHT,
    ) -> Response:
        query = BackendQuery(upstream=api_request.upstream, downstream=backend, kind=kind, span=span, limit=1)
        page = await api_request.views.backend(query, api_request.now)
        name = f"{api_request.upstream}-{backend}-jobs-{kind}-{span}"
        return await CsvExport(request, name).respond_with_items(tables.JOB_FIGURES, page.jobs)

    @api.get("/backends/{org}/{repo}/levels.csv", **_describe_route("The history of a backend's level"))
    async def backend_levels_csv(
        request: Request,
        backend: Annotated[RepoName, Depends(backend_name)],
        api_request: params.RequestParam,
    ) -> Response:
        query = BackendQuery(upstream=api_request.upstream, downstream=backend, limit=1)
        page = await api_request.views.backend(query, api_request.now)
        return await CsvExport(request, f"{api_request.upstream}-{backend}-levels").respond_with_items(
            tables.LEVELS, page.levels
        )


def _add_lists(api: APIRouter) -> None:
    @api.get("/jobs.csv", **_describe_route("Jobs, newest first", _LONG))
    async def jobs_csv(
        request: Request,
        make_query: params.JobQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = MOST_EXPORTED,
    ) -> Response:
        query = make_query(upstream=api_request.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[JobView, ...], CursorKey]:
            page = await api_request.views.jobs(replace(query, after=after, limit=size))
            return page.jobs, page.next

        return await CsvExport(
            request, f"{api_request.upstream}-jobs", limit, query.after
        ).respond_with_pages(tables.JOBS, read)

    @api.get("/search.csv", **_describe_route("Search results"))
    async def search_csv(
        request: Request,
        q: params.SearchParam,
        api_request: params.RequestParam,
        kind: params.HitKindParam = None,
        cursor: params.CursorParam = None,
    ) -> Response:
        query = SearchQuery(upstream=api_request.upstream, text=q, kind=kind)

        async def read(after: CursorKey, _: int) -> tuple[tuple[Hit, ...], CursorKey]:
            page = await api_request.views.search(replace(query, after=after), api_request.now)
            return page.hits, page.next

        after = cursors.decode(cursor)
        return await CsvExport(
            request, f"{api_request.upstream}-search", _MOST_FOUND, after
        ).respond_with_pages(tables.HITS, read)

    @api.get("/allowlist.csv", **_describe_route("The backends with their levels"))
    async def allowlist_csv(request: Request, api_request: params.RequestParam) -> Response:
        view = await api_request.views.allowlist(api_request.upstream)
        return await CsvExport(request, f"{api_request.upstream}-allowlist").respond_with_items(
            tables.ALLOWLIST, view.backends
        )


def _add_deliveries(api: APIRouter) -> None:
    @api.get(
        "/deliveries.csv",
        **_describe_route("Deliveries: a line for each dispatch, and one for a delivery without any", _LONG),
    )
    async def deliveries_csv(
        request: Request,
        make_query: params.DeliveryQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = MOST_EXPORTED,
    ) -> Response:
        query = make_query(upstream=api_request.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[DeliveryView, ...], CursorKey]:
            page = await api_request.views.deliveries(replace(query, after=after, limit=size))
            return page.deliveries, page.next

        export = CsvExport(request, f"{api_request.upstream}-deliveries", limit, query.after)
        return await export.respond_with_pages(tables.DELIVERIES, read)

    @api.get(
        "/deliveries/{guid}.csv", **_describe_route("One delivery: a line for each job of each dispatch")
    )
    async def delivery_csv(
        request: Request, guid: params.GuidPath, api_request: params.RequestParam
    ) -> Response:
        view = await api_request.views.delivery(api_request.upstream, guid)
        return await CsvExport(request, f"{api_request.upstream}-delivery-{guid}").respond_with_items(
            tables.DELIVERY, [view]
        )


def _add_logs(api: APIRouter) -> None:
    @api.get("/effects.csv", **_describe_route("Effects one by one", _LONG))
    async def effects_csv(
        request: Request,
        make_query: params.EffectQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = MOST_EXPORTED,
    ) -> Response:
        query = make_query(upstream=api_request.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[EffectView, ...], CursorKey]:
            page = await api_request.views.effect_page(replace(query, after=after, limit=size))
            return page.effects, page.next

        return await CsvExport(
            request, f"{api_request.upstream}-effects", limit, query.after
        ).respond_with_pages(tables.EFFECTS, read)

    @api.get("/audit.csv", **_describe_route("Manual actions and alarms", _LONG))
    async def audit_csv(
        request: Request,
        make_query: params.AuditQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = MOST_EXPORTED,
    ) -> Response:
        query = make_query(upstream=api_request.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[AuditView, ...], CursorKey]:
            page = await api_request.views.audit(replace(query, after=after, limit=size))
            return page.acts, page.next

        return await CsvExport(
            request, f"{api_request.upstream}-audit", limit, query.after
        ).respond_with_pages(tables.AUDIT, read)


def _add_notices(api: APIRouter) -> None:
    @api.get("/notices.csv", **_describe_route("Notices, with a line for each message", _LONG))
    async def notices_csv(
        request: Request,
        make_query: params.NoticeQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = MOST_EXPORTED,
    ) -> Response:
        query = make_query(upstream=api_request.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[NoticeView, ...], CursorKey]:
            page = await api_request.views.notices(replace(query, after=after, limit=size))
            return page.notices, page.next

        return await CsvExport(
            request, f"{api_request.upstream}-notices", limit, query.after
        ).respond_with_pages(tables.NOTICES, read)


def _add_grids(api: APIRouter) -> None:
    @api.get(
        "/pulls.csv",
        **_describe_route(
            "Pull requests: a line for each backend, and one for a pull request without any", _LONG
        ),
    )
    async def pulls_csv(
        request: Request,
        make_query: params.PullListQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = MOST_EXPORTED,
    ) -> Response:
        query = make_query(upstream=api_request.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[PullLine, ...], CursorKey]:
            page = await api_request.views.pulls(replace(query, after=after, limit=size))
            return page.items, page.next

        export = CsvExport(request, f"{api_request.upstream}-pulls-{query.scope}", limit, query.after)
        return await export.respond_with_pages(tables.PULL_LIST, read)

    @api.get(
        "/commits.csv",
        **_describe_route(
            "A branch's commits: a line for each backend, and one for a commit without any", _LONG
        ),
    )
    async def branch_commits_csv(
        request: Request,
        make_query: params.CommitListQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = MOST_EXPORTED,
    ) -> Response:
        query = make_query(upstream=api_request.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[CommitLine, ...], CursorKey]:
            page = await api_request.views.commits(replace(query, after=after, limit=size))
            return page.items, page.next

        export = CsvExport(request, f"{api_request.upstream}-commits", limit, query.after)
        return await export.respond_with_pages(tables.COMMIT_LIST, read)


def _add_commits(api: APIRouter) -> None:
    @api.get(
        "/pulls/{number}.csv",
        **_describe_route("Backends and jobs of a pull request's latest commit"),
    )
    async def pull_csv(
        request: Request, number: params.NumberPath, api_request: params.RequestParam
    ) -> Response:
        view = await api_request.views.pull(api_request.upstream, number, api_request.now)
        return await CsvExport(request, f"{api_request.upstream}-pull-{number}").respond_with_items(
            tables.COMMIT_BACKENDS, view.backends
        )

    @api.get("/commits/{sha}.csv", **_describe_route("A commit's backends and jobs"))
    async def commit_csv(
        request: Request,
        sha: params.ShaPath,
        api_request: params.RequestParam,
        delivery: params.DeliveryParam = None,
    ) -> Response:
        view = await api_request.views.commit(
            api_request.upstream, sha, api_request.now, delivery=delivery or None
        )
        export = CsvExport(request, f"{api_request.upstream}-commit-{sha[:12]}")
        return await export.respond_with_items(tables.COMMIT_BACKENDS, view.backends)


def _add_failing_and_waivers(api: APIRouter) -> None:
    @api.get(
        "/failing.csv",
        **_describe_route("Jobs that fail on the base branch, or at night, without a pass since", _LONG),
    )
    async def failing_csv(
        request: Request,
        make_query: params.FailingQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = MOST_EXPORTED,
    ) -> Response:
        query = make_query(upstream=api_request.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[FailingJob, ...], CursorKey]:
            page = await api_request.views.failing(replace(query, after=after, limit=size), api_request.now)
            return page.items, page.next

        return await CsvExport(
            request, f"{api_request.upstream}-failing-{query.kind}", limit, query.after
        ).respond_with_pages(tables.FAILING, read)

    @api.get("/waivers.csv", **_describe_route("Waivers, those in force first", _LONG))
    async def waivers_csv(
        request: Request,
        make_query: params.WaiverQueryParam,
        api_request: params.RequestParam,
        limit: params.LinesParam = MOST_EXPORTED,
    ) -> Response:
        query = make_query(upstream=api_request.upstream)

        async def read(after: CursorKey, size: int) -> tuple[tuple[WaiverView, ...], CursorKey]:
            page = await api_request.views.waiver_page(
                replace(query, after=after, limit=size), api_request.now
            )
            return page.waivers, page.next

        return await CsvExport(
            request, f"{api_request.upstream}-waivers", limit, query.after
        ).respond_with_pages(tables.WAIVERS, read)
