"""The feeds: `/crcr/{org}/{repo}/feed.atom` and `/crcr/pr/{number}/feed.atom`.

They follow the rules of the pages: who may read them, which backends they show, and how they are kept.
"""

import re
from collections.abc import Callable, Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.feeds.backend_results import BackendFeed, EventResult, ResultNews
from crcr.decide.model import RepoName, is_repo_name
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.commit import CommitBackend, GateShown, MomentKind, PullView
from crcr.errors import NotFound
from crcr.show.feeds.atom import MEDIA_TYPE, Feed, FeedEntry, write_feed
from crcr.show.pages.frame import Frame
from crcr.show.render import status
from crcr.show.urls.location import PageLocation, is_sha

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_HEADERS = {
    "Content-Type": f"{MEDIA_TYPE}; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "no-cache",
}
_TOLD_GATES = frozenset({GateShown.FAILED, GateShown.PENDING, GateShown.PASSED})
_MOST_NAMED = 5
"""Failed jobs that an entry names."""


def routes(frame: Frame) -> list[BaseRoute]:
    feeds = Feeds(frame)
    return [
        Route("/crcr/pr/{number}/feed.atom", frame.endpoint(feeds.pull)),
        Route("/crcr/{org}/{repo}/feed.atom", frame.endpoint(feeds.backend)),
    ]


class Feeds:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def backend(self, request: Request, location: PageLocation) -> Response:
        name = "{org}/{repo}".format(**request.path_params)
        if not is_repo_name(name):
            raise NotFound(f"{name[:150]} is not the name of a repository")
        views, now = self._frame.views(request), self._frame.clock.now()
        feed = await views.backend_feed(location.upstream, RepoName(name), now)
        return self._respond(make_backend_feed(feed, _Links(self._frame.site, location)))

    async def pull(self, request: Request, location: PageLocation) -> Response:
        number = request.path_params["number"]
        if not _NUMBER.fullmatch(number):
            raise NotFound(f"{number[:50]} is not the number of a pull request")
        views, now = self._frame.views(request), self._frame.clock.now()
        pull = await views.pull(location.upstream, int(number), now)
        return self._respond(make_pull_feed(pull, _Links(self._frame.site, location)))

    def _respond(self, feed: Feed) -> Response:
        return Response(write_feed(feed, self._frame.site), headers=_HEADERS)


class _Links:
    """Absolute addresses: a feed is read elsewhere."""

    def __init__(self, site: str, location: PageLocation) -> None:
        self._site = site
        self.location = location.with_defaults()

    def __call__(self, make: Callable[[PageLocation], str]) -> str:
        return f"{self._site}{make(self.location)}"


def make_backend_feed(feed: BackendFeed, link: _Links) -> Feed:
    name = feed.backend.full_name
    page = link(lambda location: location.backend(feed.backend))
    silent = []
    if feed.silent_since is not None:
        silent.append(
            FeedEntry(
                key=("silent", feed.silent_since.isoformat()),
                title=f"{name} is silent",
                at=feed.silent_since,
                url=page,
                summary="Dispatches were sent and not answered.",
                category="silent",
            )
        )
    return Feed(
        key=("backends", feed.upstream.key, feed.backend.key),
        title=f"{name} · results for {feed.upstream}",
        url=page,
        own_url=link(lambda location: location.url(f"/crcr/{name}/feed.atom")),
        entries=[*silent, *(_result_entry(feed, result, link) for result in feed.results)],
    )


def _result_entry(feed: BackendFeed, result: EventResult, link: _Links) -> FeedEntry:
    news = result.news or ResultNews.INCONCLUSIVE
    return FeedEntry(
        key=("results", result.event, result.key),
        title=f"{feed.backend} {news.value}: {_describe_event(result)}",
        at=result.at,
        url=link(lambda location: _result_url(location, feed.backend, result)),
        summary=_describe_jobs(result),
        category=news.value.replace(" ", "-"),
    )


