"""Stores announcements of breaking changes: the backends that a pull request concerns, their notices, and their answers.

Each minute the leader compares the announcements with the threads of notices, and writes the differences. A changed label,
paragraph, list of files or allowlist, and a closed pull request, need no transaction of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.model import DeliveryState, DispatchState, KnownPull, RepoName
from crcr.decide.notices.announcements import (
    AnnouncementAnswer,
    Concern,
    announcement_end,
    announcement_event,
    judge_concern,
    why_ended,
)
from crcr.decide.notices.notice import NoticeEvent, Topic
from crcr.record.deliveries.pull_requests import find_newest_delivery, load_pull
from crcr.record.notices.threads import changes_thread, read_open_threads
from crcr.record.repositories.renames import find_listing
from crcr.record.schema.notices import announcement_answers
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import from_us, from_us_or_none, to_us

_MOST_PULLS = 500
_QUIET = timedelta(minutes=5)
"""Between changes of a thread, but its end: an author may edit the paragraph every minute, in many backends' issues."""
# The expression makes SQLite use the small index of announcing pull requests instead of the primary key.
_ANNOUNCING = Statement(
    text(
        "SELECT number FROM pulls WHERE upstream || '' = :upstream AND is_open = 1 AND downstream_note <> ''"
        " AND number > 0 ORDER BY number DESC LIMIT :most"
    )
)
_DISPATCHES = Statement(
    text(
        "SELECT d.delivery, d.downstream, d.state, d.reason, d.concerned, d.level, d.sent_at, d.repository_id,"
        " r.repository_id AS bound_id FROM dispatches d LEFT JOIN repositories r ON r.upstream = d.upstream"
        " AND r.downstream = d.downstream WHERE d.delivery = :delivery AND d.upstream = :upstream ORDER BY d.downstream"
    )
)
_ANSWERS = Statement(
    text(
        "SELECT backend, who, at FROM announcement_answers WHERE upstream = :upstream AND number = :number"
        " ORDER BY backend, at, who"
    )
)
_INSERT = inserting(announcement_answers, "upstream", "number", "backend", "who", "at")
_ANSWER = Statement(
    _INSERT.on_conflict_do_update(
        index_elements=["upstream", "number", "backend", "who"], set_={"at": _INSERT.excluded.at}
    )
)
_TOLD = Statement(
    text(
        "SELECT backend, opened_at, closed_at, EXISTS (SELECT 1 FROM notice_messages m"
        " WHERE m.thread_id = t.thread_id) AS has_channel FROM notice_threads t"
        " WHERE upstream = :upstream AND number = :number AND topic = 'breaking' ORDER BY thread_id"
    )
)


@dataclass(frozen=True, slots=True)
class ConcernedBackends:
    """The backends of the newest delivery of a pull request's head, by key."""

    concerned: dict[str, AllowlistEntry]
    unknown: frozenset[str]
    """Not decided yet; with `all_unknown` no backend is."""
    all_unknown: bool = False


async def read_concerned(
    tx: Tx, upstream: RepoName, pull: KnownPull, allowlist: Allowlist
) -> ConcernedBackends:
    newest = await find_newest_delivery(
        tx, upstream, pull.number, head_sha=pull.head_sha, base_ref=pull.base_ref
    )
    if newest is None or newest["state"] == DeliveryState.IN_DOUBT.value:
        return ConcernedBackends({}, frozenset(), all_unknown=True)
    concerned: dict[str, AllowlistEntry] = {}
    unknown: set[str] = set()
    for row in await tx.all(_DISPATCHES, delivery=newest["guid"], upstream=upstream.key):
        listing = await find_listing(tx, upstream, allowlist, row)
        if listing.entry is None:
            unknown |= {row["downstream"]} if listing.unread else set()
            continue
        concern = _judge(row, listing.entry)
        if concern is Concern.CONCERNED:
            concerned[listing.entry.name.key] = listing.entry
        elif concern is Concern.UNKNOWN:
            unknown.add(listing.entry.name.key)
    return ConcernedBackends(concerned, frozenset(unknown))


