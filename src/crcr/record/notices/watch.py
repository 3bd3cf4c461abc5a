"""Finds the changes that no single transaction shows: a backend that turns red, recovers, goes silent or is refused.

The leader looks at the backends with a new failure on the base since its last look (`mark_backend`, written with the failure),
at those with an open thread, and, since time alone makes a backend silent, at a few rows of every listed one. A passing
result writes nothing here.
"""

import json
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.model import Level, RepoName
from crcr.decide.notices.notice import (
    RED_AFTER,
    REFUSED_FOR,
    NoticeEvent,
    NoticeKind,
    SetupItem,
    Topic,
)
from crcr.decide.statistics.figures import SILENT_WITHIN
from crcr.decide.views.failing import FailingJob
from crcr.errors import NoAllowlist
from crcr.record.notices.announcements import find_announcement_events
from crcr.record.notices.threads import changes_thread, queue_notice, read_closed_pulls, read_open_threads
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.views.backends.backend_reader import read_reporting
from crcr.record.views.failures.failing_jobs import find_failing_jobs

_MARKED = Statement(
    text("SELECT backend FROM notice_marks WHERE upstream = :upstream ORDER BY backend LIMIT :most")
)
_UNMARK = Statement(text("DELETE FROM notice_marks WHERE upstream = :upstream AND backend = :backend"))
# Refusals after the last accepted report; the newest 50 of a backend are kept.
_REFUSED = Statement(
    text(
        "SELECT min(r.at) AS first_at, max(r.at) AS last_at, max(r.code) AS code FROM refusals r"
        " WHERE r.upstream = :upstream AND r.downstream = :downstream AND r.at > :since"
    )
)
_CREDENTIALS = Statement(
    text(
        "SELECT min(fault_since) AS since FROM effects WHERE upstream = :upstream AND state IN ('waiting', 'claimed')"
        " AND fault = 'credentials' AND kind <> 'send_notices'"
    )
)
_ENDED_BY = {
    Topic.SILENCE: (NoticeKind.REPORTING, Level.L2),
    Topic.LEVEL: (NoticeKind.RESTORED, Level.L1),
    Topic.ELIGIBILITY: (NoticeKind.NOT_ELIGIBLE, Level.L1),
    Topic.SETUP: (NoticeKind.SETUP_REPAIRED, Level.L1),
}
"""How threads of a topic end when their backend is below this level; those of the base and of gates are judged anyway."""
_ONLY_AT = {
    NoticeKind.ELIGIBLE.value: Level.L2,
    NoticeKind.DEMOTED.value: Level.L3,
    NoticeKind.ALARMED.value: Level.L4,
}
"""The level that a thread is about: moved to another one in the allowlist, its backend begins anew there."""
_MOST_MARKED = 1_000
_REFUSALS_BACK = timedelta(days=7)
_SHOWN_JOBS = 10