def _result_url(location: PageLocation, backend: RepoName, result: EventResult) -> str:
    if result.number is not None:
        return location.pull(result.number)
    if is_sha(result.head_sha):
        return location.commit(result.head_sha or "", result.delivery or None)
    return location.with_kind(ResultKind.NIGHTLY, path=f"/crcr/{backend}")


def _describe_event(result: EventResult) -> str:
    commit = (result.head_sha or "")[:8]
    if result.number is not None:
        return f"#{result.number} {result.title or ''}".strip()
    ref = (result.ref or "").removeprefix("refs/heads/").removeprefix("refs/tags/")
    return " ".join(filter(None, [ref or result.event.replace("_", " "), commit and f"at {commit}"]))


def _describe_jobs(result: EventResult) -> str:
    counts = [
        f"{number:,} {word}"
        for number, word in (
            *((result.failed, "failed"), (result.passed, "passed")),
            *((result.other, "inconclusive"), (result.running, "running")),
        )
        if number
    ]
    failed = f" First failed job by name: {result.first_failed}." if result.first_failed else ""
    return f"Jobs: {', '.join(counts)}.{failed}"


def make_pull_feed(pull: PullView, link: _Links) -> Feed:
    page = link(lambda location: location.pull(pull.number))
    return Feed(
        key=("pulls", pull.upstream.key, str(pull.number)),
        title=f"#{pull.number} {pull.title} · {pull.upstream}",
        url=page,
        own_url=link(lambda location: location.url(f"/crcr/pr/{pull.number}/feed.atom")),
        entries=[*_gate_entries(pull, page), *_backend_entries(pull, page), *_end_entries(pull, page)],
    )


def _gate_entries(pull: PullView, page: str) -> Iterator[FeedEntry]:
    gate = pull.gate
    if gate is not None and gate.state in _TOLD_GATES:
        word = status.GATES[gate.state].word
        yield FeedEntry(
            key=("gate", pull.head_sha, gate.state.value),
            title=f"Gate {word}: #{pull.number} {pull.title}",
            at=gate.decided_at or gate.judged_at,
            url=page,
            summary=gate.title or f"The gate of {pull.head_sha[:8]} is {word}.",
            category=f"gate-{gate.state.value}",
        )


def _backend_entries(pull: PullView, page: str) -> Iterator[FeedEntry]:
    for backend in (*pull.backends, *pull.after_closing):
        at = backend.spell.ended_at or backend.spell.failed_at
        if at is not None:
            yield FeedEntry(
                key=("results", backend.delivery, backend.name.key),
                title=f"{backend.name} {status.BACKENDS[backend.state].word}: #{pull.number} {pull.title}",
                at=at,
                url=page,
                summary=_describe_backend(backend),
                category=backend.state.value.replace(" ", "-").replace(",", ""),
            )


def _describe_backend(backend: CommitBackend) -> str:
    failed = [job for job in backend.jobs if job.counted is CountedAs.FAILURE]
    names = ", ".join(job.job_name for job in failed[:_MOST_NAMED])
    more = f" and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
    verdicts = sorted({job.verdict.kind.value for job in failed if job.verdict})
    parts = [f"{backend.level.name}, {len(backend.jobs) + backend.jobs_left_out:,} jobs."]
    if failed:
        parts.append(f"Failed: {names}{more}.")
    if verdicts:
        parts.append(f"Verdict: {', '.join(verdicts)}.")
    return " ".join(parts)


def _end_entries(pull: PullView, page: str) -> Iterator[FeedEntry]:
    for moment in pull.timeline:
        if moment.kind in {MomentKind.CLOSED, MomentKind.MERGED} and moment.arrival is not None:
            yield FeedEntry(
                key=("ended", moment.arrival.guid),
                title=f"#{pull.number} {moment.kind.value}: {pull.title}",
                at=moment.at,
                url=page,
                summary=f"By {pull.author}.",
                category=moment.kind.value,
            )
