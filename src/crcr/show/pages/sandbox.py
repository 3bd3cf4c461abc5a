"""The sandbox page, and the command by which an unlisted repository tries its workflow.

The command sends the repository a test dispatch (`crcr_test`), as the relay would: the workflow of `crcr init` runs
without its build and reports to the relay, which keeps the report in the sandbox. Anybody with write access to the
repository can send it with `gh`.
"""

import json
import shlex
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.model import TEST_EVENT, RepoName, is_repo_name
from crcr.decide.statistics.figures import LastResult, count_as
from crcr.decide.views.joining import SandboxJob, SandboxQuery
from crcr.show.pages.frame import Frame
from crcr.show.render.status import Status, job_status
from crcr.show.urls import cursors
from crcr.show.urls.filters import ListFilters
from crcr.show.urls.location import PageLinks, PageLocation, data_links

PAGE = 50


def routes(frame: Frame, audience: str = "crcr") -> list[BaseRoute]:
    async def sandbox(request: Request, location: PageLocation) -> Response:
        filters = ListFilters(request, "repository")
        query = SandboxQuery(
            repository=filters.text("repository"), after=cursors.decode(filters.text("after")), limit=PAGE
        )
        page = await frame.views(request).sandbox(query, frame.clock.now())
        chosen = filters.understood
        return frame.page(
            request,
            "sandbox.html",
            location,
            page=page,
            links=PageLinks(location, chosen),
            chosen=chosen,
            filtered="repository" in chosen,
            limit=PAGE,
            next_after=cursors.encode(page.next),
            formats=data_links(location, "sandbox", chosen),
            look=_job_status,
            command=_command(location, chosen.get("repository", ""), frame.site, audience),
            simulated=is_simulated(location.github_url),
        )

    return [Route("/crcr/sandbox", frame.endpoint(sandbox))]


def _command(location: PageLocation, repository_name: str, site: str, audience: str) -> str:
    repository = RepoName(repository_name) if is_repo_name(repository_name) else None
    return try_command(
        repository, f"{site}/github/callback", audience, location.upstream, github_url=location.github_url
    )


def _job_status(job: SandboxJob) -> Status:
    outcome = count_as(job.state, job.conclusion)
    return job_status(LastResult(job.state, job.conclusion, job.job_name or "", job.reported_at, outcome))


DELIVERY = "sandbox-trial"
"""Any text will do: the sandbox does not check the delivery."""
_THIS_CHECKOUT = "{owner}/{repo}"
"""`gh` fills this in from the checkout that it runs in."""

_THIS_MACHINE = frozenset({"127.0.0.1", "localhost", "::1"})


def trial(callback_url: str, audience: str, upstream: RepoName) -> dict[str, Any]:
    """Body of the `repository_dispatch`, in the shape of the relay's own."""
    relay = {"callback_url": callback_url, "audience": audience, "upstream": str(upstream)}
    return {
        "event_type": TEST_EVENT,
        "client_payload": {"delivery_id": DELIVERY, "event_type": TEST_EVENT, "relay": relay},
    }


def is_simulated(github_url: str) -> bool:
    """Whether this is the demo's GitHub, which `gh` cannot call."""
    return urlsplit(github_url).hostname in _THIS_MACHINE


def try_command(
    repository: RepoName | None,
    callback_url: str,
    audience: str,
    upstream: RepoName,
    *,
    github_url: str = "https://github.com",
) -> str:
    """Return the command that a maintainer runs; without a repository, in a checkout of it."""
    if is_simulated(github_url):
        name = str(repository or "me/my-backend")
        return f"{shlex.join(['crcr', 'demo-join', name, '--unlisted', '--github', github_url])}\n"
    body = json.dumps(trial(callback_url, audience, upstream), indent=2)
    arguments = ["gh", "api", f"repos/{repository or _THIS_CHECKOUT}/dispatches"]
    host = urlsplit(github_url).netloc
    arguments += [] if host in ("", "github.com") else ["--hostname", host]
    # The quoted END disables expansion, and no line of the JSON is just END.
    return f"{shlex.join([*arguments, '--input', '-'])} <<'END'\n{body}\nEND\n"
