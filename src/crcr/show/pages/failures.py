"""The pages of failures: the open groups, and one group with its failures."""

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.views.backend import JobKey
from crcr.decide.views.culprits import CulpritQuery, JobCulprits
from crcr.decide.views.failures import FailureQuery, GroupMember, KnownFilter
from crcr.errors import NotFound
from crcr.show.pages.bisections import read_breakage_bisections
from crcr.show.pages.frame import Frame
from crcr.show.pages.job_panel import shared_panel, wants_panel_only
from crcr.show.previews.preview import preview_failures, preview_group
from crcr.show.previews.tags import make_tags
from crcr.show.urls import cursors
from crcr.show.urls.filters import ListFilters
from crcr.show.urls.job_tokens import encode_job_token
from crcr.show.urls.location import JOB, PageLinks, PageLocation, data_links

_PAGE = 50
_MOST_BROKEN = 10
"""Jobs whose culprits are shown."""
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


def routes(frame: Frame) -> list[BaseRoute]:
    pages = FailurePages(frame)
    return [
        Route("/crcr/failures", frame.endpoint(pages.open_groups)),
        Route("/crcr/failures/{fingerprint}", frame.endpoint(pages.group)),
    ]


class FailurePages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def open_groups(self, request: Request, location: PageLocation) -> Response:
        filters = ListFilters(request, "backend", "q", "known")
        query = FailureQuery(
            upstream=location.upstream,
            backend=filters.text("backend"),
            text=filters.text("q"),
            known=filters.one_of(KnownFilter, "known"),
            after=cursors.decode(filters.text("after")),
            limit=_PAGE,
        )
        page = await self._frame.views(request).failures(query, self._frame.clock.now())
        chosen = filters.understood
        return self._frame.page(
            request,
            "failures.html",
            location,
            cursor=page.cursor,
            page=page,
            preview=make_tags(self._frame, location, preview_failures(location.upstream, page), "failures"),
            links=PageLinks(location, chosen),
            chosen=filters.values,
            unclear=filters.unclear,
            filtered=bool(chosen.keys() - {"after"}),
            limit=_PAGE,
            next_after=cursors.encode(page.next),
            formats=data_links(location, "failures", chosen),
        )

    async def group(self, request: Request, location: PageLocation) -> Response:
        fingerprint = request.path_params["fingerprint"].lower()
        if not _FINGERPRINT.fullmatch(fingerprint):
            raise NotFound(f"{fingerprint[:50]} is not the fingerprint of a failure")
        after = request.query_params.get("after") or None
        links = PageLinks(location, {"after": after} if after else {}, shared=True)
        panel = await shared_panel(self._frame, request, links)
        if panel and wants_panel_only(request):
            return self._frame.page(request, "job_panel.html", location, panel=panel)
        views = self._frame.views(request)
        page = await views.failure_group(
            location.upstream,
            fingerprint,
            self._frame.clock.now(),
            after=cursors.decode(after),
            limit=_PAGE,
        )
        breakages: tuple[JobCulprits, ...] = ()
        if page.is_open and after is None:
            culprits = CulpritQuery(upstream=location.upstream, fingerprint=fingerprint, limit=_MOST_BROKEN)
            breakages = await views.culprits(culprits, self._frame.clock.now())
        return self._frame.page(
            request,
            "failure_group.html",
            location,
            cursor=page.cursor,
            page=page,
            group=page.group,
            preview=make_tags(
                self._frame,
                location,
                preview_group(location.upstream, page),
                f"failures/{fingerprint}",
            ),
            breakages=breakages,
            bisections=await read_breakage_bisections(views, location.upstream, breakages),
            links=links,
            job_link=lambda member: _job_link(links, member),
            chosen={"after": after} if after else {},
            limit=_PAGE,
            next_after=cursors.encode(page.next),
            panel=panel,
            formats=data_links(location, f"failures/{fingerprint}"),
        )


def _job_link(links: PageLinks, member: GroupMember) -> str | None:
    """The page with this job's details open."""
    key = JobKey(
        delivery=member.delivery,
        workflow=member.workflow,
        run_id=member.run_id,
        attempt=member.attempt,
        job_name=member.job_name,
    )
    token = encode_job_token(key, member.downstream)
    return links.query(**{JOB: token}) if token else None
