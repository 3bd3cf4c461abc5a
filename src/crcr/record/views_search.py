"""Finding things by what people have at hand: a number, digits of a commit, a login, part of a name, a title.

Every question is bounded: by a key, by an index range, by the open pull requests, or by the sums of the last
30 days. Backends and jobs are only those that the reader may see.
"""

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.views_log import Hit, HitKind, SearchView
from crcr.decide.window import Kind
from crcr.record.database import Row, Tx
from crcr.record.history import NOTHING_TOLD, Told
from crcr.record.statement import Statement, ascii_lower
from crcr.record.times import from_us, to_us
from crcr.record.views_listed import Seen

MOST = 20
"""Hits that are listed of each kind."""
_LONGEST = 200
_SHORTEST = 2
JOBS_BACK = timedelta(days=30)
"""How far back a job's name is looked for."""

_NUMBER = re.compile(r"#?([1-9][0-9]{0,8})")
_DIGITS = re.compile(r"[0-9a-f]{7,64}")
_WHOLE = (40, 64)
_LOGIN = re.compile(r"@?([A-Za-z0-9][A-Za-z0-9_-]{0,38}(?:\[bot\])?)")
_ADDRESS = re.compile(r"https?://[^/\s]+/([\w.-]+/[\w.-]+?)(?:\.git)?(?:/(pull|commit)/(\w+)\S*|/)?")

_PULL = "SELECT number, title, author, head_sha, updated_at, is_open, merged FROM"
_BY_NUMBER = Statement(text(f"{_PULL} pulls WHERE upstream = :upstream AND number = :number"))
# `upstream` is left to the outer half, or is a range: SQLite would begin with it and walk all there are.
_ALL_OPEN = "(SELECT * FROM pulls WHERE is_open = 1 AND head_sha >= '' LIMIT 20000) found"
_OPEN = Statement(
    text(
        f"{_PULL} {_ALL_OPEN} WHERE upstream = :upstream AND lower(title) LIKE :pattern ESCAPE '!' ORDER BY number DESC"
    )
)
_BY_AUTHOR = Statement(
    text(
        f"{_PULL} pulls WHERE lower(author) = :author AND upstream >= :upstream AND upstream <= :upstream"
        " ORDER BY upstream DESC, number DESC LIMIT :limit"
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
# A backend's jobs repeat day by day, so its newest rows name nearly all there are.
_JOBS = Statement(
    text(
        "SELECT job_name, workflow_name, max(day_at) AS day_at FROM (SELECT job_name, workflow_name, day_at"
        " FROM job_days WHERE upstream = :upstream AND downstream = :downstream AND kind = :kind"
        " AND day_at >= :since ORDER BY day_at DESC, workflow DESC, job_name DESC LIMIT :looked) newest"
        " WHERE lower(job_name) LIKE :pattern ESCAPE '!' GROUP BY job_name, workflow_name"
        " ORDER BY 3 DESC, job_name, workflow_name LIMIT :limit"
    )
)
_ROWS_OF_JOBS = 60_000
"""How many sums one search may look through."""


def asked_of_history(text: str, upstream: RepoName) -> str | None:
    """The part of a job's name that is searched for; None when a name cannot be meant."""
    asked = _asked(_wanted(text), upstream)
    return asked.text if asked and asked.plain and len(asked.text) >= _SHORTEST else None


async def search(
    tx: Tx, upstream: RepoName, seen: Seen, text: str, now: datetime, *, told: Told = NOTHING_TOLD
) -> SearchView:
    wanted = _wanted(text)
    finder = _Finder(tx, upstream, seen, now, told)
    asked = _asked(wanted, upstream)
    groups = await finder.groups(asked) if asked else []
    hits = [hit for group in groups for hit in group[:MOST]]
    more = tuple(group[0].kind for group in groups if len(group) > MOST)
    return SearchView(wanted, tuple(hits), _exact(asked, hits), more)


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
    seen: Seen
    now: datetime
    told: Told

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
            await self._of_author(asked.login) if asked.login else [],
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
            _OPEN, upstream=self.upstream.key, pattern=_holds(max(title.split(), key=len))
        )
        found = [row for row in rows if all(word in row["title"].casefold() for word in words)]
        return [_pull(row, HitKind.PULL) for row in found[: MOST + 1]]

    async def _of_author(self, login: str) -> list[Hit]:
        rows = await self.tx.all(_BY_AUTHOR, upstream=self.upstream.key, author=login, limit=MOST + 1)
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
        entries = [each for key, each in sorted(self.seen.shown.items()) if part in key]
        return [
            Hit(kind=HitKind.BACKEND, title=each.name.full_name, detail=each.level.name, backend=each.name)
            for each in entries[: MOST + 1]
        ]

    async def _jobs(self, asked: _Asked) -> list[Hit]:
        if len(asked.text) < _SHORTEST or not self.seen.reporting:
            return []
        looked = max(500, _ROWS_OF_JOBS // (len(self.seen.reporting) * len(Kind)))
        params = {"pattern": _holds(asked.text), "looked": looked, "limit": MOST + 1}
        since = to_us(self.now - JOBS_BACK)
        newest: dict[tuple[str, str], tuple[int, str]] = {}
        for name in self.seen.reporting:
            for kind in Kind:
                where = {"upstream": self.upstream.key, "downstream": name, "kind": kind.value}
                rows = self.told.named_of(name, kind)
                if rows is None:
                    rows = await self.tx.all(_JOBS, since=since, **where, **params)
                for row in rows:
                    key, day = (name, row["job_name"]), (row["day_at"], row["workflow_name"])
                    newest[key] = max(day, newest.get(key, day))
        order = sorted(newest.items(), key=lambda each: (-each[1][0], each[0]))
        return [self._job(*key, *last) for key, last in order[: MOST + 1]]

    def _job(self, downstream: str, job_name: str, day_at: int, workflow_name: str) -> Hit:
        entry = self.seen.reporting[downstream]
        return Hit(
            kind=HitKind.JOB,
            title=job_name,
            detail=workflow_name,
            backend=entry.name,
            job=job_name,
            at=from_us(day_at),
        )


def _holds(part: str) -> str:
    """A pattern for LIKE beside `lower`: this text anywhere, its own wildcards being only letters."""
    return "%" + re.sub(r"[%_!]", r"!\g<0>", ascii_lower(part)) + "%"


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
    of = f" of {', '.join(f'#{each}' for each in numbers[:5])}" if numbers else ""
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
