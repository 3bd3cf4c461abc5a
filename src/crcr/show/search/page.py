"""`/crcr/search`: results by kind, each kind with pages of its own; one exact match leads to its page at once."""

from itertools import groupby

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from crcr.decide.views.search import FurtherHits, HitKind, SearchQuery
from crcr.show.pages.frame import Frame
from crcr.show.search.hits import hit_chips, hit_url
from crcr.show.urls import cursors
from crcr.show.urls.location import PageLinks, PageLocation, data_links

_LONGEST = 200
_WORDS = {
    HitKind.PULL: "Pull requests",
    HitKind.COMMIT: "Commits",
    HitKind.AUTHOR: "Pull requests by this author",
    HitKind.BACKEND: "Backends",
    HitKind.JOB: "Jobs of the last 30 days",
    HitKind.TEST: "Failed tests of the last 14 days",
    HitKind.FAILURE: "Failure messages of the last 14 days",
}


def routes(frame: Frame) -> list[BaseRoute]:
    async def page(request: Request, location: PageLocation) -> Response:
        return await show_results(frame, request, location)

    return [Route("/crcr/search", frame.endpoint(page))]


async def show_results(frame: Frame, request: Request, location: PageLocation) -> Response:
    query = _read_query(request, location)
    results = await frame.views(request).search(query, frame.clock.now())
    if results.exact is not None:
        return RedirectResponse(hit_url(location, results.exact) or location.url("/crcr"), status_code=303)
    groups = [(kind, list(hits)) for kind, hits in groupby(results.hits, lambda hit: hit.kind)]
    kept = {"q": results.text, **({"type": query.kind.value} if query.kind else {})}
    return frame.page(
        request,
        "search.html",
        location,
        results=results,
        groups=groups,
        words=_WORDS,
        kind=query.kind,
        is_first_page=query.after is None,
        hit_url=lambda hit: hit_url(location, hit),
        hit_chips=hit_chips,
        more={page.kind: _more_link(location, results.text, page) for page in results.more},
        links=PageLinks(location, kept if results.text else {}),
        next_after=cursors.encode(results.next) if query.kind else None,
        formats=data_links(location, "search", kept) if results.text else {},
    )


def _read_query(request: Request, location: PageLocation) -> SearchQuery:
    """A cursor without a type is one of an author's pull requests."""
    parameters = request.query_params
    after = cursors.decode(parameters.get("after") or None)
    kind = next((kind for kind in HitKind if kind.value == parameters.get("type")), None)
    return SearchQuery(
        upstream=location.upstream,
        text=parameters.get("q", "")[:_LONGEST],
        kind=kind or (HitKind.AUTHOR if after is not None else None),
        after=after,
    )


def _more_link(location: PageLocation, text: str, page: FurtherHits) -> str:
    cursor = cursors.encode(page.next) or ""
    return location.url("/crcr/search", q=text, type=page.kind.value, after=cursor)
