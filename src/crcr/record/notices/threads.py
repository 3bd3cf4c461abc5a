"""Threads of notices and their events. `queue_notice` is called in the transaction that records the fact.

It needs neither the allowlist nor the channels: an effect routes the event to its channels afterwards (`messages`). So a part
that has something to tell depends on nothing that sends.
"""

import json
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.model import EffectKind, RepoName
from crcr.decide.notices.notice import ENDING, THREADS, NoticeEvent, ThreadChange, Topic, thread_state
from crcr.record.change_and_audit_log import note_change
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.schema.notices import notice_events, notice_marks, notice_threads
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import from_us, from_us_or_none, to_us

NOTICES_TARGET = "notices"
"""The target of routing, and what the targets of sending begin with."""
CHANGE_KIND = "notice"
_SUBJECT = ("upstream", "topic", "backend", "number", "item")
_NEWEST = Statement(
    text(
        "SELECT thread_id, state, summary, details, changed_at, closed_at FROM notice_threads WHERE upstream = :upstream"
        " AND topic = :topic AND backend = :backend AND number = :number AND item = :item"
        " ORDER BY thread_id DESC LIMIT 1"
    )
)
_OPEN_THREADS = Statement(
    text(
        "SELECT thread_id, backend, number, item, kind, summary, details FROM notice_threads WHERE upstream = :upstream"
        " AND topic = :topic AND state = 'open' ORDER BY backend, thread_id LIMIT :most"
    )
)
_CLOSED_PULLS = Statement(
    text(
        "SELECT t.backend, t.number, p.merged FROM notice_threads t JOIN pulls p ON p.upstream = t.upstream"
        " AND p.number = t.number WHERE t.upstream = :upstream AND t.topic = 'gate' AND t.state = 'open'"
        " AND p.is_open = 0 ORDER BY t.thread_id LIMIT :most"
    )
)
_OPEN_OF_PULL = Statement(
    text(
        "SELECT thread_id, backend FROM notice_threads WHERE upstream = :upstream AND number = :number"
        " AND topic = 'gate' AND state = 'open' ORDER BY thread_id"
    )
)
_ADD_THREAD = Statement(
    inserting(
        notice_threads,
        *(*_SUBJECT, "state", "kind", "change", "summary", "details", "path"),
        *("opened_at", "changed_at", "closed_at"),
    ).returning(notice_threads.c.thread_id)
)
# A reopened thread keeps the time of its first opening: it is one story.
_CHANGE_THREAD = Statement(
    text(
        "UPDATE notice_threads SET state = :state, kind = :kind, change = :change, summary = :summary,"
        " details = :details, path = :path, changed_at = :at, closed_at = :closed_at WHERE thread_id = :thread_id"
    )
)
_ADD_EVENT = Statement(
    inserting(notice_events, "thread_id", "upstream", "backend", "kind", "change", "summary", "details", "at")
)
_OLD = Statement(
    text(
        "SELECT thread_id, number FROM notice_threads WHERE upstream = :upstream AND state = 'closed' AND closed_at < :before"
        " ORDER BY closed_at LIMIT :most"
    )
)
_FORGET = tuple(
    Statement(text(f"DELETE FROM {table} WHERE thread_id = :thread_id"))  # noqa: S608  our own names
    for table in ("notice_messages", "notice_events", "notice_threads")
)
_FORGET_POSTS = Statement(
    text("DELETE FROM notice_posts WHERE upstream = :upstream AND thread_id = :thread_id")
)
# The one comment of a pull request goes with its last thread.
_FORGET_COMMENTS = Statement(
    text(
        "DELETE FROM notice_posts WHERE upstream = :upstream AND thread_id = 0 AND destination = :destination"
        " AND NOT EXISTS (SELECT 1 FROM notice_threads t WHERE t.upstream = :upstream AND t.number = :number)"
    )
)
_MARK = Statement(inserting(notice_marks, "upstream", "backend", "at").on_conflict_do_nothing())
_MOST_OPEN = 1_000


