"""The search and its suggestions, as values; `views.overview` says how to treat their text."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.model import Level, RepoName
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.views.commit import GateShown, PullState

Key = tuple[str | int, ...]


class HitKind(StrEnum):
    PULL = "pull request"
    COMMIT = "commit"
    AUTHOR = "author"
    BACKEND = "backend"
    JOB = "job"
    TEST = "test"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    upstream: RepoName
    text: str
    kind: HitKind | None = None
    """Only results of this kind, page by page."""
    after: Key | None = None
    """The cursor of that kind; without a kind it is one of an author's pull requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One search result; the set fields depend on its kind."""

    kind: HitKind
    title: str
    detail: str | None = None
    number: int | None = None
    head_sha: str | None = None
    delivery: str | None = None
    backend: RepoName | None = None
    job: str | None = None
    at: datetime | None = None
    state: PullState | None = None
    gate: GateShown | None = None
    """The gate of an open pull request, or of a commit that is to be merged."""
    level: Level | None = None
    result: CountedAs | None = None
    """Of a backend or a job: what its newest result counts as."""
    fingerprint: str | None = None
    """Of a test or a failure: its group."""
    backends: tuple[RepoName, ...] = ()
    """Where the test failed, or the failure occurred: those that failed last first."""
    count: int | None = None
    """How often it failed."""
    known: bool = False
    """Whether the failure is linked to an issue."""


@dataclass(frozen=True, slots=True)
class FurtherHits:
    """More results of one kind, from this cursor on."""

    kind: HitKind
    next: Key


@dataclass(frozen=True, slots=True)
class SearchView:
    text: str
    hits: tuple[Hit, ...]
    exact: Hit | None
    """The only exact match, if there is one."""
    more: tuple[FurtherHits, ...] = ()
    """Kinds with more results than listed."""
    next: Key | None = None
    """The cursor of the requested kind's next page; without a kind, of an author's pull requests."""


@dataclass(frozen=True, slots=True)
class Suggestions:
    """The likeliest results of a text that is still being typed."""

    text: str
    hits: tuple[Hit, ...]
