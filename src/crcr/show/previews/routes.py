"""`/og/….png`: the pictures of previews.

They are read by strangers' programs, so they pass the same queue as pages, are kept like pages, and are drawn outside of the event
loop, once for their content. A hidden backend has none, as an unlisted one.
"""

import re
from asyncio import to_thread

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.model import RepoName, is_repo_name
from crcr.decide.views.failures import FailureQuery
from crcr.errors import NotFound
from crcr.show.pages.frame import Build, Frame
from crcr.show.previews import preview as previews
from crcr.show.previews.preview import Preview
from crcr.show.previews.tags import can_draw
from crcr.show.urls.location import PageLocation, whole_sha

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_HEADERS = {
    "Content-Type": "image/png",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "public, max-age=60, stale-while-revalidate=60",
}
_GROUPS = 50


def routes(frame: Frame) -> list[BaseRoute]:
    pictures = PictureRoutes(frame)
    builds: dict[str, Build] = {
        "/og/summary.png": pictures.summary,
        "/og/failures.png": pictures.failures,
        "/og/failures/{fingerprint}.png": pictures.group,
        "/og/pr/{number}.png": pictures.pull,
        "/og/commit/{sha}.png": pictures.commit,
        "/og/backend/{org}/{repo}.png": pictures.backend,
    }
    return [Route(path, frame.endpoint(build)) for path, build in builds.items()]


class PictureRoutes:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def summary(self, request: Request, location: PageLocation) -> Response:
        views, now = self._frame.views(request), self._frame.clock.now()
        summary = await views.summary(
            location.upstream, location.span, now, kind=location.kind, pick=lambda _: ()
        )
        return await self._respond(previews.preview_summary(summary))

    async def backend(self, request: Request, location: PageLocation) -> Response:
        name = "{org}/{repo}".format(**request.path_params)
        if not is_repo_name(name):
            raise NotFound(f"{name[:150]} is not the name of a repository")
        views, now = self._frame.views(request), self._frame.clock.now()
        backend = await views.backend_summary(
            location.upstream, RepoName(name), location.kind, location.span, now
        )
        return await self._respond(previews.preview_backend(location.upstream, backend, location.span.value))

    async def pull(self, request: Request, location: PageLocation) -> Response:
        number = request.path_params["number"]
        if not _NUMBER.fullmatch(number):
            raise NotFound(f"{number[:50]} is not the number of a pull request")
        views, now = self._frame.views(request), self._frame.clock.now()
        pull = await views.pull(location.upstream, int(number), now)
        return await self._respond(previews.preview_pull(pull))

    async def commit(self, request: Request, location: PageLocation) -> Response:
        sha = whole_sha(request.path_params["sha"])
        delivery = request.query_params.get("delivery", "")[:200] or None
        views, now = self._frame.views(request), self._frame.clock.now()
        commit = await views.commit(location.upstream, sha, now, delivery=delivery)
        return await self._respond(previews.preview_commit(commit))

    async def failures(self, request: Request, location: PageLocation) -> Response:
        query = FailureQuery(upstream=location.upstream, limit=_GROUPS)
        page = await self._frame.views(request).failures(query, self._frame.clock.now())
        return await self._respond(previews.preview_failures(location.upstream, page))

    async def group(self, request: Request, location: PageLocation) -> Response:
        fingerprint = request.path_params["fingerprint"].lower()
        if not _FINGERPRINT.fullmatch(fingerprint):
            raise NotFound(f"{fingerprint[:50]} is not the fingerprint of a failure")
        views, now = self._frame.views(request), self._frame.clock.now()
        page = await views.failure_group(location.upstream, fingerprint, now, after=None, limit=1)
        return await self._respond(previews.preview_group(location.upstream, page))

    async def _respond(self, preview: Preview) -> Response:
        if not self._frame.is_public:
            raise NotFound("only a public dashboard has previews")
        if not can_draw():
            raise NotFound("this relay draws no pictures", hint="its operator can install crcr[previews]")
        from crcr.show.previews.picture import draw_picture  # noqa: PLC0415  an optional extra

        return Response(await to_thread(draw_picture, preview), headers=_HEADERS)
