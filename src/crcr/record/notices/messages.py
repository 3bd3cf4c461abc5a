"""Messages: new events are routed to channels, and what waits for one place of a channel is sent together.

A batch is fixed in the transaction before its first attempt: a repeated attempt sends the same messages under the same id.
Messages are finished after the receiver has answered, so none is lost; a receiver that saw an answered batch twice knows it
by its id.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.model import EffectKind, RepoName
from crcr.decide.notices.announcements import may_comment
from crcr.decide.notices.notice import (
    CHANGES_SENT,
    ENDING,
    GATHERING,
    UNSENT_FOR,
    ChannelKind,
    ChannelRules,
    NoticeEvent,
    NoticeKind,
    ThreadChange,
    Topic,
    find_destination,
    quiet_end,
    send_at,
)
from crcr.decide.notices.texts import ThreadText
from crcr.errors import NoAllowlist
from crcr.record.change_and_audit_log import note_change
from crcr.record.notices.threads import CHANGE_KIND, NOTICES_TARGET, route_effect
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.schema.notices import notice_messages, notice_posts
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import from_us, from_us_or_none, to_us

_MOST_ROUTED = 200
_MOST_IN_BATCH = 200
_THREAD = (
    "t.thread_id, t.upstream, t.topic, t.backend, t.number, t.item, t.state, t.kind, t.change, t.summary, t.details,"
    " t.path, t.opened_at, t.closed_at"
)
_UNROUTED = Statement(
    text(
        f"SELECT e.event_id, e.kind AS event_kind, e.change AS event_change, {_THREAD} FROM notice_events e"  # noqa: S608  our own text
        " JOIN notice_threads t ON t.thread_id = e.thread_id WHERE e.upstream = :upstream AND e.routed = 0"
        " ORDER BY e.event_id LIMIT :most"
    )
)
_MARK_ROUTED = Statement(text("UPDATE notice_events SET routed = 1 WHERE event_id = :event_id"))
_ADD = Statement(
    inserting(
        notice_messages,
        *("event_id", "thread_id", "upstream", "channel", "channel_kind", "destination", "change"),
        *("oncalls", "reason", "state", "due_at", "created_at"),
    )
)
_OF_QUEUE = "m.upstream = :upstream AND m.channel = :channel AND m.destination = :destination"
_WAITING = f"FROM notice_messages m WHERE {_OF_QUEUE} AND m.state = 'waiting'"
_FIXED = Statement(
    text(f"SELECT m.batch_id {_WAITING} AND m.batch_id IS NOT NULL ORDER BY m.message_id LIMIT 1")
)
# The id of a batch is that of a message in it: an id that came back with other messages would be taken for a repeat.
_FIRST_DUE = Statement(
    text(
        "SELECT min(m.message_id) AS message_id, min(m.due_at) AS due_at"
        f" {_WAITING} AND m.batch_id IS NULL AND m.due_at <= :due_by"
    )
)
_NEXT_DUE = Statement(text(f"SELECT min(m.due_at) AS due_at {_WAITING}"))
_FIX_BATCH = Statement(
    text(
        "UPDATE notice_messages SET batch_id = :batch_id WHERE message_id IN (SELECT m.message_id"  # noqa: S608
        f" {_WAITING} AND m.batch_id IS NULL AND m.due_at <= :due_by ORDER BY m.message_id LIMIT :most)"
    )
)
# As the events were, not as the threads are by now: a repeated attempt must not say something else.
_BATCH = Statement(
    text(
        "SELECT m.message_id, m.oncalls, m.created_at, t.thread_id, t.upstream, t.backend, t.number, t.path, t.opened_at,"  # noqa: S608
        " e.kind, e.change, e.summary, e.details, e.at FROM notice_messages m"
        " JOIN notice_events e ON e.event_id = m.event_id JOIN notice_threads t ON t.thread_id = m.thread_id"
        f" WHERE {_OF_QUEUE} AND m.state = 'waiting' AND m.batch_id = :batch_id ORDER BY m.message_id"
    )
)
_FINISH = Statement(
    text(
        f"UPDATE notice_messages AS m SET state = :becomes, finished_at = :at, note = :note WHERE {_OF_QUEUE}"  # noqa: S608
        " AND m.state = 'waiting' AND m.batch_id = :batch_id"
    )
)
_DROP_ALL = Statement(
    text(
        f"UPDATE notice_messages AS m SET state = 'dropped', finished_at = :at, note = :note WHERE {_OF_QUEUE}"  # noqa: S608
        " AND m.state = 'waiting'"
    )
)
_DROP_OLD = Statement(
    text(
        f"UPDATE notice_messages AS m SET state = 'dropped', finished_at = :at, note = :note WHERE {_OF_QUEUE}"  # noqa: S608
        " AND m.state = 'waiting' AND m.due_at < :before"
    )
)
_BY_ID = Statement(text(f"SELECT {_THREAD} FROM notice_threads t WHERE t.thread_id = :thread_id"))  # noqa: S608
_OF_PULL = Statement(
    text(
        f"SELECT {_THREAD} FROM notice_threads t WHERE t.upstream = :upstream AND t.number = :number"  # noqa: S608
        " ORDER BY t.thread_id DESC LIMIT 100"
    )
)
_POST = Statement(
    text(
        "SELECT attempted_at, remote_id FROM notice_posts WHERE upstream = :upstream AND channel = :channel"
        " AND destination = :destination AND thread_id = :thread_id"
    )
)
_ATTEMPT_POST = Statement(
    inserting(
        notice_posts, "upstream", "channel", "destination", "thread_id", "attempted_at"
    ).on_conflict_do_nothing()
)
_SET_REMOTE = Statement(
    text(
        "UPDATE notice_posts SET remote_id = :remote_id WHERE upstream = :upstream AND channel = :channel"
        " AND destination = :destination AND thread_id = :thread_id"
    )
)


@dataclass(frozen=True, slots=True)
class MessageQueue:
    """The messages for one place of one channel: its only address, a repository, or a pull request."""

    upstream: RepoName
    channel: str
    destination: str

    @property
    def key(self) -> dict[str, str]:
        return {
            "upstream": self.upstream.key,
            "channel": self.channel,
            "destination": self.destination,
        }


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that are sent together; of each thread the newest event among them."""

    batch_id: int
    threads: tuple[ThreadText, ...]
    at: datetime
    """When its first event was recorded, so that a repeated attempt has the same content."""


