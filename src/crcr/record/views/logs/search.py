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
_WHOLE = (40, 64)
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
    asked = _asked(_wanted(text), upstream)
    return asked.text if asked and asked.plain and len(asked.text) >= _SHORTEST else None


async def search(
    tx: Tx,
    upstream: RepoName,
    visible: VisibleBackends,
    text: str,
    now: datetime,
    *,
    told: HistoryAnswer = NO_ANSWER,
    after: tuple[str | int, ...] | None = None,
) -> SearchView:
    """Find all kinds of things; `after` a page of an author's pull requests, only the next of these."""
    wanted = _wanted(text)
    finder = _Finder(tx, upstream, visible, now, told)
    asked = _asked(wanted, upstream)
    if after is not None:
        before = _number_in(after)
        found = await finder.of_author(asked.login, before) if asked and asked.login else []
        return SearchView(wanted, tuple(found[:MOST]), None, next=_next([found]))
    groups = await finder.groups(asked) if asked else []
    hits = [hit for group in groups for hit in group[:MOST]]
    more = tuple(group[0].kind for group in groups if len(group) > MOST)
    return SearchView(wanted, tuple(hits), _exact(asked, hits), more, _next(groups))


def _number_in(after: tuple[str | int, ...]) -> int:
    match after:
        case (int(number),):
            return number
    raise BadRequest(
        "the cursor is not one of this list", hint="pass on `next` of the page before, unchanged"
    )


def _next(groups: list[list[Hit]]) -> tuple[int] | None:
    """Where an author's pull requests go on: after the last one that is listed."""
    for group in groups:
        if len(group) > MOST and group[0].kind is HitKind.AUTHOR:
            return (group[MOST - 1].number or 0,)
    return None


def _wanted(text: str) -> str:
    return " ".join(text.replace("\x00", " ").split())[:_LONGEST]


@dataclass(frozen=True, slots=True)
class _Asked:
    """The searched text, as each kind of thing would be called."""

    text: str
    number: int | None = None
    digits: str | None = None
    login: str | None = None
    plain: bool = True
    """Whether it may also be part of a name or title."""


def _asked(wanted: str, upstream: RepoName) -> _Asked | None:
    if not wanted:
        return None
    if address := _ADDRESS.fullmatch(wanted):
        return _at(address, upstream)
    number = _NUMBER.fullmatch(wanted)
    digits = _DIGITS.fullmatch(wanted.lower())
    login = _LOGIN.fullmatch(wanted)
    return _Asked(
        wanted,
        int(number[1]) if number else None,
        digits[0] if digits else None,
        login[1].lower() if login else None,
        plain=wanted[0] not in "#@" or (number is None and login is None),
    )


def _at(address: re.Match[str], upstream: RepoName) -> _Asked | None:
    """What an address on GitHub leads to; of another repository only the backend."""
    name, kind, which = address[1], address[2], address[3]
    if kind is None:
        return _Asked(name)
    if name.lower() != upstream.key:
        return None
    if kind == "pull":
        number = _NUMBER.fullmatch(which)
        return _Asked(which, number=int(number[1]), plain=False) if number else None
    digits = _DIGITS.fullmatch(which.lower())
    return _Asked(which, digits=digits[0], plain=False) if digits else None


