"""Deliveries with their dispatches, in pages or one by one; never with the raw body."""

from typing import Any

from sqlalchemy import bindparam, select, text

from crcr.decide.model import DeliveryState, DispatchState, Level, RepoName
from crcr.decide.views import Answer, DeliveryPage, DeliveryView, DispatchView, JobView
from crcr.errors import BadRequest, NotFound
from crcr.record.database import Row, Tx
from crcr.record.schema import jobs
from crcr.record.statement import Statement
from crcr.record.times import from_us, from_us_or_none
from crcr.record.views_jobs import VIEW_COLUMNS, job_view
from crcr.record.views_listed import Seen

# Start of every list; a page further on begins behind the last row seen.
_NEWEST = (2**62, "")

_PAGE = Statement(
    text(
        "SELECT guid, event, action, state, reason, source, number, head_sha, ref, received_at, body_bytes"
        " FROM deliveries WHERE upstream = :upstream AND received_at <= :at"
        " AND (received_at < :at OR guid < :guid) ORDER BY received_at DESC, guid DESC LIMIT :limit"
    )
)
_ONE = Statement(
    text(
        "SELECT guid, event, action, state, reason, source, number, head_sha, ref, received_at, body_bytes"
        " FROM deliveries WHERE guid = :guid AND upstream = :upstream"
    )
)
_DISPATCHES = Statement(
    text(
        "SELECT * FROM dispatches WHERE upstream = :upstream AND delivery = :delivery"
        " ORDER BY level DESC, downstream"
    )
)
_JOBS = Statement(
    select(*VIEW_COLUMNS)
    .where(jobs.c.upstream == bindparam("upstream"), jobs.c.delivery == bindparam("delivery"))
    .order_by(jobs.c.workflow, jobs.c.job_name, jobs.c.run_id, jobs.c.attempt)
)


async def delivery_page(
    tx: Tx, upstream: RepoName, seen: Seen, *, after: tuple[str | int, ...] | None, limit: int
) -> DeliveryPage:
    at, guid = _start(after)
    rows = await tx.all(_PAGE, upstream=upstream.key, at=at, guid=guid, limit=limit + 1)
    page = rows[:limit]
    views = tuple([_view(row, await _dispatches(tx, upstream, row["guid"], seen, {})) for row in page])
    last = page[-1] if len(rows) > len(page) else None
    return DeliveryPage(views, (last["received_at"], last["guid"]) if last else None)


async def one_delivery(tx: Tx, upstream: RepoName, guid: str, seen: Seen) -> DeliveryView:
    row = await tx.one(_ONE, guid=guid, upstream=upstream.key)
    if row is None:
        raise NotFound(f"no delivery {guid[:64]!r} of {upstream} is known", hint="see /api/v1/deliveries")
    by_backend: dict[str, list[JobView]] = {}
    for job in await tx.all(_JOBS, upstream=upstream.key, delivery=guid):
        if job["downstream"] in seen.reporting:
            by_backend.setdefault(job["downstream"], []).append(job_view(job, seen))
    return _view(row, await _dispatches(tx, upstream, guid, seen, by_backend))


def dispatch_view(row: Row, seen: Seen, jobs_of: tuple[JobView, ...] = ()) -> DispatchView:
    as_stored: dict[str, Any] = {
        name: row[name] for name in ("delivery", "reason", "event", "action", "number", "head_sha")
    }
    return DispatchView(
        downstream=seen.written(row["downstream"]),
        level=Level(row["level"]),
        state=DispatchState(row["state"]),
        test=bool(row["test"]),
        unsure=bool(row["unsure"]),
        created_at=from_us(row["created_at"]),
        sent_at=from_us_or_none(row["sent_at"]),
        superseded_at=from_us_or_none(row["superseded_at"]),
        answer=Answer(row["answer"]) if row["answer"] else None,
        jobs=jobs_of,
        **as_stored,
    )


async def _dispatches(
    tx: Tx, upstream: RepoName, guid: str, seen: Seen, by_backend: dict[str, list[JobView]]
) -> tuple[DispatchView, ...]:
    rows = await tx.all(_DISPATCHES, upstream=upstream.key, delivery=guid)
    return tuple(
        dispatch_view(row, seen, tuple(by_backend.get(row["downstream"], ())))
        for row in rows
        if row["downstream"] in seen.public
    )


def _start(after: tuple[str | int, ...] | None) -> tuple[int, str]:
    match after or _NEWEST:
        case (int(at), str(guid)):
            return at, guid
    raise BadRequest("the cursor is not one of ours", hint="pass on `next` of the page before, unchanged")


def _view(row: Row, dispatches: tuple[DispatchView, ...]) -> DeliveryView:
    return DeliveryView(
        state=DeliveryState(row["state"]),
        received_at=from_us(row["received_at"]),
        dispatches=dispatches,
        **{name: row[name] for name in _AS_STORED},
    )


_AS_STORED = (
    *("guid", "event", "action", "reason", "source"),
    *("number", "head_sha", "ref", "body_bytes"),
)
