"""The sandbox's page: what repositories on no allowlist tried out, marked as what it is. Where it is off, it says so."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.numbers import LastResult, count_as
from crcr.decide.views_joining import SandboxJob, SandboxQuery
from crcr.show import cursors
from crcr.show.frame import Frame
from crcr.show.here import Here
from crcr.show.links import Links, formats
from crcr.show.status import Status, job_status
from crcr.show.wishes import Wishes

PAGE = 50


def routes(frame: Frame) -> list[BaseRoute]:
    async def sandbox(request: Request, here: Here) -> Response:
        wishes = Wishes(request, "repository")
        query = SandboxQuery(
            repository=wishes.text("repository"), after=cursors.decode(wishes.text("after")), limit=PAGE
        )
        page = await frame.views(request).sandbox(query, frame.clock.now())
        chosen = wishes.understood
        return frame.page(
            request,
            "sandbox.html",
            here,
            page=page,
            links=Links(here, chosen),
            chosen=chosen,
            filtered="repository" in chosen,
            limit=PAGE,
            next_after=cursors.encode(page.next),
            formats=formats(here, "sandbox", chosen),
            look=_look,
            site=frame.site,
        )

    return [Route("/crcr/sandbox", frame.endpoint(sandbox))]


def _look(job: SandboxJob) -> Status:
    counted = count_as(job.state, job.conclusion)
    return job_status(LastResult(job.state, job.conclusion, job.job_name, job.reported_at, counted))
