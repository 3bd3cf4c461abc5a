"""Groups of failures across backends, commits and time: the open ones in pages, and one with its failures.

Rows of hidden backends are excluded in the queries: a group that only they have does not exist for the reader, and counts,
times and messages are those of the backends that the reader sees.
"""
# ruff: noqa: S608 - every name in these statements is our own

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.failures.history import FailedAs
from crcr.decide.failures.verdict import Confidence, VerdictKind
from crcr.decide.model import RepoName
from crcr.decide.views.failures import (
    OPEN_FOR,
    FailurePage,
    FailureQuery,
    GroupMember,
    GroupPage,
    IssueState,
    KnownFilter,
    OpenGroup,
    SeenAt,
)
from crcr.errors import NotFound
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none, to_us
from crcr.record.views.failures.commit_failures import known_view
from crcr.record.views.paging import Key, bad_cursor, read_matching
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

_MOST_JOBS_FROM = 50
"""Of so many of its newest failures a group lists the jobs."""
_ON_SQLITE = {name: f"(SELECT value FROM json_each(:{name}))" for name in ("shown", "wanted", "fingerprints")}
_ON_POSTGRESQL = {name: f"(SELECT json_array_elements_text(CAST(:{name} AS json)))" for name in _ON_SQLITE}


def _with_lists(sql: str) -> Statement:
    return Statement(text(sql.format(**_ON_SQLITE)), on_postgresql=text(sql.format(**_ON_POSTGRESQL)))


_KNOWN = "k.url, k.state, k.who, k.reason, k.until_at, k.ended_at"
_AND_KNOWN = "LEFT JOIN known_failures k ON k.fingerprint = g.fingerprint AND k.upstream = g.upstream"
# `|| ''`: SQLite would otherwise look for each of the backends, of which there may be thousands, under each fingerprint.
_SAME = "fingerprint = g.fingerprint AND {0}.upstream = g.upstream AND {0}.downstream || ''"
# A group is listed by the row of its backend that failed last.
_NEWEST_ROW = (
    f"NOT EXISTS (SELECT 1 FROM failure_groups n WHERE n.{_SAME.format('n')} IN {{shown}}"
    " AND (n.last_at > g.last_at OR (n.last_at = g.last_at AND n.downstream > g.downstream)))"
)
_OPEN = _with_lists(
    f"SELECT g.fingerprint, g.sample, g.last_at, {_KNOWN} FROM failure_groups g {_AND_KNOWN}"
    " WHERE g.upstream = :upstream AND g.last_at >= :since AND g.last_at <= :at"
    " AND (g.last_at < :at OR g.fingerprint < :fingerprint) AND g.downstream IN {shown}"
    f" AND {_NEWEST_ROW} AND EXISTS (SELECT 1 FROM failure_groups w WHERE w.{_SAME.format('w')} IN {{wanted}})"
    " ORDER BY g.last_at DESC, g.fingerprint DESC LIMIT :limit"
)
_ONE = _with_lists(
    f"SELECT g.fingerprint, g.sample, g.last_at, {_KNOWN} FROM failure_groups g {_AND_KNOWN}"
    f" WHERE g.fingerprint = :fingerprint AND g.upstream = :upstream AND g.downstream IN {{shown}} AND {_NEWEST_ROW}"
)
_ROWS = _with_lists(
    "SELECT fingerprint, downstream, number, first_at, last_at FROM failure_groups WHERE fingerprint IN {fingerprints}"
    " AND upstream = :upstream AND downstream || '' IN {shown} ORDER BY fingerprint, last_at DESC, downstream"
)
_ENDS = _with_lists(
    "SELECT g.fingerprint, f.head_sha, f.number, f.at FROM failure_groups g CROSS JOIN failures f"
    " CROSS JOIN failure_fingerprints m WHERE g.fingerprint IN {fingerprints} AND g.upstream = :upstream"
    " AND g.downstream || '' IN {shown} AND f.upstream = g.upstream AND f.downstream = g.downstream"
    " AND (f.at = g.first_at OR f.at = g.last_at) AND m.fingerprint = g.fingerprint AND m.upstream = g.upstream"
    " AND m.failure_id = f.failure_id ORDER BY f.failure_id"
)
_NEWEST = (
    "SELECT m.failure_id FROM failure_fingerprints m WHERE m.fingerprint = named.value AND m.upstream = :upstream"
    " ORDER BY m.failure_id DESC LIMIT :most"
)
_JOBS = Statement(
    text(
        "SELECT named.value AS fingerprint, f.downstream, f.job_name FROM json_each(:fingerprints) AS named"
        f" CROSS JOIN failures f WHERE f.failure_id IN ({_NEWEST}) ORDER BY f.failure_id DESC"
    ),
    on_postgresql=text(
        "SELECT named.value AS fingerprint, f.downstream, f.job_name"
        " FROM json_array_elements_text(CAST(:fingerprints AS json)) AS named(value)"
        f" CROSS JOIN LATERAL ({_NEWEST}) AS newest JOIN failures f ON f.failure_id = newest.failure_id"
        " ORDER BY f.failure_id DESC"
    ),
)
_MEMBERS = Statement(
    text(
        "SELECT f.failure_id, f.delivery, f.downstream, f.workflow, f.run_id, f.attempt, f.job_name, f.event, f.number,"
        " f.head_sha, f.at, f.ended, f.passed_at, f.verdict, f.confidence FROM failure_fingerprints m"
        " JOIN failures f ON f.failure_id = m.failure_id WHERE m.fingerprint = :fingerprint AND m.upstream = :upstream"
        " AND m.failure_id < :before ORDER BY m.failure_id DESC LIMIT :limit"
    )
)
_AFTER_ALL = 2**62


