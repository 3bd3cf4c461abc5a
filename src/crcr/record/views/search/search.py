"""Search by a pull request's number, digits of a commit, a login, or words of a title, a name, a test or a message.

Every query is bounded: by a key, by an index range, by the open pull requests, or by a number of the newest rows. Each kind
of results is listed page by page. Backends, jobs, tests and messages are only those that the reader may see.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.search import (
    FurtherHits,
    Hit,
    HitKind,
    Key,
    SearchQuery,
    SearchView,
    Suggestions,
)
from crcr.record.clickhouse.history import NO_ANSWER, HistoryAnswer
from crcr.record.store.database import Tx
from crcr.record.views.backends.figures import read_last
from crcr.record.views.paging import bad_cursor
from crcr.record.views.search.failed_tests import find_failures, find_tests
from crcr.record.views.search.jobs import JobFinder
from crcr.record.views.search.pulls_and_commits import (
    find_by_author,
    find_by_number,
    find_by_title,
    find_commits,
)
from crcr.record.views.search.search_terms import SearchTerms, clean_text, parse_terms
from crcr.record.views.visibility import VisibleBackends

MOST = 20
"""Hits on a page of one kind."""
MOST_SUGGESTED = 10
_OF_EACH = 3
"""Suggestions of one kind."""
_SHA_LENGTHS = (40, 64)
_BY_NAME = (
    *(HitKind.PULL, HitKind.AUTHOR, HitKind.BACKEND),
    *(HitKind.JOB, HitKind.TEST, HitKind.FAILURE),
)
"""The kinds that are searched by part of a name, in the order of the page."""
_SUGGESTED = (
    *(HitKind.BACKEND, HitKind.PULL, HitKind.AUTHOR),
    *(HitKind.JOB, HitKind.TEST, HitKind.FAILURE),
)
_OWN_KINDS = (ResultKind.PULLS, ResultKind.PUSH, ResultKind.NIGHTLY)

Page = tuple[list[Hit], Key | None]
_NOTHING: Page = ([], None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many rows one search may read of each kind."""

    closed_pulls: int = 10_000
    jobs: int = 60_000
    backends_with_jobs: int = 500
    tests: int = 20_000
    failures: int = 20_000


SUGGESTING = Bounds(closed_pulls=2_000, jobs=10_000, backends_with_jobs=50, tests=4_000, failures=4_000)
"""While a reader types, with every few letters."""


async def search(
    tx: Tx,
    query: SearchQuery,
    visible: VisibleBackends,
    now: datetime,
    *,
    history: HistoryAnswer = NO_ANSWER,
) -> SearchView:
    """Search all kinds; with a kind or a cursor, return one page of that kind."""
    cleaned = clean_text(query.text)
    terms = parse_terms(cleaned, query.upstream)
    finder = _Finder(tx, query, visible, now, history)
    kind = query.kind or (HitKind.AUTHOR if query.after is not None else None)
    if kind is not None:
        hits, more = await finder.find_page(kind, terms, query.after) if terms else _NOTHING
        return SearchView(cleaned, tuple(hits), None, next=more)
    pages = await finder.find_all(terms) if terms else []
    hits = [hit for found, _ in pages for hit in found]
    further = tuple(FurtherHits(found[0].kind, more) for found, more in pages if more is not None)
    of_author = next((page.next for page in further if page.kind is HitKind.AUTHOR), None)
    return SearchView(cleaned, tuple(hits), _find_exact(terms, hits), further, of_author)


async def suggest(tx: Tx, query: SearchQuery, visible: VisibleBackends, now: datetime) -> Suggestions:
    """The first results of each kind, with the kinds that people look for most often first."""
    cleaned = clean_text(query.text)
    terms = parse_terms(cleaned, query.upstream)
    if terms is None:
        return Suggestions(cleaned, ())
    finder = _Finder(tx, query, visible, now, NO_ANSWER, SUGGESTING, _OF_EACH)
    hits = [hit for found, _ in await finder.find_all(terms, _SUGGESTED) for hit in found[:_OF_EACH]]
    return Suggestions(cleaned, tuple(_without_repeats(hits)[:MOST_SUGGESTED]))


def _without_repeats(hits: Sequence[Hit]) -> list[Hit]:
    """Each pull request once: its title and its author may both match."""
    numbers = [hit.number for hit in hits]
    return [hit for index, hit in enumerate(hits) if hit.number is None or hit.number not in numbers[:index]]