@dataclass(frozen=True, slots=True)
class _Finder:
    tx: Tx
    upstream: RepoName
    visible: VisibleBackends
    now: datetime
    told: HistoryAnswer

    async def groups(self, asked: _Asked) -> list[list[Hit]]:
        """What was found of each kind, one more than is listed where there is more.

        Whoever gave a number or digits that lead somewhere meant that, and no name or title with them in it.
        """
        numbered = await self._numbered(asked.number) if asked.number else []
        commits = await self._commits(asked.digits) if asked.digits else []
        if numbered or commits:
            return [group for group in (numbered, commits) if group]
        found = [
            await self._titled(asked.text) if asked.plain else [],
            await self.of_author(asked.login) if asked.login else [],
            self._backends(asked) if asked.plain else [],
            await self._jobs(asked) if asked.plain else [],
        ]
        return [group for group in found if group]

    async def _numbered(self, number: int) -> list[Hit]:
        rows = await self.tx.all(_BY_NUMBER, upstream=self.upstream.key, number=number)
        return [_pull(row, HitKind.PULL) for row in rows]

    async def _titled(self, title: str) -> list[Hit]:
        """Open pull requests with all these words in their title; the longest is looked for by the store."""
        if len(title) < _SHORTEST:
            return []
        words = title.casefold().split()
        rows = await self.tx.all(
            _OPEN, upstream=self.upstream.key, pattern=name_pattern(max(title.split(), key=len))
        )
        found = [row for row in rows if all(word in row["title"].casefold() for word in words)]
        return [_pull(row, HitKind.PULL) for row in found[: MOST + 1]]

    async def of_author(self, login: str, before: int = _PAST_ALL_NUMBERS) -> list[Hit]:
        where = {"upstream": self.upstream.key, "author": login, "before": before}
        rows = await self.tx.all(_BY_AUTHOR, limit=MOST + 1, **where)
        return [_pull(row, HitKind.AUTHOR) for row in rows]

    async def _commits(self, digits: str) -> list[Hit]:
        """The newest delivery of each commit; where there is none, the pull request or group that has it."""
        key = {"upstream": self.upstream.key, "digits": digits}
        found: dict[str, Hit] = {}
        for row in await self.tx.all(_DELIVERED, **key):
            found.setdefault(row["head_sha"], _delivered(row))
        for row in await self.tx.all(_GROUPS, **key):
            found[row["head_sha"]] = _group(row)
        for row in await self.tx.all(_HEADS, **key):
            known = found.get(row["head_sha"])
            found[row["head_sha"]] = _head(row, known.delivery if known else None)
        newest = sorted(found.values(), key=lambda hit: hit.at or self.now, reverse=True)
        return newest[: MOST + 1]

    def _backends(self, asked: _Asked) -> list[Hit]:
        part = asked.text.casefold()
        if len(part) < _SHORTEST:
            return []
        entries = [entry for key, entry in sorted(self.visible.shown.items()) if part in key]
        return [
            Hit(kind=HitKind.BACKEND, title=entry.name.full_name, detail=entry.level.name, backend=entry.name)
            for entry in entries[: MOST + 1]
        ]

    async def _jobs(self, asked: _Asked) -> list[Hit]:
        if len(asked.text) < _SHORTEST:
            return []
        finder = JobFinder(self.tx, self.upstream.key, self.visible, self.now, self.told)
        return await finder.find(asked.text, MOST + 1)