class NoticeWatch:
    def __init__(self, database: Database, allowlists: Allowlists, upstreams: tuple[RepoName, ...]) -> None:
        self._database = database
        self._allowlists = allowlists
        self._upstreams = upstreams

    async def look_at_base(self, now: datetime) -> None:
        """Find backends that turned red or recovered, gates of closed pull requests, and announced breakages; a unit for each change."""
        for upstream in self._upstreams:
            for backend in await self._database.read(partial(self._find_changed, upstream=upstream, now=now)):
                await self._database.write(
                    partial(self._judge_base, upstream=upstream, backend=backend, now=now)
                )
            await self._database.write(partial(_end_closed_pulls, upstream=upstream, now=now))
            for event in await self._database.read(
                partial(self._find_announcements, upstream=upstream, now=now)
            ):
                await self._database.write(partial(queue_notice, event=event, now=now))

    async def _find_announcements(self, tx: Tx, *, upstream: RepoName, now: datetime) -> list[NoticeEvent]:
        allowlist = await self._read_allowlist(tx, upstream)
        return await find_announcement_events(tx, upstream, allowlist, now) if allowlist else []

    async def _find_changed(self, tx: Tx, *, upstream: RepoName, now: datetime) -> list[str]:
        """Marked backends, and red ones that say something else than their thread."""
        marked = {row["backend"] for row in await tx.all(_MARKED, upstream=upstream.key, most=_MOST_MARKED)}
        changed = set(marked)
        for thread in await read_open_threads(tx, upstream, Topic.BASE):
            if thread["backend"] not in marked:
                event = await self._read_base(tx, upstream, thread["backend"], now)
                said = thread["summary"], tuple(json.loads(thread["details"]))
                if event.kind is NoticeKind.RECOVERED or said != (event.summary, event.details):
                    changed.add(thread["backend"])
        return sorted(changed)

    async def _judge_base(self, tx: Tx, *, upstream: RepoName, backend: str, now: datetime) -> None:
        await tx.run(_UNMARK, upstream=upstream.key, backend=backend)
        await queue_notice(tx, await self._read_base(tx, upstream, backend, now), now)

    async def _read_base(self, tx: Tx, upstream: RepoName, backend: str, now: datetime) -> NoticeEvent:
        allowlist = await self._read_allowlist(tx, upstream)
        entry = allowlist.find(RepoName(backend)) if allowlist else None
        red: list[FailingJob] = []
        if entry is not None and entry.level >= Level.L2 and not entry.expect:
            jobs = await find_failing_jobs(tx, upstream, entry, now)
            red = [job for job in jobs if job.failures_in_a_row >= RED_AFTER]
        return _base_event(upstream, entry, RepoName(backend), red)

    async def look_at_reporting(self, now: datetime) -> None:
        """Find backends that went silent, whose reports are refused, or that report again, and refused credentials.

        Everything is read first: a look that finds no change writes nothing.
        """
        for upstream in self._upstreams:
            events = await self._database.read(
                partial(self._find_reporting_events, upstream=upstream, now=now)
            )
            for event in events:
                await self._database.write(partial(queue_notice, event=event, now=now))

    async def _find_reporting_events(self, tx: Tx, *, upstream: RepoName, now: datetime) -> list[NoticeEvent]:
        allowlist = await self._read_allowlist(tx, upstream)
        events: list[NoticeEvent | None] = [await _judge_credentials(tx, upstream, now)]
        for entry in allowlist.entries if allowlist else ():
            if entry.level >= Level.L2:
                events += await _judge_reporting(tx, upstream, entry, now)
        events += await _find_unlisted(tx, upstream, allowlist) if allowlist else []
        return [event for event in events if event is not None and await changes_thread(tx, event, now)]

    async def _read_allowlist(self, tx: Tx, upstream: RepoName) -> Allowlist | None:
        try:
            return await self._allowlists.in_force(tx, upstream)
        except NoAllowlist:
            return None


async def _end_closed_pulls(tx: Tx, *, upstream: RepoName, now: datetime) -> None:
    for row in await read_closed_pulls(tx, upstream):
        ended = NoticeEvent(
            kind=NoticeKind.GATE_RESOLVED,
            upstream=upstream,
            backend=RepoName(row["backend"]),
            number=row["number"],
            summary="the pull request was merged" if row["merged"] else "the pull request was closed",
            path=f"/crcr/pr/{row['number']}",
        )
        await queue_notice(tx, ended, now)


def _base_event(
    upstream: RepoName, entry: AllowlistEntry | None, backend: RepoName, red: list[FailingJob]
) -> NoticeEvent:
    name = entry.name if entry else backend
    where: dict[str, Any] = {"upstream": upstream, "backend": name, "path": f"/crcr/{name}"}
    if not red:
        text = "no job fails on the base branch any more" if entry else "it is no longer on the allowlist"
        return NoticeEvent(kind=NoticeKind.RECOVERED, summary=text, **where)
    jobs = sorted(red, key=lambda job: (job.since, job.job))
    # Without the growing number of failures, which would make every further failure an update.
    details = tuple(f"failing since {job.since:%Y-%m-%d %H:%M} UTC: {job.job}" for job in jobs[:_SHOWN_JOBS])
    more = (f"and {len(jobs) - _SHOWN_JOBS:,} more jobs",) if len(jobs) > _SHOWN_JOBS else ()
    count = "1 job has" if len(jobs) == 1 else f"{len(jobs):,} jobs have"
    summary = f"{count} failed on the base branch {RED_AFTER} times in a row or more"
    return NoticeEvent(kind=NoticeKind.RED, summary=summary, details=(*details, *more), **where)


