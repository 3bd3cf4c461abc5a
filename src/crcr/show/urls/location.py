"""The location of a page (upstream, range, kind) and the links that keep it and the reader's choices."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, quote, urlencode

from crcr.decide.model import RepoName
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.overview import JobView
from crcr.errors import NotFound
from crcr.show.urls.job_tokens import job_token


def pick_upstream(upstreams: tuple[RepoName, ...], asked: str | None) -> RepoName:
    """The upstream that was asked for; without a wish the first."""
    if not asked:
        return upstreams[0]
    for upstream in upstreams:
        if upstream.key == asked.lower():
            return upstream
    raise NotFound(
        f"this relay serves no upstream {asked[:100]!r}", hint=f"it serves {', '.join(map(str, upstreams))}"
    )


def pick_span(asked: str | None) -> Span:
    """A page always has a range: what is not one is the default."""
    return next((span for span in Span if span.value == asked), Span.FORTNIGHT)


def pick_kind(asked: str | None) -> ResultKind:
    """Pull requests, unless one of the other kinds was asked for."""
    return next((kind for kind in ResultKind if kind.value == asked), ResultKind.PULLS)


_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def is_sha(text: str | None) -> bool:
    """Whether it is all of a commit's name, as GitHub writes it."""
    return text is not None and _SHA.fullmatch(text) is not None


def whole_sha(text: str) -> str:
    """Return a commit's name in small letters; what cannot be one names nothing."""
    if not is_sha(sha := text.lower()):
        hint = "give all 40 digits; the search finds a commit by its first 7"
        raise NotFound(f"{text[:50]} is not the whole SHA of a commit", hint=hint)
    return sha


@dataclass(frozen=True, slots=True)
class PageLocation:
    upstreams: tuple[RepoName, ...]
    upstream: RepoName
    span: Span
    path: str
    github_url: str
    kind: ResultKind = ResultKind.PULLS

    def url(self, path: str | None = None, **more: str) -> str:
        """A link within the site that keeps upstream, range and kind; defaults are left out."""
        kept = {**more, **self.kept()}
        target = quote(path or self.path, safe="/")
        return f"{target}?{urlencode(kept, safe='/')}" if kept else target

    def kept(self) -> dict[str, str]:
        """What every link and form takes along."""
        kept = {}
        if self.upstream != self.upstreams[0]:
            kept["upstream"] = self.upstream.full_name
        if self.span is not Span.FORTNIGHT:
            kept["range"] = self.span.value
        if self.kind is not ResultKind.PULLS:
            kept["kind"] = self.kind.value
        return kept

    def over(self, span: Span, **more: str) -> str:
        return replace(self, span=span).url(**more)

    def about(self, kind: ResultKind, **more: str) -> str:
        return replace(self, kind=kind).url(**more)

    def of(self, upstream: RepoName) -> str:
        return replace(self, upstream=upstream).url("/crcr")

    def backend(self, name: RepoName) -> str:
        return self.url(f"/crcr/{name}")

    def pull(self, number: int) -> str:
        return self.url(f"/crcr/pr/{number}")

    def commit(self, sha: str, delivery: str | None = None) -> str:
        """`delivery` finds a commit that is neither new nor the head of anything open."""
        return self.url(f"/crcr/commit/{sha}", **({"delivery": delivery} if delivery else {}))

    def repository(self, name: RepoName) -> str:
        return f"{self.github_url}/{name}"

    def github_pull(self, number: int) -> str:
        return f"{self.github_url}/{self.upstream}/pull/{number}"

    def github_commit(self, sha: str) -> str:
        return f"{self.github_url}/{self.upstream}/commit/{quote(sha, safe='')}"

    @property
    def events(self) -> str:
        return f"/api/v1/events?{urlencode({'upstream': self.upstream.full_name}, safe='/')}"


JOB = "job"
"""Which job's details are open."""


def data_links(
    location: PageLocation, api: str, chosen: Mapping[str, str] | None = None, *, csv: str = ""
) -> dict[str, str]:
    """Where the same view is to be had as data, from its beginning on; `csv` where it has another name there."""
    kept = {name: value for name, value in (chosen or {}).items() if name != "after"}
    return {
        "JSON": location.url(f"/api/v1/{api}", **kept),
        "CSV": location.url(f"/api/v1/{csv or api}.csv", **kept),
    }


@dataclass(frozen=True, slots=True)
class PageLinks:
    location: PageLocation
    kept: Mapping[str, str]
    shared: bool = False
    """Whether jobs of several backends stand on the page, so that a job's link must name its own."""

    def url(self, **changes: str | None) -> str:
        """The page with some choices changed; None takes one back."""
        chosen = {**self.kept, **changes}
        return self.location.url(**{name: value for name, value in chosen.items() if value})

    def query(self, **changes: str | None) -> str:
        """The same as `url` without the path, to be short where there are thousands of them."""
        return f"?{self.url(**changes).partition('?')[2]}"

    def job(self, job: JobView) -> str | None:
        """The page with this job's details open."""
        token = job_token(job, shared=self.shared)
        return self.query(**{JOB: token}) if token else None

    def before(self, name: str) -> str:
        """What stands before the value of one choice in a link, where many links differ in that one only."""
        kept = self.query(**{name: None})
        return f"{kept}&{name}=" if kept != "?" else f"?{name}="

    def fields(self, *shown: str) -> tuple[tuple[str, str], ...]:
        """Hidden fields for a form that shows the fields `shown` itself."""
        left_out = {*shown, JOB, "after"}
        url = self.url(**dict.fromkeys(left_out))
        return tuple(parse_qsl(url.partition("?")[2], keep_blank_values=True))