async def queue_notice(tx: Tx, event: NoticeEvent, now: datetime) -> ThreadChange:
    """Record the event in its subject's thread, and have it sent; return what it changed.

    An event that says what the open thread says already changes nothing, and so does the end of what nobody was told.
    """
    subject = _subject(event)
    newest = await tx.one(_NEWEST, **subject)
    change = _judge(newest, event, now)
    if change is ThreadChange.NOTHING:
        return change
    is_over = change in ENDING
    content: dict[str, Any] = {
        "state": "closed" if is_over else "open",
        "kind": event.kind.value,
        "change": change.value,
        "summary": event.summary,
        "details": json.dumps(event.details),
        "path": event.path,
        "closed_at": to_us(now) if is_over else None,
    }
    if newest is None or change in {ThreadChange.OPENED, ThreadChange.REPORTED}:
        [row] = await tx.all(_ADD_THREAD, **subject, **content, opened_at=to_us(now), changed_at=to_us(now))
        thread_id = row["thread_id"]
    else:
        thread_id = newest["thread_id"]
        await tx.run(_CHANGE_THREAD, thread_id=thread_id, at=to_us(now), **content)
    await tx.run(
        _ADD_EVENT,
        thread_id=thread_id,
        upstream=event.upstream.key,
        backend=subject["backend"],
        kind=event.kind.value,
        change=change.value,
        summary=event.summary,
        details=content["details"],
        at=to_us(now),
    )
    await add_once(tx, route_effect(event.upstream, now))
    await note_change(tx, event.upstream, CHANGE_KIND, downstream=subject["backend"] or None, now=now)
    return change


async def changes_thread(
    tx: Tx, event: NoticeEvent, now: datetime, *, quiet_for: timedelta = timedelta(0)
) -> bool:
    """Whether queueing the event would change anything; reads only.

    For `quiet_for` after a change a thread is not updated or reopened, so that the next look finds the newest content.
    """
    newest = await tx.one(_NEWEST, **_subject(event))
    change = _judge(newest, event, now)
    if newest is not None and change in {ThreadChange.UPDATED, ThreadChange.REOPENED}:
        return not timedelta(0) <= now - from_us(newest["changed_at"]) < quiet_for
    return change is not ThreadChange.NOTHING


def _subject(event: NoticeEvent) -> dict[str, Any]:
    return {
        "upstream": event.upstream.key,
        "topic": event.topic.value,
        "backend": event.backend.key if event.backend else "",
        "number": event.number or 0,
        "item": event.item,
    }


def _judge(newest: Row | None, event: NoticeEvent, now: datetime) -> ThreadChange:
    state = thread_state(
        is_open=newest is not None and newest["state"] == "open",
        closed_at=from_us_or_none(newest["closed_at"]) if newest else None,
        now=now,
    )
    change = THREADS[state, event.step]
    if newest is not None and change is ThreadChange.UPDATED:
        said = newest["summary"], tuple(json.loads(newest["details"]))
        return ThreadChange.NOTHING if said == (event.summary, event.details) else change
    return change


def route_effect(upstream: RepoName, now: datetime) -> dict[str, Any]:
    return effect_row(upstream, EffectKind.ROUTE_NOTICES, target=NOTICES_TARGET, lane=NOTICES_TARGET, now=now)


async def read_open_threads(tx: Tx, upstream: RepoName, topic: Topic) -> list[Row]:
    return await tx.all(_OPEN_THREADS, upstream=upstream.key, topic=topic.value, most=_MOST_OPEN)


async def read_blocked_backends(tx: Tx, upstream: RepoName, number: int) -> list[RepoName]:
    """The backends with an open thread about this pull request's gate."""
    rows = await tx.all(_OPEN_OF_PULL, upstream=upstream.key, number=number)
    return [RepoName(row["backend"]) for row in rows]


async def mark_backend(tx: Tx, upstream: str, backend: str, now: datetime) -> None:
    """Have the leader look at a backend whose job failed on the base; written in the backend's own lane."""
    await tx.run(_MARK, upstream=upstream, backend=backend, at=to_us(now))


async def read_closed_pulls(tx: Tx, upstream: RepoName) -> list[Row]:
    """The open threads about gates of pull requests that are closed by now."""
    return await tx.all(_CLOSED_PULLS, upstream=upstream.key, most=_MOST_OPEN)


async def forget_threads(tx: Tx, *, upstream: str, before: int, most: int) -> int:
    """Delete some threads that were closed before this time, with everything about them; return how many."""
    rows = await tx.all(_OLD, upstream=upstream, before=before, most=most)
    for row in rows:
        for statement in _FORGET:
            await tx.run(statement, thread_id=row["thread_id"])
        await tx.run(_FORGET_POSTS, upstream=upstream, thread_id=row["thread_id"])
        if row["number"]:
            number = {"number": row["number"], "destination": str(row["number"])}
            await tx.run(_FORGET_COMMENTS, upstream=upstream, **number)
    return len(rows)
