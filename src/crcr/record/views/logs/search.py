"""Search by a pull request's number, digits of a commit, a login, part of a backend's or job's name, or a title.

Every query is bounded: by a key, by an index range, by the open pull requests, or by the jobs of the last
30 days. Pull requests of an author are listed page by page. Backends and jobs are only those that the reader may see.
"""

import heapq
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.logs import Hit, HitKind, SearchView
from crcr.errors import BadRequest
from crcr.record.clickhouse.history import NO_ANSWER, HistoryAnswer
from crcr.record.statistics.sums import DAY_US
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, ascii_lower
from crcr.record.store.times import from_us, to_us
from crcr.record.views.visibility import VisibleBackends

MOST = 20
"""Hits that are listed of each kind."""
_PAST_ALL_NUMBERS = 2**31 - 1
_LONGEST = 200
_SHORTEST = 2

_NUMBER = re.compile(r"#?([1-9][0-9]{0,8})")
_DIGITS = re.compile(r"[0-9a-f]{7,64}")
_SHA_LENGTHS = (40, 64)
_LOGIN = re.compile(r"@?([A-Za-z0-9][A-Za-z0-9_-]{0,38}(?:\[bot\])?)")
_ADDRESS = re.compile(r"https?://[^/\s]+/([\w.-]+/[\w.-]+?)(?:\.git)?(?:/(pull|commit)/(\w+)\S*|/)?")

_PULL = "SELECT number, title, author, head_sha, updated_at, is_open, merged FROM"
_BY_NUMBER = Statement(text(f"{_PULL} pulls WHERE upstream = :upstream AND number = :number"))
# `upstream` is tested in the outer query, or as a range: SQLite would otherwise scan all rows of the upstream.
_ALL_OPEN = "(SELECT * FROM pulls WHERE is_open = 1 AND head_sha >= '' LIMIT 20000) found"
_OPEN = Statement(
    text(
        f"{_PULL} {_ALL_OPEN} WHERE upstream = :upstream AND lower(title) LIKE :pattern ESCAPE '!' ORDER BY number DESC"
    )
)
_BY_AUTHOR = Statement(
    text(
        f"{_PULL} pulls WHERE lower(author) = :author AND upstream >= :upstream AND upstream <= :upstream"
        " AND number < :before ORDER BY upstream DESC, number DESC LIMIT :limit"
    )
)
_DELIVERED = Statement(
    text(
        "SELECT head_sha, guid, event, number, ref, received_at FROM (SELECT upstream, head_sha, guid,"
        " event, number, ref, received_at FROM deliveries"
        " WHERE head_sha >= :digits AND head_sha < :digits || 'g' LIMIT 10000) found"
        " WHERE upstream = :upstream ORDER BY received_at DESC, guid DESC"
    )
)
_HEADS = Statement(
    text(
        "SELECT head_sha, number, title, updated_at FROM (SELECT * FROM pulls WHERE is_open = 1"
        " AND head_sha >= :digits AND head_sha < :digits || 'g' ORDER BY head_sha, upstream, number LIMIT 100) found"
        " WHERE upstream = :upstream ORDER BY head_sha, number"
    )
)
_GROUPS = Statement(
    text(
        "SELECT head_sha, delivery, numbers, created_at FROM merge_groups WHERE head_sha >= :digits"
        " AND head_sha < :digits || 'g' AND upstream = :upstream ORDER BY head_sha LIMIT 100"
    )
)


def history_search_text(text: str, upstream: RepoName) -> str | None:
    """The part of a job's name that is searched for; None when a name cannot be meant."""
    terms = _parse_terms(_clean_text(text), upstream)
    return terms.text if terms and terms.plain and len(terms.text) >= _SHORTEST else None


