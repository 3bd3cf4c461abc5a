"""Failed tests by part of their name, and open groups of failures by part of their message; those that failed last first.

Both cover the last 14 days and are read along an index by time, up to a limit: neither database is sure to have a full-text
index. Rows of hidden backends are excluded in the queries, so no cursor can hold one.
"""
# ruff: noqa: S608 - every name in these statements is our own

import json
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.views.failures import OPEN_FOR
from crcr.decide.views.search import Hit, HitKind, Key
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.failures.groups import ended_with_issue, is_known
from crcr.record.views.paging import bad_cursor
from crcr.record.views.search.search_terms import name_pattern
from crcr.record.views.visibility import VisibleBackends

TESTS_SEARCHED = 20_000
"""How many rows of failed tests one search reads."""
_MOST_ROWS = 200
"""Of rows that match: a test that fails in many backends has one for each."""
MESSAGES_SEARCHED = 20_000
_LISTS = ("shown", "fingerprints")
_ON_SQLITE = {name: f"(SELECT value FROM json_each(:{name}))" for name in _LISTS}
_ON_POSTGRESQL = {name: f"(SELECT json_array_elements_text(CAST(:{name} AS json)))" for name in _LISTS}


def _with_lists(sql: str) -> Statement:
    return Statement(text(sql.format(**_ON_SQLITE)), on_postgresql=text(sql.format(**_ON_POSTGRESQL)))


# The message by a subquery: PostgreSQL would join all recent groups.
_TESTS = _with_lists(
    "SELECT n.fingerprint, n.downstream, n.test, n.number, n.last_at, (SELECT g.sample FROM failure_groups g"
    " WHERE g.fingerprint = n.fingerprint AND g.upstream = :upstream AND g.downstream = n.downstream) AS sample"
    " FROM (SELECT fingerprint, downstream, test, number, last_at FROM failed_tests WHERE upstream = :upstream"
    " AND last_at >= :since AND last_at <= :at"
    " AND (last_at < :at OR (fingerprint, downstream, test) < (:fingerprint, :downstream, :test))"
    " ORDER BY last_at DESC, fingerprint DESC, downstream DESC, test DESC LIMIT :looked) n"
    " WHERE lower(n.test) LIKE :pattern ESCAPE '!' AND n.downstream IN {shown}"
    " ORDER BY n.last_at DESC, n.fingerprint DESC, n.downstream DESC, n.test DESC LIMIT :most"
)
_MESSAGES = _with_lists(
    "SELECT n.fingerprint, n.downstream, n.sample, n.last_at, k.url, k.state, k.until_at, k.ended_at FROM"
    " (SELECT fingerprint, upstream, downstream, sample, last_at FROM failure_groups WHERE upstream = :upstream"
    " AND last_at >= :since AND last_at <= :at AND (last_at < :at OR (fingerprint, downstream) < (:fingerprint, :downstream))"
    " ORDER BY last_at DESC, fingerprint DESC, downstream DESC LIMIT :looked) n LEFT JOIN known_failures k"
    " ON k.fingerprint = n.fingerprint AND k.upstream = n.upstream WHERE lower(n.sample) LIKE :pattern ESCAPE '!'"
    " AND n.downstream IN {shown} ORDER BY n.last_at DESC, n.fingerprint DESC, n.downstream DESC LIMIT :most"
)
# `|| ''`: SQLite would otherwise look for each of the backends, of which there may be thousands, under each fingerprint.
_BACKENDS = _with_lists(
    "SELECT fingerprint, downstream, number, last_at FROM failure_groups WHERE fingerprint IN {fingerprints}"
    " AND upstream = :upstream AND downstream || '' IN {shown} ORDER BY fingerprint, last_at DESC, downstream DESC"
)
_AFTER_ALL = 2**62


async def find_tests(
    tx: Tx,
    upstream: RepoName,
    visible: VisibleBackends,
    part: str,
    now: datetime,
    *,
    after: Key | None,
    limit: int,
    looked: int = TESTS_SEARCHED,
) -> tuple[list[Hit], Key | None]:
    """A hit is a test with one cause, in all backends where it failed so; a long list may name it on two pages."""
    at, fingerprint, downstream, test = _read_start(after)
    rows = await tx.all(
        _TESTS,
        upstream=upstream.key,
        since=to_us(now - OPEN_FOR),
        at=at,
        fingerprint=fingerprint,
        downstream=downstream,
        test=test,
        looked=looked,
        pattern=name_pattern(part),
        shown=json.dumps(list(visible.reporting)),
        most=_MOST_ROWS,
    )
    listed, last = _take_rows(rows, limit)
    hits = [_hit(rows_of_test, visible) for rows_of_test in listed.values()]
    more = last is not None and (last is not rows[-1] or len(rows) == _MOST_ROWS)
    return hits, _key(last) if more and last is not None else None


