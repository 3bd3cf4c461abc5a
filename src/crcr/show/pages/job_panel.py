"""The panel with the details of a job, shown beside a page or alone.

An invalid token, or one of a job that is gone or hidden, gives a panel that says so, never a failed page.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from starlette.requests import Request

from crcr.decide.commands.grammar import HEAD_DIGITS, RetryCommand, format_command
from crcr.decide.jobs.short_address import short_token
from crcr.decide.model import RepoName
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.backend import JobDetail, JobKey
from crcr.decide.views.overview import JobCell
from crcr.errors import NotFound
from crcr.show.pages.frame import Frame
from crcr.show.urls.job_tokens import decode_backend_job, decode_job_key, job_token
from crcr.show.urls.location import JOB, PageLinks, PageLocation, is_sha

MOST_TESTS = 50
_MOST_FACTS = 40


@dataclass(frozen=True, slots=True)
class JobLink:
    """A result of the job, with the address that opens it."""

    job: JobCell
    link: str | None
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    detail: JobDetail | None
    close: str
    """The address of the page without the panel."""
    address: str
    """The full address to share; short where the job has a short one."""
    attempts: tuple[JobLink, ...] = ()
    recent: tuple[JobLink, ...] = ()
    """Oldest first, as they are read."""
    on_base: tuple[JobLink, ...] = ()
    retry: str | None = None
    """The command that runs it again, for a comment on its pull request."""
    environment: tuple[tuple[str, str], ...] = ()
    run_url: str | None = None
    job_url: str | None = None


def requested_token(request: Request) -> str | None:
    return request.query_params.get(JOB) or None


def wants_panel_only(request: Request) -> bool:
    return request.query_params.get("fragment") == "panel"


async def shared_panel(frame: Frame, request: Request, links: PageLinks) -> Panel | None:
    """Return the panel of a page with several backends; None when no job is requested."""
    token = requested_token(request)
    if token is None:
        return None
    key = decode_backend_job(token)
    detail = await read_detail(frame, request, links.location, *key) if key else None
    return make_panel(frame.site, request, links, detail)


async def backend_panel(frame: Frame, request: Request, links: PageLinks, backend: RepoName) -> Panel:
    """Return the panel of a backend's page without reading the page."""
    key = decode_job_key(requested_token(request))
    detail = await read_detail(frame, request, links.location, backend, key) if key else None
    return make_panel(frame.site, request, links, detail)


async def read_detail(
    frame: Frame, request: Request, location: PageLocation, backend: RepoName, key: JobKey
) -> JobDetail | None:
    try:
        return await frame.views(request).job(location.upstream, backend, key)
    except NotFound:
        return None


def make_panel(site: str, request: Request, links: PageLinks, detail: JobDetail | None) -> Panel:
    token = requested_token(request)
    close = links.url(**{JOB: None})
    if detail is None:
        return Panel(detail=None, close=close, address=f"{site}{links.url(**{JOB: token})}")
    run_url, job_url = split_job_url(detail.job.url)
    return Panel(
        detail=detail,
        run_url=run_url,
        job_url=job_url,
        close=close,
        address=f"{site}{short_path(detail, links.location) or links.url(**{JOB: token})}",
        attempts=_make_links(detail.attempts, detail, links),
        recent=_make_links(reversed(detail.recent), detail, links),
        on_base=_make_links(reversed(detail.on_base), detail, links),
        retry=retry_command(detail),
        environment=parse_environment(detail.environment),
    )


_JOB_OF_RUN = re.compile(r"(?P<run>https?://[^?#]+/actions/runs/\d+(?:/attempts/\d+)?)/jobs?/\d+(?:[?#].*)?")


def split_job_url(url: str | None) -> tuple[str | None, str | None]:
    """Split a report's address into run and job: a job's address on GitHub contains its run's; any other is the run's."""
    match = _JOB_OF_RUN.fullmatch(url) if url else None
    return (match["run"], url) if match else (url, None)


def _make_links(jobs: Iterable[JobCell], detail: JobDetail, links: PageLinks) -> tuple[JobLink, ...]:
    shown = job_token(detail.job)
    return tuple(JobLink(job, links.job(job), job_token(job) == shown) for job in jobs)


def short_path(detail: JobDetail, location: PageLocation) -> str | None:
    """The short address of a job within the site; None for one of another relay, which has none."""
    job = detail.job
    if detail.ingested:
        return None
    key = (job.delivery, job.workflow, job.run_id, job.attempt, job.job_name)
    token = short_token(detail.upstream.key, detail.backend.key, key)
    return (
        replace(location, span=Span.FORTNIGHT, kind=ResultKind.PULLS).url(f"/crcr/j/{token}")
        if token
        else None
    )


def retry_command(detail: JobDetail) -> str | None:
    """The command for a failed job of a pull request's newest commit."""
    job = detail.job
    if job.number is None or job.counted is not CountedAs.FAILURE:
        return None
    if detail.superseded or detail.test or detail.ingested:
        return None
    head = job.head_sha[:HEAD_DIGITS] if is_sha(job.head_sha) and job.head_sha else None
    return format_command(RetryCommand(detail.backend, head))


def parse_environment(environment: str | None) -> tuple[tuple[str, str], ...]:
    """Return the environment of a report as names and values; anything but a JSON object is one value without a name."""
    if not environment:
        return ()
    try:
        values = json.loads(environment)
    except (ValueError, RecursionError):
        return (("", environment),)
    if not isinstance(values, dict):
        return (("", environment),)
    pairs = [
        (str(name), value if isinstance(value, str) else json.dumps(value)) for name, value in values.items()
    ]
    more = len(pairs) - _MOST_FACTS
    return (*pairs[:_MOST_FACTS], *([("", f"and {more:,} more")] if more > 0 else []))
