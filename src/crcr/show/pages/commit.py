"""The pages of a pull request and of a commit: gate, shared failures, every backend, and job details on demand."""

import re

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from crcr.decide.views.search import HitKind, SearchQuery
from crcr.errors import NotFound
from crcr.show.pages.frame import Frame
from crcr.show.pages.job_panel import shared_panel, wants_panel_only
from crcr.show.previews.preview import preview_commit, preview_pull
from crcr.show.previews.tags import make_tags
from crcr.show.urls.location import PageLinks, PageLocation, data_links, whole_sha

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_SOME_DIGITS = re.compile(r"[0-9a-f]{7,39}")
"""A shortened SHA, long enough for the search."""


def routes(frame: Frame) -> list[BaseRoute]:
    pages = CommitPages(frame)
    return [
        Route("/crcr/pr/{number}", frame.endpoint(pages.pull)),
        Route("/crcr/commit/{sha}", frame.endpoint(pages.commit)),
    ]


class CommitPages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def pull(self, request: Request, location: PageLocation) -> Response:
        number = request.path_params["number"]
        if not _NUMBER.fullmatch(number):
            raise NotFound(f"{number[:50]} is not the number of a pull request")
        links = PageLinks(
            location, {"older": "1"} if request.query_params.get("older") == "1" else {}, shared=True
        )
        panel = await shared_panel(self._frame, request, links)
        if panel and wants_panel_only(request):
            return self._frame.page(request, "job_panel.html", location, panel=panel)
        pull = await self._frame.views(request).pull(location.upstream, int(number), self._frame.clock.now())
        return self._frame.page(
            request,
            "pull.html",
            location,
            cursor=pull.cursor,
            number=pull.number,
            pull=pull,
            preview=make_tags(self._frame, location, preview_pull(pull), f"pr/{pull.number}"),
            feed=location.with_defaults().url(f"/crcr/pr/{pull.number}/feed.atom"),
            links=links,
            panel=panel,
            formats=data_links(location, f"pulls/{pull.number}"),
        )

    async def commit(self, request: Request, location: PageLocation) -> Response:
        requested = request.path_params["sha"]
        if _SOME_DIGITS.fullmatch(requested.lower()):
            return RedirectResponse(
                await self._find_commit_url(request, location, requested.lower()), status_code=303
            )
        sha = whole_sha(requested)
        delivery = request.query_params.get("delivery", "")[:200] or None
        links = PageLinks(location, {"delivery": delivery} if delivery else {}, shared=True)
        panel = await shared_panel(self._frame, request, links)
        if panel and wants_panel_only(request):
            return self._frame.page(request, "job_panel.html", location, panel=panel)
        views, now = self._frame.views(request), self._frame.clock.now()
        commit = await views.commit(location.upstream, sha, now, delivery=delivery)
        return self._frame.page(
            request,
            "commit.html",
            location,
            cursor=commit.cursor,
            commit=commit,
            preview=make_tags(self._frame, location, preview_commit(commit), f"commit/{sha}", **links.kept),
            links=links,
            panel=panel,
            formats=data_links(location, f"commits/{sha}", links.kept),
        )

    async def _find_commit_url(self, request: Request, location: PageLocation, digits: str) -> str:
        """Return the address of the one commit that begins with these digits, or of the search where there are several."""
        query = SearchQuery(upstream=location.upstream, text=digits, kind=HitKind.COMMIT)
        results = await self._frame.views(request).search(query, self._frame.clock.now())
        commits = [hit.head_sha for hit in results.hits if hit.kind is HitKind.COMMIT]
        if not commits:
            hint = "the relay knows commits that were pushed, proposed or tested since it was started; check the digits"
            raise NotFound(f"no known commit of {location.upstream} begins with {digits}", hint=hint)
        if len(commits) > 1:
            return location.url("/crcr/search", q=digits)
        return location.url(f"/crcr/commit/{commits[0]}")