def _judge(row: Row, entry: AllowlistEntry) -> Concern:
    concerned = None if row["concerned"] is None else bool(row["concerned"])
    return judge_concern(DispatchState(row["state"]), row["reason"], concerned=concerned, entry=entry)


async def find_announcement_events(
    tx: Tx, upstream: RepoName, allowlist: Allowlist, now: datetime
) -> list[NoticeEvent]:
    """What people must be told: new announcements, changed paragraphs and answers, and ends. Reads only."""
    told: dict[int, list[str]] = {}
    for thread in await read_open_threads(tx, upstream, Topic.BREAKING):
        told.setdefault(thread["number"], []).append(thread["backend"])
    rows = await tx.all(_ANNOUNCING, upstream=upstream.key, most=_MOST_PULLS)
    events: list[NoticeEvent] = []
    for number in sorted({*told, *(row["number"] for row in rows)}):
        events += await _judge_pull(tx, upstream, number, told.get(number, []), allowlist)
    return [event for event in events if await changes_thread(tx, event, now, quiet_for=_QUIET)]


async def _judge_pull(
    tx: Tx, upstream: RepoName, number: int, told: list[str], allowlist: Allowlist
) -> list[NoticeEvent]:
    pull = await load_pull(tx, upstream, number)
    ended = why_ended(pull)
    if pull is None or ended is not None:
        return [announcement_end(upstream, number, RepoName(key), ended or "") for key in told]
    found = await read_concerned(tx, upstream, pull, allowlist)
    if found.all_unknown:
        return []
    answers = await read_answers(tx, upstream, pull)
    events = [
        announcement_event(upstream, pull, entry.name, answers.get(key, ()))
        for key, entry in found.concerned.items()
    ]
    for key in told:
        if key not in found.concerned and key not in found.unknown:
            listed = allowlist.find(RepoName(key)) is not None
            why = "the change no longer concerns it" if listed else "it is no longer on the allowlist"
            events.append(announcement_end(upstream, number, RepoName(key), why))
    return events


async def add_answer(
    tx: Tx, upstream: RepoName, number: int, backend: RepoName, *, who: str, at: datetime
) -> None:
    """Record that a person answered for a backend; a repeated answer counts from its own time."""
    await tx.run(_ANSWER, upstream=upstream.key, number=number, backend=backend.key, who=who, at=to_us(at))


async def read_answers(
    tx: Tx, upstream: RepoName, pull: KnownPull
) -> Mapping[str, tuple[AnnouncementAnswer, ...]]:
    """The answers by backend, oldest first."""
    answers: dict[str, tuple[AnnouncementAnswer, ...]] = {}
    changed_at = pull.downstream_note_at
    for row in await tx.all(_ANSWERS, upstream=upstream.key, number=pull.number):
        at = from_us(row["at"])
        is_outdated = changed_at is not None and at < changed_at
        answer = AnnouncementAnswer(who=row["who"], at=at, is_outdated=is_outdated)
        answers[row["backend"]] = (*answers.get(row["backend"], ()), answer)
    return answers


@dataclass(frozen=True, slots=True)
class AnnouncementThread:
    opened_at: datetime
    closed_at: datetime | None
    has_channel: bool
    """Whether a channel of the backend or the upstream took it."""


async def read_notified(tx: Tx, upstream: RepoName, number: int) -> Mapping[str, AnnouncementThread]:
    """The thread of each backend, of several the newest."""
    rows = await tx.all(_TOLD, upstream=upstream.key, number=number)
    return {
        row["backend"]: AnnouncementThread(
            from_us(row["opened_at"]), from_us_or_none(row["closed_at"]), bool(row["has_channel"])
        )
        for row in rows
    }
