"""The sandbox's page: what repositories on no allowlist tried out, marked as what it is. Where it is off, it says so."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.model import RepoName, is_repo_name
from crcr.decide.statistics.figures import LastResult, count_as
from crcr.decide.views.joining import SandboxJob, SandboxQuery
from crcr.show.pages.frame import Frame
from crcr.show.pages.onboarding import Welcome
from crcr.show.pages.sandbox_trial import is_simulated, try_command
from crcr.show.render.status import Status, job_status
from crcr.show.urls import cursors
from crcr.show.urls.filters import Wishes
from crcr.show.urls.links import Links, formats
from crcr.show.urls.location import Here

PAGE = 50


def routes(frame: Frame, welcome: Welcome | None = None) -> list[BaseRoute]:
    audience = (welcome or Welcome()).audience

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
            command=_command(here, chosen.get("repository", ""), frame.site, audience),
            simulated=is_simulated(here.github_url),
        )

    return [Route("/crcr/sandbox", frame.endpoint(sandbox))]


def _command(here: Here, asked: str, site: str, audience: str) -> str:
    repository = RepoName(asked) if is_repo_name(asked) else None
    return try_command(
        repository, f"{site}/github/callback", audience, here.upstream, github_url=here.github_url
    )


def _look(job: SandboxJob) -> Status:
    counted = count_as(job.state, job.conclusion)
    return job_status(LastResult(job.state, job.conclusion, job.job_name or "", job.reported_at, counted))
