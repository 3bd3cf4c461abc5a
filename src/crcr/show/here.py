"""Where a reader is: which upstream, over which range; and the links that keep it so."""

import re
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode

from crcr.decide.model import RepoName
from crcr.decide.views import Span
from crcr.errors import NotFound


def pick_upstream(upstreams: tuple[RepoName, ...], asked: str | None) -> RepoName:
    """The upstream that was asked for; without a wish the first."""
    if not asked:
        return upstreams[0]
    for each in upstreams:
        if each.key == asked.lower():
            return each
    raise NotFound(
        f"this relay serves no upstream {asked[:100]!r}", hint=f"it serves {', '.join(map(str, upstreams))}"
    )


def pick_span(asked: str | None) -> Span:
    """A page always has a range: what is not one is the default."""
    return next((span for span in Span if span.value == asked), Span.FORTNIGHT)


_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def is_sha(text: str | None) -> bool:
    """Whether it is all of a commit's name, as GitHub writes it."""
    return text is not None and _SHA.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Here:
    upstreams: tuple[RepoName, ...]
    upstream: RepoName
    span: Span
    path: str
    github_url: str

    def url(self, path: str | None = None, **more: str) -> str:
        """A link within the site that keeps upstream and range; defaults are left out."""
        kept = {**more}
        if self.upstream != self.upstreams[0]:
            kept["upstream"] = self.upstream.full_name
        if self.span is not Span.FORTNIGHT:
            kept["range"] = self.span.value
        target = quote(path or self.path, safe="/")
        return f"{target}?{urlencode(kept, safe='/')}" if kept else target

    def over(self, span: Span) -> str:
        return replace(self, span=span).url()

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
