"""Pull requests by number, title or author, and commits by their first digits; open ones with the state of their gate.

Titles are searched among all open pull requests, and among the newest `CLOSED_SEARCHED` before the cursor for closed ones:
there is no index over words, and a walk along the key by number is bounded.
"""
# ruff: noqa: S608 - every name in these statements is our own

import json
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.views.commit import GateShown, PullState
from crcr.decide.views.search import Hit, HitKind, Key
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us
from crcr.record.views.paging import bad_cursor
from crcr.record.views.search.search_terms import SHORTEST, name_pattern

CLOSED_SEARCHED = 10_000
_PAST_ALL_NUMBERS = 2**31 - 1

_COLUMNS = "number, title, author, head_sha, updated_at, is_open, merged"
_PULL = f"SELECT {_COLUMNS} FROM"
_BY_NUMBER = Statement(text(f"{_PULL} pulls WHERE upstream = :upstream AND number = :number"))
# `upstream` is tested in the outer query, or as a range: SQLite would otherwise scan all rows of the upstream.
_ALL_OPEN = "(SELECT * FROM pulls WHERE is_open = 1 AND head_sha >= '' LIMIT 20000) found"
_OPEN = Statement(
    text(
        f"{_PULL} {_ALL_OPEN} WHERE upstream = :upstream AND number < :before"
        " AND lower(title) LIKE :pattern ESCAPE '!' ORDER BY number DESC"
    )
)
_CLOSED = Statement(
    text(
        f"{_PULL} (SELECT {_COLUMNS} FROM pulls WHERE upstream >= :upstream AND upstream <= :upstream"
        " AND number < :before ORDER BY upstream DESC, number DESC LIMIT :looked) newest"
        " WHERE is_open = 0 AND lower(title) LIKE :pattern ESCAPE '!' ORDER BY number DESC"
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
        "SELECT head_sha, delivery, numbers, created_at, destroyed_at FROM merge_groups WHERE head_sha >= :digits"
        " AND head_sha < :digits || 'g' AND upstream = :upstream ORDER BY head_sha LIMIT 100"
    )
)
_GATES = Statement(
    text(
        "SELECT head_sha, state FROM gates WHERE head_sha IN (SELECT value FROM json_each(:heads))"
        " AND upstream = :upstream"
    ),
    on_postgresql=text(
        "SELECT head_sha, state FROM gates WHERE head_sha IN"
        " (SELECT json_array_elements_text(CAST(:heads AS json))) AND upstream = :upstream"
    ),
)
_SHOWN_GATES = frozenset(state.value for state in GateShown)


async def find_by_number(tx: Tx, upstream: RepoName, number: int) -> list[Hit]:
    rows = await tx.all(_BY_NUMBER, upstream=upstream.key, number=number)
    return await add_gates(tx, upstream, [_pull(row, HitKind.PULL) for row in rows])


async def find_by_title(
    tx: Tx, upstream: RepoName, title: str, *, after: Key | None, limit: int, looked: int = CLOSED_SEARCHED
) -> tuple[list[Hit], Key | None]:
    """Pull requests with all these words in their title, open ones first; the queries filter by the longest word."""
    if len(title) < SHORTEST:
        return [], None
    are_open, before = _read_title_cursor(after)
    words = title.casefold().split()
    key = {"upstream": upstream.key, "pattern": name_pattern(max(title.split(), key=len))}
    found: list[Row] = []
    if are_open:
        found += _with_words(await tx.all(_OPEN, before=before, **key), words)
        before = _PAST_ALL_NUMBERS
    if len(found) <= limit:
        found += _with_words(await tx.all(_CLOSED, before=before, looked=looked, **key), words)
    hits = await add_gates(tx, upstream, [_pull(row, HitKind.PULL) for row in found[:limit]])
    more = len(found) > limit
    return hits, (found[limit - 1]["is_open"], found[limit - 1]["number"]) if more else None


async def find_by_author(
    tx: Tx, upstream: RepoName, login: str, *, after: Key | None, limit: int
) -> tuple[list[Hit], Key | None]:
    parameters = {"upstream": upstream.key, "author": login, "before": _read_number(after)}
    rows = await tx.all(_BY_AUTHOR, limit=limit + 1, **parameters)
    hits = await add_gates(tx, upstream, [_pull(row, HitKind.AUTHOR) for row in rows[:limit]])
    return hits, (rows[limit - 1]["number"],) if len(rows) > limit else None


async def find_commits(tx: Tx, upstream: RepoName, digits: str) -> list[Hit]:
    """The newest delivery of each commit; without one, the pull request or merge group with that head."""
    key = {"upstream": upstream.key, "digits": digits}
    hits: dict[str, Hit] = {}
    to_merge: set[str] = set()
    for row in await tx.all(_DELIVERED, **key):
        hits.setdefault(row["head_sha"], _delivered(row))
    for row in await tx.all(_GROUPS, **key):
        hits[row["head_sha"]] = _group(row)
        if row["destroyed_at"] is None:
            to_merge.add(row["head_sha"])
    for row in await tx.all(_HEADS, **key):
        delivered = hits.get(row["head_sha"])
        hits[row["head_sha"]] = _head(row, delivered.delivery if delivered else None)
        to_merge.add(row["head_sha"])
    newest = sorted(hits.values(), key=_last_change, reverse=True)
    gates = await _read_gates(tx, upstream, sorted(to_merge))
    return [replace(hit, gate=gates.get(hit.head_sha or "")) for hit in newest]


def _last_change(hit: Hit) -> tuple[float, str]:
    return hit.at.timestamp() if hit.at else 0.0, hit.head_sha or ""


async def add_gates(tx: Tx, upstream: RepoName, hits: Sequence[Hit]) -> list[Hit]:
    """Add the state of the gate to open pull requests; that of a closed one is history."""
    heads = [hit.head_sha for hit in hits if hit.state is PullState.OPEN and hit.head_sha]
    gates = await _read_gates(tx, upstream, heads)
    return [
        replace(hit, gate=gates.get(hit.head_sha or "")) if hit.state is PullState.OPEN else hit
        for hit in hits
    ]


async def _read_gates(tx: Tx, upstream: RepoName, heads: Sequence[str]) -> dict[str, GateShown]:
    if not heads:
        return {}
    rows = await tx.all(_GATES, upstream=upstream.key, heads=json.dumps(heads))
    return {row["head_sha"]: GateShown(row["state"]) for row in rows if row["state"] in _SHOWN_GATES}


def _with_words(rows: Sequence[Row], words: Sequence[str]) -> list[Row]:
    return [row for row in rows if all(word in row["title"].casefold() for word in words)]


def _read_title_cursor(after: Key | None) -> tuple[bool, int]:
    match after:
        case None:
            return True, _PAST_ALL_NUMBERS
        case (int(is_open), int(number)) if 0 < number <= _PAST_ALL_NUMBERS:
            return bool(is_open), number
    raise bad_cursor()


def _read_number(after: Key | None) -> int:
    match after:
        case None:
            return _PAST_ALL_NUMBERS
        case (int(number),) if 0 < number <= _PAST_ALL_NUMBERS:
            return number
    raise bad_cursor()


def _pull(row: Row, kind: HitKind) -> Hit:
    state = PullState.OPEN if row["is_open"] else PullState.MERGED if row["merged"] else PullState.CLOSED
    return Hit(
        kind=kind,
        title=row["title"],
        detail=f"{state}, by {row['author']}",
        number=row["number"],
        head_sha=row["head_sha"],
        at=from_us(row["updated_at"]),
        state=state,
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