async def search(
    tx: Tx,
    upstream: RepoName,
    visible: VisibleBackends,
    text: str,
    now: datetime,
    *,
    history: HistoryAnswer = NO_ANSWER,
    after: tuple[str | int, ...] | None = None,
) -> SearchView:
    """Search all kinds; with `after`, return only the next page of an author's pull requests."""
    cleaned = _clean_text(text)
    finder = _Finder(tx, upstream, visible, now, history)
    terms = _parse_terms(cleaned, upstream)
    if after is not None:
        before = _cursor_number(after)
        pulls = await finder.find_by_author(terms.login, before) if terms and terms.login else []
        return SearchView(cleaned, tuple(pulls[:MOST]), None, next=_next_cursor([pulls]))
    groups = await finder.find_groups(terms) if terms else []
    hits = [hit for group in groups for hit in group[:MOST]]
    more = tuple(group[0].kind for group in groups if len(group) > MOST)
    return SearchView(cleaned, tuple(hits), _find_exact(terms, hits), more, _next_cursor(groups))


def _cursor_number(after: tuple[str | int, ...]) -> int:
    match after:
        case (int(number),):
            return number
    raise BadRequest(
        "the cursor is not one of this list", hint="pass on `next` of the page before, unchanged"
    )


def _next_cursor(groups: list[list[Hit]]) -> tuple[int] | None:
    """Where an author's pull requests go on: after the last one that is listed."""
    for group in groups:
        if len(group) > MOST and group[0].kind is HitKind.AUTHOR:
            return (group[MOST - 1].number or 0,)
    return None


def _clean_text(text: str) -> str:
    return " ".join(text.replace("\x00", " ").split())[:_LONGEST]


@dataclass(frozen=True, slots=True)
class _SearchTerms:
    """The searched text, parsed as a number, as digits of a commit, as a login, and as part of a name."""

    text: str
    number: int | None = None
    digits: str | None = None
    login: str | None = None
    plain: bool = True
    """Whether it may also be part of a name or title."""


def _parse_terms(cleaned: str, upstream: RepoName) -> _SearchTerms | None:
    if not cleaned:
        return None
    if address := _ADDRESS.fullmatch(cleaned):
        return _parse_address(address, upstream)
    number = _NUMBER.fullmatch(cleaned)
    digits = _DIGITS.fullmatch(cleaned.lower())
    login = _LOGIN.fullmatch(cleaned)
    return _SearchTerms(
        cleaned,
        int(number[1]) if number else None,
        digits[0] if digits else None,
        login[1].lower() if login else None,
        plain=cleaned[0] not in "#@" or (number is None and login is None),
    )


def _parse_address(address: re.Match[str], upstream: RepoName) -> _SearchTerms | None:
    """Parse an address on GitHub; of a repository that is not the upstream, only its name is searched."""
    name, kind, which = address[1], address[2], address[3]
    if kind is None:
        return _SearchTerms(name)
    if name.lower() != upstream.key:
        return None
    if kind == "pull":
        number = _NUMBER.fullmatch(which)
        return _SearchTerms(which, number=int(number[1]), plain=False) if number else None
    digits = _DIGITS.fullmatch(which.lower())
    return _SearchTerms(which, digits=digits[0], plain=False) if digits else None


