"""Deliveries with their dispatches, in pages or one by one; never with the raw body.

Lists follow `ix_deliveries_recent`, the index of pull requests, or the index of commits, whichever fits the query; the
other filters are applied to the rows that are read, and the number of these is bounded.
"""

import json
from typing import Any

from sqlalchemy import bindparam, select, text

from crcr.decide.model import BISECTION_EVENT, PAIR_EVENT, DeliveryState, DispatchState, Level, RepoName
from crcr.decide.views.logs import DeliveryQuery
from crcr.decide.views.overview import DeliveryPage, DeliveryView, DispatchAnswer, DispatchView, JobView
from crcr.errors import NotFound
from crcr.record.deliveries.dispatch_payloads import trimmed_fields
from crcr.record.schema.main_tables import jobs
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none
from crcr.record.views.backends.jobs import VIEW_COLUMNS, job_view
from crcr.record.views.logs.effects import read_outbox, with_shown_names
from crcr.record.views.paging import Key, bad_cursor, read_matching
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

# The start of every list; a later page begins after the last row of the page before.
_NEWEST: Key = (2**62, "")
_OLDEST: Key = (-1, "")
_KNOWN_ONES = "see /api/v1/deliveries; very old ones are no longer kept"

_SELECT = "SELECT guid, upstream, event, action, state, reason, source, number, head_sha, ref, received_at, body_bytes FROM"
_ALL = f"{_SELECT} deliveries WHERE upstream = :upstream"
# A subquery filters, and the outer query sorts: in one query SQLite would follow the index of times through all deliveries.
_OF_PULL = f"{_SELECT} ({_ALL} AND number = :number LIMIT 10000) found WHERE upstream = :upstream"
_WITH_HEAD = f"{_SELECT} deliveries WHERE head_sha >= :head AND head_sha < :head || 'g' LIMIT 10000"
_OF_HEAD = f"{_SELECT} ({_WITH_HEAD}) found WHERE upstream = :upstream"
# A run of a bisection, or a pair, has one backend: without it, its delivery would show what a hidden backend tests. It is excluded
# in the query, since a cursor has the GUID.
_SHOWN = (
    f" AND (event NOT IN ('{BISECTION_EVENT}', '{PAIR_EVENT}') OR :everything = 1 OR EXISTS (SELECT 1 FROM dispatches d"  # noqa: S608  ours
    " WHERE d.delivery = guid AND d.upstream = :upstream AND d.downstream IN (SELECT value FROM {shown})))"
)
_DOWN = (
    f"{_SHOWN} AND received_at <= :at AND (received_at < :at OR guid < :guid)"
    " ORDER BY received_at DESC, guid DESC LIMIT :limit"
)
_UP = (
    f"{_SHOWN} AND received_at >= :at AND (received_at > :at OR guid > :guid)"
    " ORDER BY received_at, guid LIMIT :limit"
)

_RECENT_DOWN = with_shown_names(_ALL + _DOWN)
_RECENT_UP = with_shown_names(_ALL + _UP)
_PULL_DOWN = with_shown_names(_OF_PULL + _DOWN)
_PULL_UP = with_shown_names(_OF_PULL + _UP)
_HEAD_DOWN = with_shown_names(_OF_HEAD + _DOWN)
_HEAD_UP = with_shown_names(_OF_HEAD + _UP)
_BY_GUID = with_shown_names(f"{_ALL} AND guid = :guid{_SHOWN}")
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


async def delivery_page(tx: Tx, query: DeliveryQuery, visible: VisibleBackends) -> DeliveryPage:
    statement, params = _choose_statement(query)
    params |= _name_shown(visible)

    async def read(after: Key, limit: int) -> list[Row]:
        at, guid = after
        return await tx.all(statement, upstream=query.upstream.key, at=at, guid=guid, limit=limit, **params)

    def keep(row: Row) -> bool:
        return (
            (query.event is None or row["event"] == query.event)
            and (query.state is None or row["state"] == query.state.value)
            and (query.head_sha is None or (row["head_sha"] or "").startswith(query.head_sha.lower()))
        )

    page, more = await read_matching(read, _start(query), query.limit, make_key=_key, keep=keep)
    views = [_view(row, await _read_dispatches(tx, query.upstream, row["guid"], visible, {})) for row in page]
    return DeliveryPage(
        tuple(views), more, cursor=await newest_change(tx), outbox=await read_outbox(tx, query.upstream)
    )


async def read_delivery(tx: Tx, upstream: RepoName, guid: str, visible: VisibleBackends) -> DeliveryView:
    row = await tx.one(_BY_GUID, guid=guid, upstream=upstream.key, **_name_shown(visible))
    if row is None:
        raise NotFound(f"no delivery {guid[:64]!r} of {upstream} is known", hint=_KNOWN_ONES)
    by_backend: dict[str, list[JobView]] = {}
    for job in await tx.all(_JOBS, upstream=upstream.key, delivery=guid):
        if job["downstream"] in visible.reporting:
            by_backend.setdefault(job["downstream"], []).append(job_view(job, visible))
    return _view(row, await _read_dispatches(tx, upstream, guid, visible, by_backend))


def dispatch_view(row: Row, visible: VisibleBackends, jobs_shown: tuple[JobView, ...] = ()) -> DispatchView:
    as_stored: dict[str, Any] = {
        name: row[name] for name in ("delivery", "reason", "event", "action", "number", "head_sha")
    }
    return DispatchView(
        downstream=visible.full_name(row["downstream"]),
        level=Level(row["level"]),
        state=DispatchState(row["state"]),
        test=bool(row["test"]),
        unsure=bool(row["unsure"]),
        created_at=from_us(row["created_at"]),
        sent_at=from_us_or_none(row["sent_at"]),
        superseded_at=from_us_or_none(row["superseded_at"]),
        answer=DispatchAnswer(row["answer"]) if row["answer"] else None,
        trimmed=trimmed_fields(row),
        jobs=jobs_shown,
        **as_stored,
    )


async def _read_dispatches(
    tx: Tx, upstream: RepoName, guid: str, visible: VisibleBackends, by_backend: dict[str, list[JobView]]
) -> tuple[DispatchView, ...]:
    rows = await tx.all(_DISPATCHES, upstream=upstream.key, delivery=guid)
    return tuple(
        dispatch_view(row, visible, tuple(by_backend.get(row["downstream"], ())))
        for row in rows
        if row["downstream"] in visible.public
    )


def _choose_statement(query: DeliveryQuery) -> tuple[Statement, dict[str, Any]]:
    """The statement whose index is the most selective for this query."""
    if query.number is not None:
        return _PULL_UP if query.oldest_first else _PULL_DOWN, {"number": query.number}
    if query.head_sha is not None:
        return _HEAD_UP if query.oldest_first else _HEAD_DOWN, {"head": query.head_sha.lower()}
    return _RECENT_UP if query.oldest_first else _RECENT_DOWN, {}


def _name_shown(visible: VisibleBackends) -> dict[str, Any]:
    return {"everything": int(visible.everything), "shown": json.dumps(sorted(visible.public))}


def _start(query: DeliveryQuery) -> Key:
    match query.after or (_OLDEST if query.oldest_first else _NEWEST):
        case (int(at), str(guid)):
            return at, guid
    raise bad_cursor()


def _key(row: Row) -> Key:
    return row["received_at"], row["guid"]


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
