"""The pages of bisections: the list, and one with the picture of its range and its runs."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, log2

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.bisection.search import CommitFinding
from crcr.decide.model import RepoName, is_repo_name
from crcr.decide.views.bisections import (
    BisectionCommit,
    BisectionDetail,
    BisectionPage,
    BisectionQuery,
    BisectionRun,
    BisectionState,
    BisectionView,
    describe_briefly,
)
from crcr.decide.views.culprits import JobCulprits
from crcr.errors import NotFound
from crcr.record.views.sql_views import SqlViews
from crcr.show.pages.frame import Frame
from crcr.show.render.commit_range import describe_place, draw_range, find_status, list_statuses
from crcr.show.render.status import NOT_AWAITED, RUN_RESULTS, Status
from crcr.show.urls import cursors
from crcr.show.urls.filters import ListFilters
from crcr.show.urls.location import PageLinks, PageLocation, data_links

_PAGE = 50
_FIELDS = ("backend", "job", "state")
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")


def routes(frame: Frame) -> list[BaseRoute]:
    pages = BisectionPages(frame)
    return [
        Route("/crcr/bisections", frame.endpoint(pages.bisections)),
        Route("/crcr/bisections/{id}", frame.endpoint(pages.bisection)),
    ]


@dataclass(frozen=True, slots=True)
class RunLine:
    run: BisectionRun
    commit: BisectionCommit
    is_over: bool
    """Whether the bisection has ended."""

    @property
    def status(self) -> Status:
        is_left = self.is_over and self.run.result is None
        return NOT_AWAITED if is_left else RUN_RESULTS[self.run.result]

    @property
    def took_s(self) -> float | None:
        end = self.run.finished_at
        return (end - self.run.sent_at).total_seconds() if end else None


class BisectionPages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def bisections(self, request: Request, location: PageLocation) -> Response:
        filters = ListFilters(request, *_FIELDS)
        query = BisectionQuery(
            upstream=location.upstream,
            backend=_read_backend(filters),
            job=filters.text("job"),
            state=filters.one_of(BisectionState, "state"),
            after=cursors.decode(filters.text("after")),
            limit=_PAGE,
        )
        page = await _read_page(self._frame.views(request), query, filters)
        chosen = filters.understood
        return self._frame.page(
            request,
            "bisections.html",
            location,
            cursor=page.change,
            page=page,
            states=tuple(BisectionState),
            links=PageLinks(location, chosen),
            chosen=filters.values,
            unclear=filters.unclear,
            filtered=bool(chosen.keys() & set(_FIELDS)),
            limit=_PAGE,
            next_after=cursors.encode(page.next),
            formats=data_links(location, "bisections", chosen),
        )

    async def bisection(self, request: Request, location: PageLocation) -> Response:
        number = request.path_params["id"]
        if not _NUMBER.fullmatch(number):
            raise NotFound(f"{number[:50]} is not the number of a bisection")
        detail = await self._frame.views(request).bisection(location.upstream, int(number))
        commits = {commit.sha: commit for commit in detail.commits}
        is_over = detail.bisection.state is BisectionState.FINISHED
        return self._frame.page(
            request,
            "bisection.html",
            location,
            cursor=detail.change,
            detail=detail,
            bisection=detail.bisection,
            backend_key=detail.bisection.backend.key,
            lines=[RunLine(run, commits[run.sha], is_over) for run in detail.runs],
            picture=draw_range(detail),
            statuses=list_statuses(detail),
            find_status=find_status,
            describe_place=describe_place,
            more_runs=_estimate_runs(detail),
            formats=data_links(location, f"bisections/{detail.bisection.id}"),
        )


@dataclass(frozen=True, slots=True)
class BreakageBisection:
    """The newest bisection of a breakage, as a list of breakages shows it."""

    id: int
    text: str
    is_running: bool


async def read_breakage_bisections(
    views: SqlViews, upstream: RepoName, breakages: Iterable[JobCulprits]
) -> dict[int, BreakageBisection]:
    ids = {breakage.bisection for breakage in breakages if breakage.bisection is not None}
    found = await views.bisections_by_id(upstream, ids) if ids else {}
    return {key: _describe(view) for key, view in found.items()}


def _describe(view: BisectionView) -> BreakageBisection:
    return BreakageBisection(view.id, describe_briefly(view), view.state is BisectionState.RUNNING)


def _read_backend(filters: ListFilters) -> RepoName | None:
    name = filters.text("backend")
    if name is not None and not is_repo_name(name):
        filters.unclear["backend"] = "give owner/repo"
        return None
    return RepoName(name) if name else None


async def _read_page(views: SqlViews, query: BisectionQuery, filters: ListFilters) -> BisectionPage:
    """A backend that is not listed, or hidden, has no bisections."""
    try:
        return await views.bisections(query)
    except NotFound:
        filters.unclear["backend"] = "there is no such backend"
        return BisectionPage((), None, (await views.changes(None, 1)).newest)


def _estimate_runs(detail: BisectionDetail) -> int:
    """How many more runs a running bisection needs if each tells something."""
    ends = (detail.commits[0], CommitFinding.GOOD), (detail.commits[-1], CommitFinding.BAD)
    untested = sum(commit.finding is not finding for commit, finding in ends)
    return untested + ceil(log2(max(1, detail.bisection.left)))