async def _judge_reporting(
    tx: Tx, upstream: RepoName, entry: AllowlistEntry, now: datetime
) -> list[NoticeEvent]:
    reporting = await read_reporting(tx, upstream, entry, now)
    where: dict[str, Any] = {"upstream": upstream, "backend": entry.name, "path": f"/crcr/{entry.name}"}
    events = []
    if not reporting.silent and reporting.last_at is not None and now - reporting.last_at < SILENT_WITHIN:
        events = [NoticeEvent(kind=NoticeKind.REPORTING, summary="dispatches are answered", **where)]
    if (
        reporting.silent
    ):  # and otherwise nothing is known: events have stopped, and nothing was answered since
        last = f"{reporting.last_at:%Y-%m-%d %H:%M} UTC" if reporting.last_at else "never"
        summary = f"dispatches are not answered; last report: {last}"
        events = [NoticeEvent(kind=NoticeKind.SILENT, summary=summary, **where)]
    since = max(to_us(reporting.last_at) if reporting.last_at else 0, to_us(now - _REFUSALS_BACK))
    row = await tx.one(_REFUSED, upstream=upstream.key, downstream=entry.name.key, since=since)
    where["item"] = SetupItem.REPORTS.value
    if row is None or row["last_at"] is None:
        summary = "reports are accepted"
        return [*events, NoticeEvent(kind=NoticeKind.SETUP_REPAIRED, summary=summary, **where)]
    # A single refusal, or some within an hour, may be of one broken run: nothing changes.
    if row["last_at"] - row["first_at"] >= REFUSED_FOR / timedelta(microseconds=1):
        summary = f"reports have been refused for more than an hour: {row['code']}"
        events.append(NoticeEvent(kind=NoticeKind.SETUP_BROKEN, summary=summary, **where))
    return events


async def _find_unlisted(tx: Tx, upstream: RepoName, allowlist: Allowlist) -> list[NoticeEvent]:
    """The ends of threads about backends that left the allowlist, report no results any more, or moved to another level."""
    levels = {entry.name.key: entry.level for entry in allowlist.entries}
    events = []
    for topic, (kind, level) in _ENDED_BY.items():
        for thread in await read_open_threads(tx, upstream, topic):
            if not thread["backend"]:
                continue
            listed, about = levels.get(thread["backend"], 0), _ONLY_AT.get(thread["kind"])
            is_below = listed < level
            if is_below or about not in {None, listed}:
                end = NoticeEvent(
                    kind=kind,
                    upstream=upstream,
                    backend=RepoName(thread["backend"]),
                    number=thread["number"] or None,
                    item=thread["item"],
                    summary=f"it is no longer on the allowlist at L{level} or above"
                    if is_below
                    else f"the allowlist has it at L{listed} now",
                    path="/crcr/levels" if topic in {Topic.LEVEL, Topic.ELIGIBILITY} else "/crcr",
                )
                events.append(end)
    return events


async def _judge_credentials(tx: Tx, upstream: RepoName, now: datetime) -> NoticeEvent | None:
    row = await tx.one(_CREDENTIALS, upstream=upstream.key)
    since = row["since"] if row else None
    item = SetupItem.CREDENTIALS.value
    where: dict[str, Any] = {"upstream": upstream, "item": item, "path": "/crcr/deliveries"}
    if since is None:
        summary = "GitHub accepts the App's tokens"
        return NoticeEvent(kind=NoticeKind.SETUP_REPAIRED, summary=summary, **where)
    if since > to_us(now - REFUSED_FOR):
        return None
    summary = "GitHub has refused the App's tokens for more than an hour"
    return NoticeEvent(kind=NoticeKind.SETUP_BROKEN, summary=summary, **where)
