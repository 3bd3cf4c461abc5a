"""The page of continuously failing jobs, `/crcr/failing`: of the base branch, or with `?kind=nightly` of the nights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.failing import FailingKind, FailingQuery, FailingSort
from crcr.show.pages.frame import Frame
from crcr.show.urls import cursors
from crcr.show.urls.filters import ListFilters
from crcr.show.urls.location import PageLinks, PageLocation, data_links
from crcr.show.urls.sorting import SortOrder

_PAGE = 50
_FIELDS = ("backend", "q", "known", "branch")
_KNOWN = {"yes": "true", "no": "false"}
"""The words of the field `known`, and of the API's parameter."""
_HIGH_FIRST = frozenset({FailingSort.FAILURES, FailingSort.LAST})
"""Columns whose first click sorts the highest first."""
_SORTS = tuple(f"{sign}{sort}" for sort in FailingSort for sign in ("", "-"))


def routes(frame: Frame) -> list[BaseRoute]:
    return [Route("/crcr/failing", frame.endpoint(FailingPages(frame).failing))]


@dataclass(frozen=True, slots=True)
class FailingChoice:
    """Order and filters of the table, for the heads of its columns."""

    order: SortOrder
    filters: Mapping[str, str]

    @property
    def kept(self) -> dict[str, str]:
        return {name: value for name, value in self.filters.items() if name != "after"}

    def sorted_by(self, column: str) -> dict[str, str]:
        down = not self.order.down if column == self.order.column else column in _HIGH_FIRST
        return {**self.kept, "sort": f"-{column}" if down else column}


class FailingPages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def failing(self, request: Request, location: PageLocation) -> Response:
        kind = FailingKind.NIGHTLY if location.kind is ResultKind.NIGHTLY else FailingKind.PUSH
        filters = ListFilters(request, *_FIELDS, sort=_SORTS)
        sort = filters.text("sort") or FailingSort.SINCE.value
        known = filters.choice(_KNOWN, "known")
        query = FailingQuery(
            upstream=location.upstream,
            kind=kind,
            branch=filters.text("branch"),
            backend=filters.text("backend"),
            text=filters.text("q"),
            known=known == "yes" if known else None,
            sort=FailingSort(sort.removeprefix("-")),
            down=sort.startswith("-"),
            after=cursors.decode(filters.text("after")),
            limit=_PAGE,
        )
        page = await self._frame.views(request).failing(query, self._frame.clock.now())
        chosen = filters.understood
        of_results = replace(location, kind=ResultKind(kind.value))
        exported = {**chosen, **({"known": _KNOWN[known]} if known else {})}
        return self._frame.page(
            request,
            "failing.html",
            location,
            cursor=page.cursor,
            page=page,
            kind=kind,
            result_kinds=ResultKind,
            result_location=of_results,
            choice=FailingChoice(SortOrder(query.sort.value, query.down), chosen),
            links=PageLinks(location, chosen),
            chosen=filters.values,
            unclear=filters.unclear,
            filtered=bool(chosen.keys() & set(_FIELDS)),
            limit=_PAGE,
            next_after=cursors.encode(page.next),
            formats=data_links(of_results, "failing", exported),
        )
