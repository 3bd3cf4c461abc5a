"""The location of a page (upstream, range, kind) and the links that keep it and the reader's choices."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from urllib.parse import parse_qsl, quote, urlencode

from crcr.decide.model import RepoName
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.overview import JobCell
from crcr.errors import NotFound
from crcr.show.urls.job_tokens import job_token


def pick_upstream(upstreams: tuple[RepoName, ...], requested: str | None) -> RepoName:
    """Return the requested upstream; the first by default."""
    if not requested:
        return upstreams[0]
    for upstream in upstreams:
        if upstream.key == requested.lower():
            return upstream
    raise NotFound(
        f"this relay serves no upstream {requested[:100]!r}",
        hint=f"it serves {', '.join(map(str, upstreams))}",
    )


def pick_span(requested: str | None) -> Span:
    """Return the requested range; the default for an invalid one."""
    return next((span for span in Span if span.value == requested), Span.FORTNIGHT)


def pick_kind(requested: str | None) -> ResultKind:
    """Return the requested kind; pull requests by default."""
    return next((kind for kind in ResultKind if kind.value == requested), ResultKind.PULLS)


_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def is_sha(text: str | None) -> bool:
    """Return whether the text is a full SHA, in GitHub's spelling."""
    return text is not None and _SHA.fullmatch(text) is not None


def whole_sha(text: str) -> str:
    """Return a full SHA in lower case; raise `NotFound` for anything else."""
    if not is_sha(sha := text.lower()):
        hint = "give all 40 digits; the search finds a commit by its first 7"
        raise NotFound(f"{text[:50]} is not the whole SHA of a commit", hint=hint)
    return sha


@lru_cache(1_024)
def _quote_path(path: str) -> str:
    """Most links of a page lead to one of a few backends."""
    return quote(path, safe="/")


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
        kept = {**more, **self.kept_parameters()}
        target = _quote_path(path or self.path)
        return f"{target}?{urlencode(kept, safe='/')}" if kept else target

    def kept_parameters(self) -> dict[str, str]:
        """Return the parameters that every link and form keeps."""
        kept = {}
        if self.upstream != self.upstreams[0]:
            kept["upstream"] = self.upstream.full_name
        if self.span is not Span.FORTNIGHT:
            kept["range"] = self.span.value
        if self.kind is not ResultKind.PULLS:
            kept["kind"] = self.kind.value
        return kept

    def with_span(self, span: Span, **more: str) -> str:
        return replace(self, span=span).url(**more)

    def with_kind(self, kind: ResultKind, path: str | None = None, **more: str) -> str:
        return replace(self, kind=kind).url(path, **more)

    def with_defaults(self) -> "PageLocation":
        """The same place without the reader's choice of range and kind."""
        return replace(self, span=Span.FORTNIGHT, kind=ResultKind.PULLS)

    def with_upstream(self, upstream: RepoName) -> str:
        return replace(self, upstream=upstream).url("/crcr")

    def backend(self, name: RepoName) -> str:
        return self.url(f"/crcr/{name}")

    def pull(self, number: int) -> str:
        return self.url(f"/crcr/pr/{number}")

    def commit(self, sha: str, delivery: str | None = None) -> str:
        """`delivery` finds a commit that is neither recent nor the head of an open pull request."""
        return self.url(f"/crcr/commit/{sha}", **({"delivery": delivery} if delivery else {}))

    def repository(self, name: RepoName) -> str:
        return f"{self.github_url}/{name}"

    def github_pull(self, number: int) -> str:
        return f"{self.github_url}/{self.upstream}/pull/{number}"

    def github_pull_of(self, repository: RepoName, number: int) -> str:
        """A pull request of another repository."""
        return f"{self.github_url}/{repository}/pull/{number}"

    def github_commit(self, sha: str) -> str:
        return f"{self.github_url}/{self.upstream}/commit/{quote(sha, safe='')}"

    def github_compare(self, good: str, bad: str) -> str:
        """The commits after one, up to another."""
        return f"{self.github_url}/{self.upstream}/compare/{quote(good, safe='')}...{quote(bad, safe='')}"

    def bisection(self, bisection_id: int) -> str:
        return self.url(f"/crcr/bisections/{bisection_id}")

    @property
    def events(self) -> str:
        return f"/api/v1/events?{urlencode({'upstream': self.upstream.full_name}, safe='/')}"


JOB = "job"
"""The parameter with the token of the open job."""


def data_links(
    location: PageLocation, api: str, chosen: Mapping[str, str] | None = None, *, csv: str = ""
) -> dict[str, str]:
    """Return the addresses of the same view as JSON and CSV, from its first page; `csv` if its name differs there."""
    filters = {name: value for name, value in (chosen or {}).items() if name != "after"}
    return {
        "JSON": location.url(f"/api/v1/{api}", **filters),
        "CSV": location.url(f"/api/v1/{csv or api}.csv", **filters),
    }


@dataclass(frozen=True)  # without slots, for the cached property
class PageLinks:
    location: PageLocation
    kept: Mapping[str, str]
    shared: bool = False
    """Whether the page shows jobs of several backends, so that a job's link must name its backend."""

    def url(self, **changes: str | None) -> str:
        """Return the page with some choices changed; None removes one."""
        chosen = {**self.kept, **changes}
        return self.location.url(**{name: value for name, value in chosen.items() if value})

    def query(self, **changes: str | None) -> str:
        """Return `url` without its path: shorter on pages with thousands of links."""
        return f"?{self.url(**changes).partition('?')[2]}"

    def job(self, job: JobCell) -> str | None:
        """The page with this job's details open."""
        token = job_token(job, shared=self.shared)
        return f"{self.job_prefix}{token}" if token else None

    @cached_property
    def job_prefix(self) -> str:
        """The link of a job up to its token."""
        return self.query_prefix(JOB)

    def query_prefix(self, name: str) -> str:
        """Return the query up to the value of one parameter, for many links that differ in that value only."""
        return f"?{self.url_prefix(name).partition('?')[2]}"

    def url_prefix(self, name: str, **changes: str | None) -> str:
        """Return the page with some choices changed, up to the value of one parameter."""
        url = self.url(**{**changes, name: None})
        return f"{url}{'&' if '?' in url else '?'}{name}="

    def fields(self, *shown: str) -> tuple[tuple[str, str], ...]:
        """Hidden fields for a form that shows the fields `shown` itself."""
        left_out = {*shown, JOB, "after"}
        url = self.url(**dict.fromkeys(left_out))
        return tuple(parse_qsl(url.partition("?")[2], keep_blank_values=True))