async def find_failures(
    tx: Tx,
    upstream: RepoName,
    visible: VisibleBackends,
    part: str,
    now: datetime,
    *,
    after: Key | None,
    limit: int,
    looked: int = MESSAGES_SEARCHED,
) -> tuple[list[Hit], Key | None]:
    """Open groups whose message contains the text; each is listed by the row of its backend that failed last."""
    at, fingerprint, downstream = _read_group_start(after)
    shown = json.dumps(list(visible.reporting))
    rows = await tx.all(
        _MESSAGES,
        upstream=upstream.key,
        since=to_us(now - OPEN_FOR),
        at=at,
        fingerprint=fingerprint,
        downstream=downstream,
        looked=looked,
        pattern=name_pattern(part),
        shown=shown,
        most=_MOST_ROWS,
    )
    fingerprints = json.dumps(sorted({row["fingerprint"] for row in rows}))
    found = (
        await tx.all(_BACKENDS, upstream=upstream.key, fingerprints=fingerprints, shown=shown) if rows else []
    )
    backends: dict[str, list[Row]] = {}
    for row in found:
        backends.setdefault(row["fingerprint"], []).append(row)
    listed = [row for row in rows if _lists_group(row, backends[row["fingerprint"]])]
    last = listed[limit - 1] if len(listed) > limit else rows[-1] if len(rows) == _MOST_ROWS else None
    hits = [_message_hit(row, backends[row["fingerprint"]], visible, now) for row in listed[:limit]]
    return hits, (last["last_at"], last["fingerprint"], last["downstream"]) if last else None


def _lists_group(row: Row, backends: Sequence[Row]) -> bool:
    return bool(row["downstream"] == backends[0]["downstream"]) and not ended_with_issue(row)


def _take_rows(rows: Sequence[Row], limit: int) -> tuple[dict[tuple[str, str], list[Row]], Row | None]:
    """The rows of the first tests, by name and fingerprint, and the last row that was taken."""
    taken: dict[tuple[str, str], list[Row]] = {}
    last = None
    for row in rows:
        name = row["test"], row["fingerprint"]
        if name not in taken and len(taken) == limit:
            break
        taken.setdefault(name, []).append(row)
        last = row
    return taken, last


def _read_start(after: Key | None) -> tuple[int, str, str, str]:
    match after:
        case None:
            return _AFTER_ALL, "", "", ""
        case (int(at), str(fingerprint), str(downstream), str(test)):
            return at, fingerprint, downstream, test
    raise bad_cursor()


def _read_group_start(after: Key | None) -> tuple[int, str, str]:
    match after:
        case None:
            return _AFTER_ALL, "", ""
        case (int(at), str(fingerprint), str(downstream)):
            return at, fingerprint, downstream
    raise bad_cursor()


def _key(row: Row) -> Key:
    return row["last_at"], row["fingerprint"], row["downstream"], row["test"]


def _hit(rows: Sequence[Row], visible: VisibleBackends) -> Hit:
    newest = rows[0]
    return Hit(
        kind=HitKind.TEST,
        title=newest["test"],
        detail=newest["sample"],
        at=from_us(newest["last_at"]),
        fingerprint=newest["fingerprint"],
        backends=tuple(visible.reporting[row["downstream"]].name for row in rows),
        count=sum(row["number"] for row in rows),
    )


def _message_hit(row: Row, backends: Sequence[Row], visible: VisibleBackends, now: datetime) -> Hit:
    return Hit(
        kind=HitKind.FAILURE,
        title=row["sample"],
        at=from_us(row["last_at"]),
        fingerprint=row["fingerprint"],
        backends=tuple(visible.reporting[backend["downstream"]].name for backend in backends),
        count=sum(backend["number"] for backend in backends),
        known=is_known(row, now),
    )
