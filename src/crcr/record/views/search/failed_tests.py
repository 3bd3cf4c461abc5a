"""Failed tests by part of their name, and open groups of failures by part of their message; those that failed last first.

Both cover the last 14 days and are read along an index by time, up to a limit: neither database is sure to have a full-text
index. Rows of hidden backends are excluded in the queries, so no cursor can hold one.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.views.failures import OPEN_FOR, FailureQuery, OpenGroup
from crcr.decide.views.search import Hit, HitKind, Key
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.failures.groups import failure_page
from crcr.record.views.paging import LOOKED_THROUGH, bad_cursor
from crcr.record.views.search.search_terms import name_pattern
from crcr.record.views.visibility import VisibleBackends

TESTS_SEARCHED = 20_000
"""How many rows of failed tests one search reads."""
_MOST_ROWS = 200
"""Of rows that match: a test that fails in many backends has one for each."""
_FIND = (
    "SELECT n.fingerprint, n.downstream, n.test, n.number, n.last_at, g.sample FROM (SELECT fingerprint, upstream,"
    " downstream, test, number, last_at FROM failed_tests WHERE upstream = :upstream AND last_at >= :since"
    " AND last_at <= :at AND (last_at < :at OR (fingerprint, downstream, test) < (:fingerprint, :downstream, :test))"
    " ORDER BY last_at DESC, fingerprint DESC, downstream DESC, test DESC LIMIT :looked) n"
    " LEFT JOIN failure_groups g ON g.fingerprint = n.fingerprint AND g.upstream = n.upstream"
    " AND g.downstream = n.downstream WHERE lower(n.test) LIKE :pattern ESCAPE '!' AND n.downstream IN {shown}"
    " ORDER BY n.last_at DESC, n.fingerprint DESC, n.downstream DESC, n.test DESC LIMIT :most"
)
_TESTS = Statement(
    text(_FIND.format(shown="(SELECT value FROM json_each(:shown))")),
    on_postgresql=text(_FIND.format(shown="(SELECT json_array_elements_text(CAST(:shown AS json)))")),
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
    looked: int = LOOKED_THROUGH,
) -> tuple[list[Hit], Key | None]:
    query = FailureQuery(upstream=upstream, text=part, after=after, limit=limit)
    page = await failure_page(tx, query, visible, now, most=looked)
    return [_group_hit(group) for group in page.items], page.next


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


def _group_hit(group: OpenGroup) -> Hit:
    first_job = group.jobs[0] if group.jobs else None
    hit = Hit(
        kind=HitKind.FAILURE,
        title=group.sample,
        at=group.last_seen.at,
        fingerprint=group.fingerprint,
        backends=tuple(map(RepoName, group.backends)),
        count=group.count,
        known=group.known is not None,
    )
    return replace(hit, detail=f"in {first_job}") if first_job else hit
