"""Waivers of a pull request, and all waivers page by page; those of hidden backends are left out.

Waivers in force are found from the open pull requests, which are few; the others are read newest first.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.views.commit import WaiverPage, WaiverState, WaiverView
from crcr.decide.views.logs import WaiverQuery
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none, to_us
from crcr.record.views.paging import Key, bad_cursor, read_matching
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

_NEWEST: Key = (2**62, 2**62)
_IN_FORCE_FIRST, _ALL = 0, 1
"""The first value of a cursor: in the section of waivers in force, or in the list of all."""

_COLUMNS = (
    "SELECT w.waiver_id, w.number, w.head_sha, w.until_at, w.downstream, w.job, w.who, w.reason, w.created_at,"
    " w.ended_at, w.ended_by, w.used_at, w.base_ref, p.head_sha AS pull_head, p.base_ref AS pull_base, p.is_open"
)
_AND_PULL = (
    " LEFT JOIN pulls p ON p.upstream = w.upstream AND p.number = w.number WHERE w.upstream = :upstream"
)
_FROM_PULL = "FROM (SELECT * FROM waivers WHERE upstream = :upstream AND number = :number LIMIT 10000) w"
_OF_ONE = f"{_COLUMNS} {_FROM_PULL}{_AND_PULL}"
_BEFORE = (
    " AND w.created_at <= :at AND (w.created_at < :at OR w.waiver_id < :id)"
    " ORDER BY w.created_at DESC, w.waiver_id DESC LIMIT :limit"
)
_OF_PULL = Statement(text(f"{_OF_ONE} ORDER BY w.created_at DESC, w.waiver_id DESC LIMIT 100"))
_PAGE = Statement(text(f"{_COLUMNS} FROM waivers w{_AND_PULL}{_BEFORE}"))
_PAGE_OF_PULL = Statement(text(f"{_OF_ONE}{_BEFORE}"))
# From the open pull requests, which have an index, to their waivers: the other way round would scan all waivers.
_OPEN = "FROM (SELECT * FROM pulls WHERE is_open = 1 AND head_sha >= '' LIMIT 20000) p"
_IN_FORCE = Statement(
    text(
        f"{_COLUMNS} {_OPEN} CROSS JOIN waivers w"
        " WHERE p.upstream = :upstream AND w.upstream = p.upstream AND w.number = p.number AND w.ended_at IS NULL"
        " AND w.base_ref = p.base_ref AND (w.until_at > :now OR (w.until_at IS NULL AND w.head_sha = p.head_sha))"
        " ORDER BY w.created_at DESC, w.waiver_id DESC"
    )
)


async def read_waivers_of_pulls(
    tx: Tx, upstream: RepoName, visible: VisibleBackends, numbers: Iterable[int], now: datetime
) -> tuple[WaiverView, ...]:
    """The newest waivers of each pull request, in force or not."""
    rows: list[Row] = []
    for number in numbers:
        rows += await tx.all(_OF_PULL, upstream=upstream.key, number=number)
    return tuple(_view(row, visible, now) for row in rows if row["downstream"] in visible.public)


async def waiver_page(
    tx: Tx, upstream: RepoName, visible: VisibleBackends, now: datetime, *, after: Key | None, limit: int
) -> WaiverPage:
    query = WaiverQuery(upstream=upstream, newest_first=True, after=after, limit=limit)
    return await waiver_list(tx, query, visible, now)


async def waiver_list(tx: Tx, query: WaiverQuery, visible: VisibleBackends, now: datetime) -> WaiverPage:
    keep = _make_filter(query, visible)
    section, start = _start(query)
    listed: list[Row] = []
    more: Key | None = None
    if section == _IN_FORCE_FIRST:
        rows = await tx.all(_IN_FORCE, upstream=query.upstream.key, now=to_us(now))
        candidates = [row for row in rows if keep(row) and _key(row) < start]
        listed = candidates[: query.limit]
        more = (_IN_FORCE_FIRST, *_key(listed[-1])) if len(candidates) > len(listed) else None
        start = _NEWEST
    if more is None and query.state is not WaiverState.IN_FORCE:
        rows, following = await _read_all(
            tx, replace(query, after=start, limit=query.limit - len(listed)), keep, now
        )
        listed += rows
        more = (_ALL, *following) if following else None
    views = tuple(_view(row, visible, now) for row in listed)
    return WaiverPage(views, more, cursor=await newest_change(tx))


async def _read_all(
    tx: Tx, query: WaiverQuery, keep: Callable[[Row], bool], now: datetime
) -> tuple[list[Row], Key | None]:
    """The list of all waivers, newest first; without those in force where they have a section of their own."""
    statement = _PAGE if query.number is None else _PAGE_OF_PULL
    pull_filter = {} if query.number is None else {"number": query.number}

    async def read(after: Key, limit: int) -> list[Row]:
        at, last = after
        return await tx.all(
            statement, upstream=query.upstream.key, at=at, id=last, limit=limit, **pull_filter
        )

    def matches(row: Row) -> bool:
        state = _state(row, now)
        if query.state is not None:
            return state is query.state and keep(row)
        return (query.newest_first or state is not WaiverState.IN_FORCE) and keep(row)

    return await read_matching(read, query.after or _NEWEST, query.limit, make_key=_key, keep=matches)


def _make_filter(query: WaiverQuery, visible: VisibleBackends) -> Callable[[Row], bool]:
    author, backend = (query.who or "").casefold(), (query.backend or "").casefold()

    def keep(row: Row) -> bool:
        return (
            row["downstream"] in visible.public
            and backend in row["downstream"]
            and (query.number is None or row["number"] == query.number)
            and author in row["who"].casefold()
        )

    return keep


def _start(query: WaiverQuery) -> tuple[int, Key]:
    in_force = query.state is WaiverState.IN_FORCE or (query.state is None and not query.newest_first)
    match query.after:
        case None:
            return (_IN_FORCE_FIRST if in_force else _ALL), _NEWEST
        case (0, int(at), int(waiver_id)) if in_force:
            return _IN_FORCE_FIRST, (at, waiver_id)
        case (1, int(at), int(waiver_id)):
            return _ALL, (at, waiver_id)
    raise bad_cursor()


def _key(row: Row) -> Key:
    return row["created_at"], row["waiver_id"]


def _view(row: Row, visible: VisibleBackends, now: datetime) -> WaiverView:
    return WaiverView(
        waiver_id=row["waiver_id"],
        number=row["number"],
        head_sha=row["head_sha"],
        downstream=visible.full_name(row["downstream"]),
        job=row["job"],
        who=row["who"],
        reason=row["reason"],
        state=_state(row, now),
        created_at=from_us(row["created_at"]),
        until_at=from_us_or_none(row["until_at"]),
        ended_at=from_us_or_none(row["ended_at"]),
        ended_by=row["ended_by"],
        used_at=from_us_or_none(row["used_at"]),
    )


def _state(row: Row, now: datetime) -> WaiverState:
    if row["ended_at"] is not None:
        return WaiverState.TAKEN_BACK
    if row["until_at"] is not None and row["until_at"] <= to_us(now):
        return WaiverState.RUN_OUT
    if row["until_at"] is None and row["head_sha"] != row["pull_head"]:
        return WaiverState.OTHER_COMMIT
    if row["base_ref"] != row["pull_base"]:
        return WaiverState.OTHER_BASE
    return WaiverState.IN_FORCE if row["is_open"] else WaiverState.OVER
