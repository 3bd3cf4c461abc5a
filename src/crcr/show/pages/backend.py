"""The page of a backend: its numbers, its matrix of events and jobs, and the details of the requested job."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.model import RepoName, is_repo_name
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.statistics.window import ResultKind, result_kind
from crcr.decide.views.backend import BackendPage, BackendQuery, JobFigures
from crcr.decide.views.culprits import CulpritQuery, JobCulprits
from crcr.errors import NotFound
from crcr.show.pages.bisections import read_breakage_bisections
from crcr.show.pages.frame import Frame, NotListed
from crcr.show.pages.job_panel import backend_panel, make_panel, requested_token, wants_panel_only
from crcr.show.previews.preview import preview_backend
from crcr.show.previews.tags import make_tags
from crcr.show.render.matrix import GridChoices, draw_cells, lay_out
from crcr.show.render.status import SETTLED, refusal_meaning
from crcr.show.render.trend_charts import backend_charts
from crcr.show.urls import cursors
from crcr.show.urls.filters import parse_day
from crcr.show.urls.job_tokens import decode_job_key, job_token
from crcr.show.urls.location import JOB, PageLinks, PageLocation, data_links

_FILTERS = ("jobs", "author", "result", "verdict", "q")
_KEPT = (*_FILTERS, "older", "failing", "columns", "day", "open", "sort", "after")
_IN_API = {
    "jobs": "job",
    "author": "author",
    "result": "result",
    "verdict": "verdict",
    "q": "q",
    "older": "older",
    "failing": "failing",
    "day": "day",
    "after": "cursor",
}
"""The names of the page's parameters in the API, where `job` is a filter and not the open job."""
_LONGEST = 200
_MOST_BROKEN = 3
"""Jobs whose culprits are shown."""
_MOST_OPEN = 2_000

Order = Callable[[JobFigures], tuple[float, str, str]]


def routes(frame: Frame) -> list[BaseRoute]:
    pages = BackendPages(frame)
    return [
        Route("/crcr/j/{token}", frame.endpoint(pages.short_address)),
        Route("/crcr/{org}/{repo}", frame.endpoint(pages.backend)),
    ]


class BackendPages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def backend(self, request: Request, location: PageLocation) -> Response:
        text = "{org}/{repo}".format(**request.path_params)
        if not is_repo_name(text):
            raise NotFound(f"{text[:150]} is not the name of a repository")
        name = RepoName(text)
        links = PageLinks(location, matrix_parameters(request.query_params))
        if wants_panel_only(request):
            panel = await backend_panel(self._frame, request, links, name)
            return self._frame.page(request, "job_panel.html", location, panel=panel)
        query = backend_query(location, name, request.query_params)
        views, now = self._frame.views(request), self._frame.clock.now()
        try:
            page = await views.backend(query, now)
        except NotFound:
            raise NotListed(name, location.upstream) from None
        breakages: tuple[JobCulprits, ...] = ()
        if location.kind is ResultKind.PUSH:
            # Reading these costs more than the rest of the page, and they are about the base branch.
            culprits = CulpritQuery(upstream=location.upstream, backend=name, limit=_MOST_BROKEN)
            breakages = await views.culprits(culprits, now)
        bisections = await read_breakage_bisections(views, location.upstream, breakages)
        pairs = await views.backend_pairs(location.upstream, name, now)
        return self._render(request, links, page, breakages=breakages, bisections=bisections, pairs=pairs)

    async def short_address(self, request: Request, location: PageLocation) -> Response:
        """Redirect to the page of the backend with the job's details open."""
        token = request.path_params["token"]
        detail = await self._frame.views(request).job_by_short_token(location.upstream, token)
        kind = result_kind(detail.job.event) or ResultKind.PULLS
        page = replace(location, path=f"/crcr/{detail.backend}", kind=kind)
        return RedirectResponse(page.url(**{JOB: job_token(detail.job)}), status_code=303)

    def _render(self, request: Request, links: PageLinks, page: BackendPage, **context: Any) -> Response:
        chosen = links.kept
        reports = page.summary.figures is not None
        opened = frozenset(chosen.get("open", "").split(","))
        panel_is_open = requested_token(request) is not None
        return self._frame.page(
            request,
            "backend.html",
            links.location,
            cursor=page.cursor,
            page=page,
            preview=make_tags(
                self._frame,
                links.location,
                preview_backend(page.query.upstream, page.summary, page.query.span.value),
                f"backend/{page.summary.name}",
            ),
            feed=links.location.with_defaults().url(f"/crcr/{page.summary.name}/feed.atom")
            if reports
            else None,
            links=links,
            chosen=chosen,
            chosen_on={name: value for name, value in chosen.items() if name != "after"},
            filtered=any(name in chosen for name in _FILTERS),
            draw_cells=draw_cells,
            grid=lay_out(
                page.matrix,
                GridChoices(opened, by_name="columns" in chosen),
                reports=reports,
                whole=not chosen.keys() & {"jobs", "failing"},
                lines=page.lines,
            ),
            jobs=sort_jobs(page.jobs, chosen.get("sort")),
            next_after=cursors.encode(page.matrix.next),
            panel=make_panel(self._frame.site, request, links, page.detail) if panel_is_open else None,
            charts=backend_charts(page.summary.figures, _day_url(links)) if page.summary.figures else (),
            day=page.query.day,
            backend_key=page.summary.name.key,
            formats=data_links(
                links.location,
                f"backends/{page.summary.name}",
                {_IN_API[name]: value for name, value in chosen.items() if name in _IN_API},
            ),
            site=self._frame.site,
            meaning=refusal_meaning,
            settled=SETTLED,
            refused_formats=data_links(links.location, f"backends/{page.summary.name}/refusals"),
            **context,
        )