def _exact(asked: _Asked | None, hits: list[Hit]) -> Hit | None:
    """A number or a whole commit, if nothing else may have been meant by its digits."""
    if asked is None:
        return None
    by_number = [hit for hit in hits if hit.kind is HitKind.PULL and hit.number == asked.number]
    commits = [hit for hit in hits if hit.kind is HitKind.COMMIT]
    whole = [hit for hit in commits if hit.head_sha == asked.digits and len(hit.head_sha or "") in _WHOLE]
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
"""How far back a job's name is looked for."""
_ROWS_LOOKED_AT = 60_000
"""How many rows of jobs, and of sums, one search may look through."""
_MOST_LOOKUPS = 100
_DELIVERED_BEFORE_US = 30 * DAY_US
"""A result of another relay may be of a delivery that is older by this."""

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
class _Found:
    """A job's name; `at_us` is when it last began, or the end of the day on which it did where that is not known."""

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
    told: HistoryAnswer

    async def find(self, part: str, limit: int) -> list[Hit]:
        if not self.visible.reporting:
            return []
        looked = max(500, _ROWS_LOOKED_AT // (len(self.visible.reporting) * len(ResultKind)))
        asked = {"pattern": name_pattern(part), "limit": limit, "looked": looked, "since": self._since()}
        found = [job for name in self.visible.reporting for job in await self._of_backend(name, asked)]
        return [self._hit(job) for job in await self._newest_of(found, limit)]

    def _since(self) -> int:
        """The first whole day, as the sums have them."""
        return -(-to_us(self.now - JOBS_BACK) // DAY_US) * DAY_US

    async def _of_backend(self, name: str, asked: Mapping[str, Any]) -> list[_Found]:
        told = [row for kind in ResultKind for row in self.told.named_jobs(name, kind) or ()]
        if self.told.named_jobs(name, ResultKind.PULLS) is not None:
            return [_found(name, row) for row in told]
        where = {"upstream": self.upstream, "downstream": name}
        found = [_found(name, row) for row in await self.tx.all(_NEWEST, **where, **asked)]
        timed = {(job.job_name, job.workflow_name) for job in found}
        for kind in ResultKind:
            if len(found) >= asked["limit"] and kind is not ResultKind.INGESTED:
                continue  # those are the newest of all
            rows = await self.tx.all(_BY_DAY, kind=kind.value, **where, **asked)
            found += [
                _found_on_day(name, kind, row)
                for row in rows
                if kind is ResultKind.INGESTED or (row["job_name"], row["workflow_name"]) not in timed
            ]
        return found

    async def _newest_of(self, found: list[_Found], limit: int) -> list[_Found]:
        """Each job once, the newest by their time; a time is looked up before anything older is listed."""
        heap = [(job.order, place) for place, job in enumerate(found)]
        heapq.heapify(heap)
        listed: dict[tuple[str, str], _Found] = {}
        lookups = 0
        while heap and len(listed) < limit:
            _, place = heapq.heappop(heap)
            each = found[place]
            if each.exact or each.looked_up or lookups >= _MOST_LOOKUPS:
                listed.setdefault((each.downstream, each.job_name), each)
                continue
            lookups += 1
            found[place] = await self._timed(each)
            heapq.heappush(heap, (found[place].order, place))
        return list(listed.values())

    async def _timed(self, found: _Found) -> _Found:
        day_at = found.at_us - found.at_us % DAY_US
        where = {
            "upstream": self.upstream,
            "downstream": found.downstream,
            "job_name": found.job_name,
            "workflow_name": found.workflow_name,
            "day_at": day_at,
            "day_end": day_at + DAY_US,
        }
        if found.kind is ResultKind.INGESTED:
            row = await self.tx.one(_LAST_INGESTED, delivered_at=day_at - _DELIVERED_BEFORE_US, **where)
        else:
            row = await self.tx.one(_LAST, **where)
        last_at = row["last_at"] if row else None
        return replace(found, at_us=last_at or day_at, exact=last_at is not None, looked_up=True)

    def _hit(self, found: _Found) -> Hit:
        entry = self.visible.reporting[found.downstream]
        at = from_us(found.at_us)
        return Hit(
            kind=HitKind.JOB,
            title=found.job_name,
            detail=found.workflow_name if found.exact else f"{found.workflow_name}, last on {at:%Y-%m-%d}",
            backend=entry.name,
            job=found.job_name,
            at=at if found.exact else None,
        )


def _found(name: str, row: Row) -> _Found:
    return _Found(
        downstream=name,
        job_name=row["job_name"],
        workflow_name=row["workflow_name"],
        kind=None,
        at_us=row["last_at"],
    )


def _found_on_day(name: str, kind: ResultKind, row: Row) -> _Found:
    return _Found(
        downstream=name,
        job_name=row["job_name"],
        workflow_name=row["workflow_name"],
        kind=kind,
        at_us=row["day_at"] + DAY_US - 1,
        exact=False,
    )


def name_pattern(part: str) -> str:
    """A pattern for LIKE beside `lower`: this text anywhere, its own wildcards being only letters."""
    return "%" + re.sub(r"[%_!]", r"!\g<0>", ascii_lower(part)) + "%"