@dataclass(frozen=True, slots=True)
class Post:
    """An issue or comment that may exist: `remote_id` is None while no answer has named it."""

    attempted_at: datetime
    remote_id: int | None


class NoticeMessages:
    def __init__(
        self,
        database: Database,
        allowlists: Allowlists,
        targets: Downstreams,
        *,
        channels: Mapping[str, ChannelRules],
        upstream_channels: Mapping[str, tuple[str, ...]],
        hud_url: str,
    ) -> None:
        """`upstream_channels` are the names that each upstream's own setting gives, by the upstream's key."""
        self._database = database
        self._allowlists = allowlists
        self._targets = targets
        self._channels = channels
        self._upstream_channels = upstream_channels
        self._hud_url = hud_url.rstrip("/")

    async def route(self, upstream: RepoName, now: datetime) -> int:
        """Choose the channels of new events, and queue their messages; return how many events there were."""

        async def unit(tx: Tx) -> int:
            events = await tx.all(_UNROUTED, upstream=upstream.key, most=_MOST_ROUTED)
            allowlist = await self._read_allowlist(tx, upstream)
            for row in events:
                await self._route_event(tx, row, allowlist, now)
            if len(events) == _MOST_ROUTED:
                await add_once(tx, route_effect(upstream, now))
            return len(events)

        return await self._database.write(unit)

    async def _read_allowlist(self, tx: Tx, upstream: RepoName) -> Allowlist:
        try:
            return await self._allowlists.in_force(tx, upstream)
        except NoAllowlist:
            return Allowlist(())

    async def _route_event(self, tx: Tx, row: Row, allowlist: Allowlist, now: datetime) -> None:
        event = _event_from(row)
        entry = allowlist.find(event.backend) if event.backend else None
        change = ThreadChange(row["event_change"])
        for name, reason in self._choose_channels(event.upstream, entry).items():
            rules = self._channels.get(name)
            if rules is None or change not in CHANGES_SENT[rules.kind]:
                continue
            destination = find_destination(rules.kind, event)
            is_hidden = rules.kind is ChannelKind.COMMENT and not may_comment(event.topic, entry)
            if destination is None or is_hidden:
                continue
            queue, due_at = MessageQueue(event.upstream, name, destination), send_at(rules, now)
            await tx.run(
                _ADD,
                **queue.key,
                event_id=row["event_id"],
                thread_id=row["thread_id"],
                channel_kind=rules.kind.value,
                change=change.value,
                oncalls=json.dumps(entry.oncalls if entry else ()),
                reason=reason,
                state="waiting",
                due_at=to_us(due_at),
                created_at=to_us(now),
            )
            await add_once(tx, _send_effect(queue, now, due_at))
        await tx.run(_MARK_ROUTED, event_id=row["event_id"])

    def _choose_channels(self, upstream: RepoName, entry: AllowlistEntry | None) -> dict[str, str]:
        """The names of channels, each with the reason why it gets the event."""
        own = dict.fromkeys(entry.channels, f"the entry of {entry.name} names it") if entry else {}
        general = dict.fromkeys(
            self._upstream_channels.get(upstream.key, ()), "the upstream's setting names it"
        )
        return {**general, **own}

    def quiet_until(self, queue: MessageQueue, now: datetime) -> datetime | None:
        """The end of the channel's quiet hours, None outside of them."""
        rules = self._channels.get(queue.channel)
        return quiet_end(rules, now) if rules else None

    async def next_batch(self, queue: MessageQueue, now: datetime) -> Batch | None:
        """Return the messages to send now, after fixing which they are; None when nothing is due.

        A batch whose sending was attempted comes first, and is what it was.
        """

        async def unit(tx: Tx) -> Batch | None:
            old = {
                "at": to_us(now),
                "note": "could not be sent for 7 days",
                "before": to_us(now - UNSENT_FOR),
            }
            await tx.run(_DROP_OLD, **queue.key, **old)
            fixed = await tx.one(_FIXED, **queue.key)
            batch_id = fixed["batch_id"] if fixed else await self._fix_batch(tx, queue, now)
            if batch_id is None:
                await self._queue_rest(tx, queue, now)
                return None
            rows = await tx.all(_BATCH, **queue.key, batch_id=batch_id)
            return self._batch(batch_id, rows)

        return await self._database.write(unit)

    async def _fix_batch(self, tx: Tx, queue: MessageQueue, now: datetime) -> int | None:
        """Take the messages that are due, and those that are a moment later; return the batch's id, None without any."""
        due_by = to_us(now + GATHERING)
        first = await tx.one(_FIRST_DUE, **queue.key, due_by=due_by)
        if first is None or first["message_id"] is None or first["due_at"] > to_us(now):
            return None
        batch_id: int = first["message_id"]
        await tx.run(_FIX_BATCH, **queue.key, batch_id=batch_id, due_by=due_by, most=_MOST_IN_BATCH)
        return batch_id

    def _batch(self, batch_id: int, rows: list[Row]) -> Batch:
        newest = {row["thread_id"]: row for row in rows}
        threads = []
        for row in newest.values():
            is_open = ThreadChange(row["change"]) not in ENDING
            end = {"state": "open" if is_open else "closed", "closed_at": None if is_open else row["at"]}
            threads.append(self._thread_text({**dict(row), **end}, tuple(json.loads(row["oncalls"]))))
        return Batch(batch_id, tuple(threads), from_us(rows[0]["created_at"]))

    async def finish(
        self, queue: MessageQueue, batch: Batch, now: datetime, *, note: str | None = None
    ) -> None:
        """Record that the batch was sent; with `note` that it was dropped, and why."""

        async def unit(tx: Tx) -> None:
            state = "sent" if note is None else "dropped"
            await tx.run(
                _FINISH, **queue.key, batch_id=batch.batch_id, becomes=state, at=to_us(now), note=note
            )
            await note_change(tx, queue.upstream, CHANGE_KIND, now=now)
            await self._queue_rest(tx, queue, now)

        await self._database.write(unit)

    async def _queue_rest(self, tx: Tx, queue: MessageQueue, now: datetime) -> None:
        """Messages that became due later than the effect that runs now need another one."""
        rest = await tx.one(_NEXT_DUE, **queue.key)
        if rest is not None and rest["due_at"] is not None:
            await add_once(tx, _send_effect(queue, now, max(now, from_us(rest["due_at"]))))

    async def drop_all(self, queue: MessageQueue, note: str, now: datetime) -> None:
        await self._database.write(lambda tx: tx.run(_DROP_ALL, **queue.key, at=to_us(now), note=note))

    async def read_pull_threads(self, upstream: RepoName, number: int) -> tuple[ThreadText, ...]:
        """The newest thread of every subject of a pull request, with the on-calls of the allowlist in force."""

        async def unit(tx: Tx) -> tuple[ThreadText, ...]:
            allowlist = await self._read_allowlist(tx, upstream)
            newest: dict[tuple[Any, ...], Row] = {}
            for row in await tx.all(_OF_PULL, upstream=upstream.key, number=number):
                newest.setdefault((row["topic"], row["backend"], row["item"]), row)
            texts = []
            for row in newest.values():
                entry = allowlist.find(RepoName(row["backend"])) if row["backend"] else None
                oncalls = entry.oncalls if entry else ()
                if may_comment(Topic(row["topic"]), entry):
                    texts.append(self._thread_text(row, oncalls))
            return tuple(texts)

        return await self._database.quick_read(unit)

    async def read_current(self, thread: ThreadText) -> ThreadText:
        """The thread as it is now: an issue always shows the newest state."""
        row = await self._database.quick_read(lambda tx: tx.one(_BY_ID, thread_id=thread.thread_id))
        return thread if row is None else self._thread_text(row, thread.oncalls)

    def _thread_text(self, row: Mapping[str, Any] | Row, oncalls: tuple[str, ...]) -> ThreadText:
        return ThreadText(
            thread_id=row["thread_id"],
            kind=NoticeKind(row["kind"]),
            change=ThreadChange(row["change"]),
            upstream=RepoName(row["upstream"]),
            backend=RepoName(row["backend"]) if row["backend"] else None,
            number=row["number"] or None,
            summary=row["summary"],
            details=tuple(json.loads(row["details"])),
            oncalls=oncalls,
            url=f"{self._hud_url}{row['path']}",
            opened_at=from_us(row["opened_at"]),
            closed_at=from_us_or_none(row["closed_at"]),
            is_open=row["state"] == "open",
        )

    async def find_post(self, queue: MessageQueue, thread_id: int) -> Post | None:
        row = await self._database.quick_read(lambda tx: tx.one(_POST, **queue.key, thread_id=thread_id))
        return Post(from_us(row["attempted_at"]), row["remote_id"]) if row else None

    async def attempt_post(self, queue: MessageQueue, thread_id: int, now: datetime) -> Post:
        """Record that an issue or comment is about to be created."""
        await self._database.write(
            lambda tx: tx.run(_ATTEMPT_POST, **queue.key, thread_id=thread_id, attempted_at=to_us(now))
        )
        return await self.find_post(queue, thread_id) or Post(now, None)

    async def record_post(self, queue: MessageQueue, thread_id: int, remote_id: int | None) -> None:
        """Record the number on GitHub; None when what was there has been deleted."""
        await self._database.write(
            lambda tx: tx.run(_SET_REMOTE, **queue.key, thread_id=thread_id, remote_id=remote_id)
        )

    async def find_backend(
        self, upstream: RepoName, backend: RepoName
    ) -> tuple[RepoName, int | None, int | None]:
        """The backend's written name, its repository id and its installation, None where unknown."""
        found = await self._database.quick_read(lambda tx: self._targets.find(tx, upstream, backend))
        if found is None:
            return backend, None, None
        bound = found.binding.repository_id if found.binding else None
        return RepoName(found.name), bound, found.installation_id


def _event_from(row: Row) -> NoticeEvent:
    return NoticeEvent(
        kind=NoticeKind(row["event_kind"]),
        upstream=RepoName(row["upstream"]),
        backend=RepoName(row["backend"]) if row["backend"] else None,
        number=row["number"] or None,
        item=row["item"],
        summary=row["summary"],
    )


def _send_effect(queue: MessageQueue, now: datetime, due_at: datetime) -> dict[str, Any]:
    """Each queue has a target of its own: a receiver that is down delays no other."""
    target = "/".join(filter(None, (NOTICES_TARGET, queue.channel, queue.destination)))
    payload = json.dumps({"channel": queue.channel, "destination": queue.destination}).encode()
    effect = effect_row(
        queue.upstream, EffectKind.SEND_NOTICES, target=target, lane=NOTICES_TARGET, now=now, payload=payload
    )
    return {**effect, "due_at": to_us(due_at)}
