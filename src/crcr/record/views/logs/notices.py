"""Notices for pages: the events of threads, newest first, with what was sent to which channel, and why.

Readers who are not administrators see the notices of public backends, and which kinds of channels got them; names, places and
masked addresses of channels are for administrators.
"""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.notices.notice import ChannelKind, NoticeKind, ThreadChange, Topic
from crcr.decide.views.logs import NoticeFilter, NoticeMessageView, NoticePage, NoticeQuery, NoticeView
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none
from crcr.record.views.paging import Key, bad_cursor, read_matching
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

_NEWEST: Key = (2**62,)
_MOST_SEARCHED = 4_000
_EVENTS = Statement(
    text(
        "SELECT e.event_id, e.thread_id, e.backend, e.kind, e.change, e.summary, e.details, e.at, t.topic, t.number, t.path,"
        " t.state, t.opened_at, t.closed_at, t.changed_at, EXISTS (SELECT 1 FROM notice_messages m"
        " WHERE m.event_id = e.event_id AND m.state = 'waiting') AS unsent"
        " FROM notice_events e JOIN notice_threads t ON t.thread_id = e.thread_id"
        " WHERE e.upstream = :upstream AND e.event_id < :before ORDER BY e.event_id DESC LIMIT :limit"
    )
)
# By the ids of a page's events: a page of one upstream may span events of others.
_MESSAGES = Statement(
    text(
        "SELECT event_id, channel, channel_kind, destination, oncalls, reason, state, due_at, finished_at, note"
        " FROM notice_messages WHERE event_id >= :first AND event_id <= :last AND upstream = :upstream"
        " ORDER BY event_id, message_id"
    )
)


async def notice_page(
    tx: Tx,
    query: NoticeQuery,
    visible: VisibleBackends,
    *,
    addresses: Mapping[str, str],
    everything: bool,
) -> NoticePage:
    async def read(after: Key, limit: int) -> list[Row]:
        return await tx.all(_EVENTS, upstream=query.upstream.key, before=after[0], limit=limit)

    rows, more = await read_matching(
        read,
        _cursor_start(query.after or _NEWEST),
        query.limit,
        make_key=lambda row: (row["event_id"],),
        keep=lambda row: _is_listed(row, query, visible),
        most=_MOST_SEARCHED,
    )
    messages = await _read_messages(tx, query, rows, addresses, everything=everything)
    views = tuple(_view(row, visible, tuple(messages.get(row["event_id"], ()))) for row in rows)
    return NoticePage(views, more, cursor=await newest_change(tx))


def _cursor_start(after: Key) -> Key:
    match after:
        case (int(event_id),):
            return (event_id,)
    raise bad_cursor()


def _is_listed(row: Row, query: NoticeQuery, visible: VisibleBackends) -> bool:
    """A backend that left the list is hidden: its visibility is not known any more."""
    if row["backend"] and not visible.everything and row["backend"] not in visible.public:
        return False
    if query.backend is not None and query.backend.casefold() not in row["backend"]:
        return False
    if query.topic is not None and row["topic"] != query.topic.value:
        return False
    if query.state is NoticeFilter.OPEN:
        return row["state"] == "open" and bool(row["at"] == row["changed_at"])
    return query.state is not NoticeFilter.UNSENT or bool(row["unsent"])


async def _read_messages(
    tx: Tx, query: NoticeQuery, rows: list[Row], addresses: Mapping[str, str], *, everything: bool
) -> dict[int, list[NoticeMessageView]]:
    found: dict[int, list[NoticeMessageView]] = {}
    if not rows:
        return found
    ids = {"first": rows[-1]["event_id"], "last": rows[0]["event_id"]}
    for row in await tx.all(_MESSAGES, upstream=query.upstream.key, **ids):
        own: dict[str, Any] = {}
        if everything:
            own = {name: row[name] for name in ("channel", "destination", "reason")}
            own |= {"address": addresses.get(row["channel"]), "oncalls": tuple(json.loads(row["oncalls"]))}
        message = NoticeMessageView(
            kind=ChannelKind(row["channel_kind"]),
            state=row["state"],
            due_at=from_us(row["due_at"]),
            finished_at=from_us_or_none(row["finished_at"]),
            note=row["note"],
            **own,
        )
        found.setdefault(row["event_id"], []).append(message)
    return found


def _view(row: Row, visible: VisibleBackends, messages: tuple[NoticeMessageView, ...]) -> NoticeView:
    entry = visible.shown.get(row["backend"])
    return NoticeView(
        event_id=row["event_id"],
        thread_id=row["thread_id"],
        topic=Topic(row["topic"]),
        kind=NoticeKind(row["kind"]),
        change=ThreadChange(row["change"]),
        at=from_us(row["at"]),
        backend=(entry.name if entry else RepoName(row["backend"])) if row["backend"] else None,
        number=row["number"] or None,
        summary=row["summary"],
        details=tuple(json.loads(row["details"])),
        path=row["path"],
        thread_open=row["state"] == "open",
        opened_at=from_us(row["opened_at"]),
        closed_at=from_us_or_none(row["closed_at"]),
        messages=messages,
    )