@dataclass(frozen=True, slots=True)
class _Finder:
    tx: Tx
    upstream: RepoName
    visible: VisibleBackends
    now: datetime
    history: HistoryAnswer

    async def find_groups(self, terms: _SearchTerms) -> list[list[Hit]]:
        """The hits of each kind, one more than are listed where there are more.

        A number or a SHA that matches excludes names and titles that contain it.
        """
        pulls = await self._find_by_number(terms.number) if terms.number else []
        commits = await self._find_commits(terms.digits) if terms.digits else []
        if pulls or commits:
            return [group for group in (pulls, commits) if group]
        groups_found = [
            await self._find_by_title(terms.text) if terms.plain else [],
            await self.find_by_author(terms.login) if terms.login else [],
            self._find_backends(terms) if terms.plain else [],
            await self._find_jobs(terms) if terms.plain else [],
        ]
        return [group for group in groups_found if group]

    async def _find_by_number(self, number: int) -> list[Hit]:
        rows = await self.tx.all(_BY_NUMBER, upstream=self.upstream.key, number=number)
        return [_pull(row, HitKind.PULL) for row in rows]

    async def _find_by_title(self, title: str) -> list[Hit]:
        """Open pull requests with all these words in their title; the query filters by the longest word."""
        if len(title) < _SHORTEST:
            return []
        words = title.casefold().split()
        rows = await self.tx.all(
            _OPEN, upstream=self.upstream.key, pattern=name_pattern(max(title.split(), key=len))
        )
        matching = [row for row in rows if all(word in row["title"].casefold() for word in words)]
        return [_pull(row, HitKind.PULL) for row in matching[: MOST + 1]]

    async def find_by_author(self, login: str, before: int = _PAST_ALL_NUMBERS) -> list[Hit]:
        parameters = {"upstream": self.upstream.key, "author": login, "before": before}
        rows = await self.tx.all(_BY_AUTHOR, limit=MOST + 1, **parameters)
        return [_pull(row, HitKind.AUTHOR) for row in rows]

    async def _find_commits(self, digits: str) -> list[Hit]:
        """The newest delivery of each commit; without one, the pull request or merge group with that head."""
        key = {"upstream": self.upstream.key, "digits": digits}
        hits: dict[str, Hit] = {}
        for row in await self.tx.all(_DELIVERED, **key):
            hits.setdefault(row["head_sha"], _delivered(row))
        for row in await self.tx.all(_GROUPS, **key):
            hits[row["head_sha"]] = _group(row)
        for row in await self.tx.all(_HEADS, **key):
            delivered = hits.get(row["head_sha"])
            hits[row["head_sha"]] = _head(row, delivered.delivery if delivered else None)
        newest = sorted(hits.values(), key=lambda hit: hit.at or self.now, reverse=True)
        return newest[: MOST + 1]

    def _find_backends(self, terms: _SearchTerms) -> list[Hit]:
        part = terms.text.casefold()
        if len(part) < _SHORTEST:
            return []
        entries = [entry for key, entry in sorted(self.visible.shown.items()) if part in key]
        return [
            Hit(kind=HitKind.BACKEND, title=entry.name.full_name, detail=entry.level.name, backend=entry.name)
            for entry in entries[: MOST + 1]
        ]

    async def _find_jobs(self, terms: _SearchTerms) -> list[Hit]:
        if len(terms.text) < _SHORTEST:
            return []
        finder = JobFinder(self.tx, self.upstream.key, self.visible, self.now, self.history)
        return await finder.find(terms.text, MOST + 1)


def _find_exact(terms: _SearchTerms | None, hits: list[Hit]) -> Hit | None:
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


def _pull(row: Row, kind: HitKind) -> Hit:
    state = "open" if row["is_open"] else "merged" if row["merged"] else "closed"
    return Hit(
        kind=kind,
        title=row["title"],
        detail=f"{state}, by {row['author']}",
        number=row["number"],
        head_sha=row["head_sha"],
        at=from_us(row["updated_at"]),
    )


def _delivered(row: Row) -> Hit:
    ref = (row["ref"] or "").removeprefix("refs/heads/").removeprefix("refs/tags/")
    of = f"#{row['number']}" if row["number"] else ref
    return Hit(
        kind=HitKind.COMMIT,
        title=row["head_sha"],
        detail=f"{row['event']} of {of}" if of else row["event"],
        number=row["number"],
        head_sha=row["head_sha"],
        delivery=row["guid"],
        at=from_us(row["received_at"]),
    )


def _group(row: Row) -> Hit:
    numbers = json.loads(row["numbers"] or "[]")
    of = f" of {', '.join(f'#{number}' for number in numbers[:5])}" if numbers else ""
    return Hit(
        kind=HitKind.COMMIT,
        title=row["head_sha"],
        detail=f"merge group{of}",
        head_sha=row["head_sha"],
        delivery=row["delivery"],
        at=from_us(row["created_at"]),
    )