@dataclass(frozen=True, slots=True)
class _Finder:
    tx: Tx
    query: SearchQuery
    visible: VisibleBackends
    now: datetime
    history: HistoryAnswer
    bounds: Bounds = Bounds()
    limit: int = MOST

    async def find_all(self, terms: SearchTerms, kinds: Sequence[HitKind] = _BY_NAME) -> list[Page]:
        """The first page of each kind that has results.

        A number or a SHA that matches excludes names and titles that contain it.
        """
        pages = [await self.find_page(kind, terms, None) for kind in self._exact_kinds(terms)]
        if not any(hits for hits, _ in pages):
            pages = [await self.find_page(kind, self._without_numbers(terms), None) for kind in kinds]
        return [(hits, more) for hits, more in pages if hits]

    def _exact_kinds(self, terms: SearchTerms) -> list[HitKind]:
        return [
            *([HitKind.PULL] if terms.number else []),
            *([HitKind.COMMIT] if terms.digits else []),
        ]

    def _without_numbers(self, terms: SearchTerms) -> SearchTerms:
        return replace(terms, number=None, digits=None)

    async def find_page(self, kind: HitKind, terms: SearchTerms, after: Key | None) -> Page:
        tx, upstream, limit = self.tx, self.query.upstream, self.limit
        if kind is HitKind.PULL and terms.number:
            return await find_by_number(tx, upstream, terms.number), None
        if kind is HitKind.COMMIT:
            found = await find_commits(tx, upstream, terms.digits) if terms.digits else []
            return _cut(found, after, limit)
        if kind is HitKind.AUTHOR:
            login = terms.login
            return await find_by_author(tx, upstream, login, after=after, limit=limit) if login else _NOTHING
        part = terms.name_part
        return await self._find_by_name(kind, part, after) if part else _NOTHING

    async def _find_by_name(self, kind: HitKind, part: str, after: Key | None) -> Page:
        tx, upstream, bounds, limit = self.tx, self.query.upstream, self.bounds, self.limit
        if kind is HitKind.PULL:
            return await find_by_title(
                tx, upstream, part, after=after, limit=limit, looked=bounds.closed_pulls
            )
        if kind is HitKind.BACKEND:
            return await self._find_backends(part, after)
        if kind is HitKind.JOB:
            return await self._job_finder().find(part, after=after, limit=limit)
        find, looked = (
            (find_tests, bounds.tests) if kind is HitKind.TEST else (find_failures, bounds.failures)
        )
        return await find(tx, upstream, self.visible, part, self.now, after=after, limit=limit, looked=looked)

    def _job_finder(self) -> JobFinder:
        return JobFinder(
            tx=self.tx,
            upstream=self.query.upstream.key,
            visible=self.visible,
            now=self.now,
            history=self.history,
            most_searched=self.bounds.jobs,
            most_backends=self.bounds.backends_with_jobs,
        )

    async def _find_backends(self, part: str, after: Key | None) -> Page:
        wanted, last = part.casefold(), _read_name(after)
        keys = sorted(key for key in self.visible.shown if wanted in key and key > last)
        hits = [await self._backend_hit(key) for key in keys[: self.limit]]
        return hits, (keys[self.limit - 1],) if len(keys) > self.limit else None

    async def _backend_hit(self, key: str) -> Hit:
        entry = self.visible.shown[key]
        last = None
        if key in self.visible.reporting:
            last = await read_last(self.tx, self.query.upstream.key, key, *_OWN_KINDS)
        return Hit(
            kind=HitKind.BACKEND,
            title=entry.name.full_name,
            detail=entry.level.name,
            backend=entry.name,
            level=entry.level,
            result=last.counted if last else None,
            at=last.at if last else None,
        )


def _cut(found: Sequence[Hit], after: Key | None, limit: int) -> Page:
    """A page of a list that is read at once; its cursor is a number of hits."""
    match after:
        case None:
            offset = 0
        case (int(offset),) if offset > 0:
            pass
        case _:
            raise bad_cursor()
    end = offset + limit
    return list(found[offset:end]), (end,) if len(found) > end else None


def _read_name(after: Key | None) -> str:
    match after:
        case None:
            return ""
        case (str(name),):
            return name
    raise bad_cursor()


def _find_exact(terms: SearchTerms | None, hits: Sequence[Hit]) -> Hit | None:
    """The one pull request or commit that the text names without doubt, if there is one."""
    if terms is None:
        return None
    by_number = [hit for hit in hits if hit.kind is HitKind.PULL and hit.number == terms.number]
    commits = [hit for hit in hits if hit.kind is HitKind.COMMIT]
    whole = [
        hit for hit in commits if hit.head_sha == terms.digits and len(hit.head_sha or "") in _SHA_LENGTHS
    ]
    if by_number and not commits:
        return by_number[0]
    return whole[0] if whole and not by_number else None