def _day_url(links: PageLinks) -> Callable[[str], str]:
    """An address of the page up to the day: the charts have one for each part."""
    prefix = links.url_prefix("day", after=None)
    return lambda day: f"{prefix}{day}#matrix"


def matrix_parameters(query: QueryParams) -> dict[str, str]:
    """Return the parameters beside upstream, range and kind; invalid ones are left out."""
    chosen = {name: query.get(name, "").strip() for name in _KEPT}
    valid = {
        **{name: chosen[name][:_LONGEST] for name in ("jobs", "author", "q")},
        "result": chosen["result"] if chosen["result"] in {outcome.value for outcome in CountedAs} else "",
        "verdict": chosen["verdict"] if chosen["verdict"] in {kind.value for kind in VerdictKind} else "",
        "older": "1" if chosen["older"] == "1" else "",
        "failing": "1" if chosen["failing"] == "1" else "",
        "columns": "name" if chosen["columns"] == "name" else "",
        "day": day.isoformat() if (day := parse_day(chosen["day"])) else "",
        "open": chosen["open"][:_MOST_OPEN],
        "sort": chosen["sort"] if chosen["sort"].removeprefix("-") in ORDERS else "",
        "after": chosen["after"],
    }
    return {name: value for name, value in valid.items() if value}


def backend_query(location: PageLocation, name: RepoName, query: QueryParams) -> BackendQuery:
    chosen = matrix_parameters(query)
    return BackendQuery(
        upstream=location.upstream,
        downstream=name,
        span=location.span,
        kind=location.kind,
        job=chosen.get("jobs"),
        author=chosen.get("author"),
        result=CountedAs(chosen["result"]) if "result" in chosen else None,
        verdict=VerdictKind(chosen["verdict"]) if "verdict" in chosen else None,
        text=chosen.get("q"),
        older="older" in chosen,
        day=parse_day(chosen.get("day")),
        only_failing="failing" in chosen,
        after=cursors.decode(chosen.get("after")),
        detail=decode_job_key(query.get("job")),
        whole_jobs=False,
    )


def _order_by(number: Callable[[JobFigures], float]) -> Order:
    return lambda job: (number(job), job.column.workflow_name.lower(), job.column.job_name.lower())


def _rate_or_last(job: JobFigures) -> float:
    """Jobs without results come last."""
    return 2.0 if job.tally.pass_rate is None else job.tally.pass_rate


ORDERS: dict[str, Order] = {
    "job": lambda job: (0.0, job.column.workflow_name.lower(), job.column.job_name.lower()),
    "rate": _order_by(_rate_or_last),
    "failure": _order_by(lambda job: job.tally.failure),
    "timeouts": _order_by(lambda job: job.tally.timed_out),
    "total": _order_by(lambda job: job.tally.total),
    "run": _order_by(lambda job: -1.0 if job.execution_s is None else job.execution_s),
}
"""The orders of the table of jobs; by default the worst come first."""


def sort_jobs(jobs: tuple[JobFigures, ...], sort: str | None) -> tuple[JobFigures, ...]:
    if not sort:
        return jobs
    return tuple(sorted(jobs, key=ORDERS[sort.removeprefix("-")], reverse=sort.startswith("-")))