def _head(row: Row, delivery: str | None) -> Hit:
    return Hit(
        kind=HitKind.COMMIT,
        title=row["head_sha"],
        detail=f"head of #{row['number']}: {row['title']}",
        number=row["number"],
        head_sha=row["head_sha"],
        delivery=delivery,
        at=from_us(row["updated_at"]),
    )


# Jobs by part of their name, each with its last start time; the newest first.
#
# A backend's newest rows name nearly all of its jobs, with their times. Other jobs are found in the sums of the last 30
# days, which hold only the day: their time is looked up if they may be listed.

JOBS_BACK = timedelta(days=30)
"""How far back jobs are searched."""
_MOST_SEARCHED = 60_000
"""How many rows of jobs, and of sums, one search may read."""
_MOST_LOOKUPS = 100
_DELIVERED_BEFORE_US = 30 * DAY_US
"""The delivery of another relay's result may be older than the result by this."""

_NEWEST = Statement(
    text(
        "SELECT job_name, workflow_name, max(in_progress_at) AS last_at FROM (SELECT job_name, workflow_name,"
        " in_progress_at, ended_as FROM jobs WHERE upstream = :upstream AND downstream = :downstream"
        " AND in_progress_at >= :since ORDER BY in_progress_at DESC LIMIT :looked) newest"
        " WHERE ended_as IS NOT NULL AND lower(job_name) LIKE :pattern ESCAPE '!' GROUP BY job_name, workflow_name"
        " ORDER BY 3 DESC, job_name, workflow_name LIMIT :limit"
    )
)
_BY_DAY = Statement(
    text(
        "SELECT job_name, workflow_name, max(day_at) AS day_at FROM (SELECT job_name, workflow_name, day_at"
        " FROM job_days WHERE upstream = :upstream AND downstream = :downstream AND kind = :kind"
        " AND day_at >= :since ORDER BY day_at DESC, workflow DESC, job_name DESC LIMIT :looked) newest"
        " WHERE lower(job_name) LIKE :pattern ESCAPE '!' GROUP BY job_name, workflow_name"
        " ORDER BY 3 DESC, job_name, workflow_name LIMIT :limit"
    )
)
_LAST = Statement(
    text(
        "SELECT in_progress_at AS last_at FROM jobs WHERE upstream = :upstream AND downstream = :downstream"
        " AND in_progress_at >= :day_at AND in_progress_at < :day_end AND job_name = :job_name"
        " AND workflow_name = :workflow_name AND ended_as IS NOT NULL ORDER BY in_progress_at DESC LIMIT 1"
    )
)
_LAST_INGESTED = Statement(
    text(
        "SELECT max(coalesce(started_at, seen_at)) AS last_at FROM ingested WHERE upstream = :upstream"
        " AND downstream = :downstream AND delivery_at >= :delivered_at AND job_name = :job_name"
        " AND workflow_name = :workflow_name AND ended_as IS NOT NULL"
        " AND coalesce(started_at, seen_at) >= :day_at AND coalesce(started_at, seen_at) < :day_end"
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundJob:
    """A job's name; `at_us` is its last start, or the end of that day where the exact time is not known."""

    downstream: str
    job_name: str
    workflow_name: str
    kind: ResultKind | None
    at_us: int
    exact: bool = True
    looked_up: bool = False

    @property
    def order(self) -> tuple[int, str, str, str]:
        return -self.at_us, self.downstream, self.job_name, self.workflow_name


@dataclass(frozen=True, slots=True)
class JobFinder:
    tx: Tx
    upstream: str
    visible: VisibleBackends
    now: datetime
    history: HistoryAnswer

    async def find(self, part: str, limit: int) -> list[Hit]:
        if not self.visible.reporting:
            return []
        rows_per_backend = max(500, _MOST_SEARCHED // (len(self.visible.reporting) * len(ResultKind)))
        parameters = {
            "pattern": name_pattern(part),
            "limit": limit,
            "looked": rows_per_backend,
            "since": self._since(),
        }
        jobs = [
            job for name in self.visible.reporting for job in await self._find_in_backend(name, parameters)
        ]
        return [self._hit(job) for job in await self._take_newest(jobs, limit)]

    def _since(self) -> int:
        """The start of the first whole day."""
        return -(-to_us(self.now - JOBS_BACK) // DAY_US) * DAY_US

    async def _find_in_backend(self, name: str, parameters: Mapping[str, Any]) -> list[_FoundJob]:
        rows_from_history = [row for kind in ResultKind for row in self.history.named_jobs(name, kind) or ()]
        if self.history.named_jobs(name, ResultKind.PULLS) is not None:
            return [_job_from(name, row) for row in rows_from_history]
        backend = {"upstream": self.upstream, "downstream": name}
        jobs = [_job_from(name, row) for row in await self.tx.all(_NEWEST, **backend, **parameters)]
        known_names = {(job.job_name, job.workflow_name) for job in jobs}
        for kind in ResultKind:
            if len(jobs) >= parameters["limit"] and kind is not ResultKind.INGESTED:
                continue  # those are the newest of all
            rows = await self.tx.all(_BY_DAY, kind=kind.value, **backend, **parameters)
            jobs += [
                _job_from_day(name, kind, row)
                for row in rows
                if kind is ResultKind.INGESTED or (row["job_name"], row["workflow_name"]) not in known_names
            ]
        return jobs

    async def _take_newest(self, jobs: list[_FoundJob], limit: int) -> list[_FoundJob]:
        """Each job once, the newest first; an inexact time is looked up before any older job is listed."""
        heap = [(job.order, index) for index, job in enumerate(jobs)]
        heapq.heapify(heap)
        newest: dict[tuple[str, str], _FoundJob] = {}
        lookups = 0
        while heap and len(newest) < limit:
            _, index = heapq.heappop(heap)
            candidate = jobs[index]
            if candidate.exact or candidate.looked_up or lookups >= _MOST_LOOKUPS:
                newest.setdefault((candidate.downstream, candidate.job_name), candidate)
                continue
            lookups += 1
            jobs[index] = await self._look_up_time(candidate)
            heapq.heappush(heap, (jobs[index].order, index))
        return list(newest.values())

    async def _look_up_time(self, job: _FoundJob) -> _FoundJob:
        day_at = job.at_us - job.at_us % DAY_US
        parameters = {
            "upstream": self.upstream,
            "downstream": job.downstream,
            "job_name": job.job_name,
            "workflow_name": job.workflow_name,
            "day_at": day_at,
            "day_end": day_at + DAY_US,
        }
        if job.kind is ResultKind.INGESTED:
            row = await self.tx.one(_LAST_INGESTED, delivered_at=day_at - _DELIVERED_BEFORE_US, **parameters)
        else:
            row = await self.tx.one(_LAST, **parameters)
        last_at = row["last_at"] if row else None
        return replace(job, at_us=last_at or day_at, exact=last_at is not None, looked_up=True)

    def _hit(self, job: _FoundJob) -> Hit:
        entry = self.visible.reporting[job.downstream]
        at = from_us(job.at_us)
        return Hit(
            kind=HitKind.JOB,
            title=job.job_name,
            detail=job.workflow_name if job.exact else f"{job.workflow_name}, last on {at:%Y-%m-%d}",
            backend=entry.name,
            job=job.job_name,
            at=at if job.exact else None,
        )


def _job_from(name: str, row: Row) -> _FoundJob:
    return _FoundJob(
        downstream=name,
        job_name=row["job_name"],
        workflow_name=row["workflow_name"],
        kind=None,
        at_us=row["last_at"],
    )


def _job_from_day(name: str, kind: ResultKind, row: Row) -> _FoundJob:
    return _FoundJob(
        downstream=name,
        job_name=row["job_name"],
        workflow_name=row["workflow_name"],
        kind=kind,
        at_us=row["day_at"] + DAY_US - 1,
        exact=False,
    )


def name_pattern(part: str) -> str:
    """A LIKE pattern that matches the text anywhere in a lower-case value; wildcards in the text are escaped."""
    return "%" + re.sub(r"[%_!]", r"!\g<0>", ascii_lower(part)) + "%"