@dataclass(slots=True)
class _Parts:
    """What belongs to one group, by the fingerprint of its row."""

    backends: list[Row] = field(default_factory=list)
    ends: list[Row] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)


async def failure_page(tx: Tx, query: FailureQuery, visible: VisibleBackends, now: datetime) -> FailurePage:
    shown, wanted = list(visible.reporting), _matching(visible, query.backend)
    start = _start(query.after)

    async def read(after: Key, limit: int) -> list[Row]:
        at, fingerprint = after
        return await tx.all(
            _OPEN,
            upstream=query.upstream.key,
            since=to_us(now - OPEN_FOR),
            at=at,
            fingerprint=fingerprint,
            shown=json.dumps(shown),
            wanted=json.dumps(wanted),
            limit=limit,
        )

    sought = (query.text or "").casefold()

    def keep(row: Row) -> bool:
        known = KnownFilter.YES if is_known(row, now) else KnownFilter.NO
        return (
            sought in row["sample"].casefold() and query.known in (None, known) and not ended_with_issue(row)
        )

    rows, more = await read_matching(read, start, query.limit, make_key=_key, keep=keep)
    groups = await _complete(tx, query.upstream, visible, rows, now)
    return FailurePage(groups, more, cursor=await newest_change(tx))


async def group_page(
    tx: Tx,
    upstream: RepoName,
    fingerprint: str,
    visible: VisibleBackends,
    now: datetime,
    *,
    after: Key | None,
    limit: int,
) -> GroupPage:
    key = {"fingerprint": fingerprint, "upstream": upstream.key}
    row = await tx.one(_ONE, shown=json.dumps(list(visible.reporting)), **key)
    if row is None:
        raise NotFound(
            f"no failure with the fingerprint {fingerprint[:40]} is recorded", hint="see /api/v1/failures"
        )

    async def read(before: Key, size: int) -> list[Row]:
        return await tx.all(_MEMBERS, before=before[0], limit=size, **key)

    members, more = await read_matching(
        read,
        _member_start(after),
        limit,
        make_key=lambda member: (member["failure_id"],),
        keep=lambda member: member["downstream"] in visible.reporting,
    )
    (group,) = await _complete(tx, upstream, visible, [row], now)
    is_open = row["last_at"] >= to_us(now - OPEN_FOR) and not ended_with_issue(row)
    views = tuple(_member_view(member, visible) for member in members)
    return GroupPage(group, is_open, views, more, cursor=await newest_change(tx))


