"""Waivers for pages: those of a pull request, and all of them in pages; never of a backend that is not to be seen."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.views_commit import WaiverPage, WaiverState, WaiverView
from crcr.errors import BadRequest
from crcr.record.database import Row, Tx
from crcr.record.statement import Statement
from crcr.record.times import from_us, from_us_or_none, to_us
from crcr.record.views_listed import Seen

_NEWEST = (2**62, 2**62)

_WAIVER = (
    "SELECT w.waiver_id, w.number, w.head_sha, w.until_at, w.downstream, w.job, w.who, w.reason, w.created_at,"
    " w.ended_at, w.ended_by, w.used_at, p.head_sha AS pull_head, p.is_open FROM waivers w"
    " LEFT JOIN pulls p ON p.upstream = w.upstream AND p.number = w.number WHERE w.upstream = :upstream"
)
_OF_PULL = Statement(
    text(f"{_WAIVER} AND w.number = :number ORDER BY w.created_at DESC, w.waiver_id DESC LIMIT 100")
)
_PAGE = Statement(
    text(
        f"{_WAIVER} AND w.created_at <= :at AND (w.created_at < :at OR w.waiver_id < :id)"
        " ORDER BY w.created_at DESC, w.waiver_id DESC LIMIT :limit"
    )
)


async def waivers_of_pulls(
    tx: Tx, upstream: RepoName, seen: Seen, numbers: Iterable[int], now: datetime
) -> tuple[WaiverView, ...]:
    """The newest of each, in force or past."""
    rows: list[Row] = []
    for number in numbers:
        rows += await tx.all(_OF_PULL, upstream=upstream.key, number=number)
    return tuple(_view(row, seen, now) for row in rows if row["downstream"] in seen.public)


async def waiver_page(
    tx: Tx, upstream: RepoName, seen: Seen, now: datetime, *, after: tuple[str | int, ...] | None, limit: int
) -> WaiverPage:
    at, last = _start(after)
    shown: list[Row] = []
    while len(shown) <= limit:
        rows = await tx.all(_PAGE, upstream=upstream.key, at=at, id=last, limit=limit + 1)
        if not rows:
            break
        at, last = rows[-1]["created_at"], rows[-1]["waiver_id"]
        shown += (row for row in rows if row["downstream"] in seen.public)
    page = shown[:limit]
    more = (page[-1]["created_at"], page[-1]["waiver_id"]) if len(shown) > limit else None
    return WaiverPage(tuple(_view(row, seen, now) for row in page), more)


def _start(after: tuple[str | int, ...] | None) -> tuple[int, int]:
    match after or _NEWEST:
        case (int(at), int(waiver_id)):
            return at, waiver_id
    raise BadRequest("the cursor is not one of ours", hint="pass on `next` of the page before, unchanged")


def _view(row: Row, seen: Seen, now: datetime) -> WaiverView:
    return WaiverView(
        waiver_id=row["waiver_id"],
        number=row["number"],
        head_sha=row["head_sha"],
        downstream=seen.written(row["downstream"]),
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
    return WaiverState.IN_FORCE if row["is_open"] else WaiverState.OVER
