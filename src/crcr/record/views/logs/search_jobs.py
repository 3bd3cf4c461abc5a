"""Jobs found by part of their name, each with the time when it last began; the newest first.

A backend's newest rows name nearly all of its jobs, with their times. What is not among them is found in the sums of the
last 30 days, which know the day only: its time is looked up where it may be listed.
"""

import heapq
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.logs import Hit, HitKind
from crcr.record.clickhouse.history import HistoryAnswer
from crcr.record.statistics.sums import DAY_US
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, ascii_lower
from crcr.record.store.times import from_us, to_us
from crcr.record.views.visibility import Seen

JOBS_BACK = timedelta(days=30)
"""How far back a job's name is looked for."""
_ROWS_LOOKED_AT = 60_000
"""How many rows of jobs, and of sums, one search may look through."""
_MOST_LOOKUPS = 100
_DELIVERED_BEFORE_US = 7 * DAY_US
"""A result of another relay may be of a delivery that is older by this."""

_NEWEST = Statement(
    text(
        "SELECT job_name, workflow_name, max(in_progress_at) AS last_at FROM (SELECT job_name, workflow_name,"
        " in_progress_at, ended_as FROM jobs WHERE upstream = :upstream AND downstream = :downstream"
        " AND in_progress_at >= :since ORDER BY in_progress_at DESC LIMIT :looked) newest"
        " WHERE ended_as IS NOT NULL AND lower(job_name) LIKE :pattern ESCAPE '!' GROUP BY job_name, workflow_name"
        " ORDER BY 3 DESC, job_name, workflow_name LIMIT :limit"
    )
)
_BY_DAY = Statement(
    text(
        "SELECT job_name, workflow_name, max(day_at) AS day_at FROM (SELECT job_name, workflow_name, day_at"
        " FROM job_days WHERE upstream = :upstream AND downstream = :downstream AND kind = :kind"
        " AND day_at >= :since ORDER BY day_at DESC, workflow DESC, job_name DESC LIMIT :looked) newest"
        " WHERE lower(job_name) LIKE :pattern ESCAPE '!' GROUP BY job_name, workflow_name"
        " ORDER BY 3 DESC, job_name, workflow_name LIMIT :limit"
    )
)
_LAST = Statement(
    text(
        "SELECT in_progress_at AS last_at FROM jobs WHERE upstream = :upstream AND downstream = :downstream"
        " AND in_progress_at >= :day_at AND in_progress_at < :day_end AND job_name = :job_name"
        " AND workflow_name = :workflow_name AND ended_as IS NOT NULL ORDER BY in_progress_at DESC LIMIT 1"
    )
)
_LAST_INGESTED = Statement(
    text(
        "SELECT max(coalesce(started_at, seen_at)) AS last_at FROM ingested WHERE upstream = :upstream"
        " AND downstream = :downstream AND delivery_at >= :delivered_at AND job_name = :job_name"
        " AND workflow_name = :workflow_name AND ended_as IS NOT NULL"
        " AND coalesce(started_at, seen_at) >= :day_at AND coalesce(started_at, seen_at) < :day_end"
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A job's name; `at_us` is when it last began, or the end of the day on which it did where that is not known."""

    downstream: str
    job_name: str
    workflow_name: str
    kind: ResultKind | None
    at_us: int
    exact: bool = True
    looked_up: bool = False

    @property
    def order(self) -> tuple[int, str, str, str]:
        return -self.at_us, self.downstream, self.job_name, self.workflow_name


@dataclass(frozen=True, slots=True)
class JobFinder:
    tx: Tx
    upstream: str
    seen: Seen
    now: datetime
    told: HistoryAnswer

    async def find(self, part: str, limit: int) -> list[Hit]:
        if not self.seen.reporting:
            return []
        looked = max(500, _ROWS_LOOKED_AT // (len(self.seen.reporting) * len(ResultKind)))
        asked = {"pattern": name_pattern(part), "limit": limit, "looked": looked, "since": self._since()}
        found = [each for name in self.seen.reporting for each in await self._of_backend(name, asked)]
        return [self._hit(each) for each in await self._newest_of(found, limit)]

    def _since(self) -> int:
        """The first whole day, as the sums have them."""
        return -(-to_us(self.now - JOBS_BACK) // DAY_US) * DAY_US

    async def _of_backend(self, name: str, asked: Mapping[str, Any]) -> list[_Found]:
        told = [row for kind in ResultKind for row in self.told.named_of(name, kind) or ()]
        if self.told.named_of(name, ResultKind.PULLS) is not None:
            return [_found(name, row) for row in told]
        where = {"upstream": self.upstream, "downstream": name}
        found = [_found(name, row) for row in await self.tx.all(_NEWEST, **where, **asked)]
        timed = {(each.job_name, each.workflow_name) for each in found}
        for kind in ResultKind:
            if len(found) >= asked["limit"] and kind is not ResultKind.INGESTED:
                continue  # those are the newest of all
            rows = await self.tx.all(_BY_DAY, kind=kind.value, **where, **asked)
            found += [
                _found_on_day(name, kind, row)
                for row in rows
                if kind is ResultKind.INGESTED or (row["job_name"], row["workflow_name"]) not in timed
            ]
        return found

    async def _newest_of(self, found: list[_Found], limit: int) -> list[_Found]:
        """Each job once, the newest by their time; a time is looked up before anything older is listed."""
        heap = [(each.order, place) for place, each in enumerate(found)]
        heapq.heapify(heap)
        listed: dict[tuple[str, str], _Found] = {}
        lookups = 0
        while heap and len(listed) < limit:
            _, place = heapq.heappop(heap)
            each = found[place]
            if each.exact or each.looked_up or lookups >= _MOST_LOOKUPS:
                listed.setdefault((each.downstream, each.job_name), each)
                continue
            lookups += 1
            found[place] = await self._timed(each)
            heapq.heappush(heap, (found[place].order, place))
        return list(listed.values())

    async def _timed(self, found: _Found) -> _Found:
        day_at = found.at_us - found.at_us % DAY_US
        where = {
            "upstream": self.upstream,
            "downstream": found.downstream,
            "job_name": found.job_name,
            "workflow_name": found.workflow_name,
            "day_at": day_at,
            "day_end": day_at + DAY_US,
        }
        if found.kind is ResultKind.INGESTED:
            row = await self.tx.one(_LAST_INGESTED, delivered_at=day_at - _DELIVERED_BEFORE_US, **where)
        else:
            row = await self.tx.one(_LAST, **where)
        last_at = row["last_at"] if row else None
        return replace(found, at_us=last_at or day_at, exact=last_at is not None, looked_up=True)

    def _hit(self, found: _Found) -> Hit:
        entry = self.seen.reporting[found.downstream]
        at = from_us(found.at_us)
        return Hit(
            kind=HitKind.JOB,
            title=found.job_name,
            detail=found.workflow_name if found.exact else f"{found.workflow_name}, last on {at:%Y-%m-%d}",
            backend=entry.name,
            job=found.job_name,
            at=at if found.exact else None,
        )


def _found(name: str, row: Row) -> _Found:
    return _Found(
        downstream=name,
        job_name=row["job_name"],
        workflow_name=row["workflow_name"],
        kind=None,
        at_us=row["last_at"],
    )


def _found_on_day(name: str, kind: ResultKind, row: Row) -> _Found:
    return _Found(
        downstream=name,
        job_name=row["job_name"],
        workflow_name=row["workflow_name"],
        kind=kind,
        at_us=row["day_at"] + DAY_US - 1,
        exact=False,
    )


def name_pattern(part: str) -> str:
    """A pattern for LIKE beside `lower`: this text anywhere, its own wildcards being only letters."""
    return "%" + re.sub(r"[%_!]", r"!\g<0>", ascii_lower(part)) + "%"