def _matching(visible: VisibleBackends, part: str | None) -> list[str]:
    return [name for name in visible.reporting if (part or "").lower() in name]


def _start(after: Key | None) -> Key:
    match after:
        case None:
            return _AFTER_ALL, ""
        case (int(at), str(fingerprint)):
            return at, fingerprint
    raise bad_cursor()


def _member_start(after: Key | None) -> Key:
    match after:
        case None:
            return (_AFTER_ALL,)
        case (int(failure_id),):
            return (failure_id,)
    raise bad_cursor()


def _key(row: Row) -> Key:
    return row["last_at"], row["fingerprint"]


def is_known(row: Row, now: datetime) -> bool:
    """Whether a group is linked to an issue that is open."""
    return row["url"] is not None and row["ended_at"] is None and row["until_at"] > to_us(now)


def ended_with_issue(row: Row) -> bool:
    """Whether its issue was closed and it has not failed since."""
    return (
        row["state"] == IssueState.CLOSED.value
        and row["ended_at"] is not None
        and row["last_at"] <= row["ended_at"]
    )


async def _complete(
    tx: Tx, upstream: RepoName, visible: VisibleBackends, rows: Sequence[Row], now: datetime
) -> tuple[OpenGroup, ...]:
    """Read what belongs to the groups of these rows, with one query for each kind of it."""
    if not rows:
        return ()
    parts = {row["fingerprint"]: _Parts() for row in rows}
    listed: dict[str, Any] = {"upstream": upstream.key, "fingerprints": json.dumps(list(parts))}
    shown = json.dumps(list(visible.reporting))
    for row in await tx.all(_ROWS, shown=shown, **listed):
        parts[row["fingerprint"]].backends.append(row)
    for row in await tx.all(_ENDS, shown=shown, **listed):
        parts[row["fingerprint"]].ends.append(row)
    for row in await tx.all(_JOBS, most=_MOST_JOBS_FROM, **listed):
        if row["downstream"] in visible.reporting:
            job = f"{visible.full_name(row['downstream'])}:{row['job_name']}"
            parts[row["fingerprint"]].jobs.append(job)
    return tuple(_view(row, parts[row["fingerprint"]], visible, now) for row in rows)


def _view(row: Row, parts: _Parts, visible: VisibleBackends, now: datetime) -> OpenGroup:
    return OpenGroup(
        fingerprint=row["fingerprint"],
        sample=row["sample"],
        backends=tuple(visible.full_name(backend["downstream"]) for backend in parts.backends),
        jobs=tuple(dict.fromkeys(parts.jobs)),
        first_seen=_seen_at(parts.ends, min(backend["first_at"] for backend in parts.backends)),
        last_seen=_seen_at(reversed(parts.ends), row["last_at"]),
        count=sum(backend["number"] for backend in parts.backends),
        known=known_view(row) if is_known(row, now) else None,
    )


def _seen_at(ends: Iterable[Row], at: int) -> SeenAt:
    """The failure of that time; its row may be deleted, and then only the time is known."""
    row = next((end for end in ends if end["at"] == at), None)
    return SeenAt(sha=row["head_sha"] if row else None, number=row["number"] if row else None, at=from_us(at))


def _member_view(row: Row, visible: VisibleBackends) -> GroupMember:
    return GroupMember(
        delivery=row["delivery"],
        downstream=visible.full_name(row["downstream"]),
        workflow=row["workflow"],
        run_id=row["run_id"],
        attempt=row["attempt"],
        job_name=row["job_name"],
        event=row["event"],
        number=row["number"],
        head_sha=row["head_sha"],
        at=from_us(row["at"]),
        ended=FailedAs(row["ended"]),
        passed_at=from_us_or_none(row["passed_at"]),
        verdict=VerdictKind(row["verdict"]) if row["verdict"] else None,
        confidence=Confidence(row["confidence"]) if row["confidence"] else None,
    )
