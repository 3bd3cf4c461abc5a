"""The grids: `/crcr/pulls`, pull requests by backends, and `/crcr/commits`, the base branch's commits by backends."""

import re
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.model import RepoName, is_repo_name
from crcr.decide.views.grids import CommitListQuery, PullFilter, PullListQuery, PullScope, PullSort
from crcr.show.pages.frame import Frame
from crcr.show.pages.job_panel import requested_token, shared_panel, wants_panel_only
from crcr.show.render.grids import (
    OpenBackends,
    draw_in_tree,
    draw_pull_cells,
    lay_out_commits,
    lay_out_pulls,
)
from crcr.show.urls import cursors
from crcr.show.urls.filters import ListFilters
from crcr.show.urls.location import PageLinks, PageLocation, data_links

_PAGE = 50
_FIELDS = ("q", "author", "only", "state")
_SORTS = tuple(f"{sign}{sort}" for sort in PullSort for sign in ("", "-"))
_DEFAULT_SORT = f"-{PullSort.UPDATED}"
_MOST_OPENED = 20
"""Names in `open` that are looked at."""
_MOST_GROUPS = 200
_GROUP = re.compile(r"[0-9a-f]{10}|all")


def routes(frame: Frame) -> list[BaseRoute]:
    pages = GridPages(frame)
    return [
        Route("/crcr/pulls", frame.endpoint(pages.pulls)),
        Route("/crcr/commits", frame.endpoint(pages.commits)),
    ]


class GridPages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def pulls(self, request: Request, location: PageLocation) -> Response:
        filters = ListFilters(request, *_FIELDS, sort=_SORTS)
        query = _read_pull_query(location.upstream, filters)
        page = await self._frame.views(request).pulls(query)
        chosen = filters.understood
        heads = lay_out_pulls(page.columns, location)
        return self._frame.page(
            request,
            "pulls.html",
            location,
            cursor=page.cursor,
            page=page,
            query=query,
            heads=heads,
            draw_cells=lambda line: draw_pull_cells(line, page.columns, location),
            scopes=PullScope,
            links=PageLinks(location, chosen),
            chosen=filters.values,
            unclear=filters.unclear,
            filtered=query.is_filtered,
            limit=_PAGE,
            next_after=cursors.encode(page.next),
            formats=data_links(location, "pulls", chosen),
        )

    async def commits(self, request: Request, location: PageLocation) -> Response:
        filters = ListFilters(request, "branch")
        backends, groups = _read_opened(request.query_params)
        opened_names = {"open": ",".join(map(str, backends)), "shards": ",".join(sorted(groups))}
        kept = {**filters.understood, **{name: value for name, value in opened_names.items() if value}}
        links = PageLinks(location, kept, shared=True)
        panel = await shared_panel(self._frame, request, links)
        if panel and wants_panel_only(request):
            return self._frame.page(request, "job_panel.html", location, panel=panel)
        query = CommitListQuery(
            upstream=location.upstream,
            branch=filters.text("branch"),
            opened=backends,
            after=cursors.decode(filters.text("after")),
            limit=_PAGE,
        )
        page = await self._frame.views(request).commits(query)
        opened = OpenBackends(backends, groups, links, requested_token(request) or "")
        exported = {name: value for name, value in kept.items() if name == "branch"}
        return self._frame.page(
            request,
            "commits.html",
            location,
            cursor=page.cursor,
            page=page,
            grid=lay_out_commits(page, opened, location),
            has_in_tree=any(line.in_tree for line in page.items),
            draw_in_tree=draw_in_tree,
            links=links,
            chosen=filters.values,
            limit=_PAGE,
            next_after=cursors.encode(page.next),
            panel=panel,
            formats=data_links(location, "commits", exported),
        )


def _read_pull_query(upstream: RepoName, filters: ListFilters) -> PullListQuery:
    sort = filters.text("sort") or _DEFAULT_SORT
    author = (filters.text("author") or "").removeprefix("@")
    return PullListQuery(
        upstream=upstream,
        scope=filters.one_of(PullScope, "state") or PullScope.OPEN,
        only=filters.one_of(PullFilter, "only"),
        author=author or None,
        text=filters.text("q"),
        sort=PullSort(sort.removeprefix("-")),
        down=sort.startswith("-"),
        after=cursors.decode(filters.text("after")),
        limit=_PAGE,
    )


def _read_opened(query: Mapping[str, str]) -> tuple[tuple[RepoName, ...], frozenset[str]]:
    """The open backends and groups of shards; anything that cannot be one is ignored."""
    names = query.get("open", "").split(",")[:_MOST_OPENED]
    backends = dict.fromkeys(RepoName(name) for name in names if is_repo_name(name))
    groups = query.get("shards", "").split(",")[:_MOST_GROUPS]
    return tuple(backends), frozenset(group for group in groups if _GROUP.fullmatch(group))
