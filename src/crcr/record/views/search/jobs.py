"""Jobs by part of their name, each with its last start time and result; the newest first.

A backend's newest rows name nearly all of its jobs, with their times. Other jobs are found in the sums of the last 30
days, which hold only the day: their time is looked up if they may be listed. Only backends with sums in that time are
searched, the most recently active ones, so the cost does not follow the length of the allowlist.
"""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.model import Conclusion, JobState
from crcr.decide.statistics.figures import CountedAs, count_as
from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.search import Hit, HitKind, Key
from crcr.record.clickhouse.history import HistoryAnswer
from crcr.record.statistics.sums import DAY_US
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.paging import bad_cursor
from crcr.record.views.search.search_terms import name_pattern
from crcr.record.views.visibility import VisibleBackends

JOBS_BACK = timedelta(days=30)
"""How far back jobs are searched."""
MOST_JOBS = 200
"""How many jobs a search lists, over all its pages."""
_MOST_SEARCHED = 60_000
"""How many rows of jobs, and of sums, one search may read."""
_FEWEST_ROWS = 100
_MOST_BACKENDS = 500
_MOST_LOOKUPS = 100
_DELIVERED_BEFORE_US = 30 * DAY_US
"""The delivery of another relay's result may be older than the result by this."""

_KINDS = " UNION ALL ".join(f"SELECT '{kind.value}' AS kind" for kind in ResultKind)
# Jumps along the key from one backend with sums to the next.
_ACTIVE = Statement(
    text(
        "WITH RECURSIVE known(downstream) AS (SELECT min(downstream) FROM job_days WHERE upstream = :upstream"  # noqa: S608  our own names
        " AND downstream > '' UNION ALL SELECT (SELECT min(downstream) FROM job_days WHERE upstream = :upstream"
        " AND downstream > known.downstream) FROM known WHERE known.downstream IS NOT NULL)"
        " SELECT known.downstream, k.kind, (SELECT max(d.day_at) FROM job_days d WHERE d.upstream = :upstream"
        " AND d.downstream = known.downstream AND d.kind = k.kind) AS day_at"
        f" FROM known CROSS JOIN ({_KINDS}) AS k WHERE known.downstream IS NOT NULL"
    )
)
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


_RESULT = Statement(
    text(
        "SELECT state, conclusion, expected FROM jobs WHERE upstream = :upstream AND downstream = :downstream"
        " AND in_progress_at = :at AND job_name = :job_name AND workflow_name = :workflow_name"
        " ORDER BY delivery DESC, run_id DESC, attempt DESC LIMIT 1"
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundJob:
    """A job's name; `at_us` is its last start, or the end of that day where the exact time is not known."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinder:
    tx: Tx
    upstream: str
    visible: VisibleBackends
    now: datetime
    history: HistoryAnswer
    most_searched: int = _MOST_SEARCHED
    most_backends: int = _MOST_BACKENDS

    async def find(self, part: str, *, after: Key | None, limit: int) -> tuple[list[Hit], Key | None]:
        """The cursor is a number of jobs: the list is short, and its order changes with every result."""
        offset = _read_offset(after)
        end = min(offset + limit, MOST_JOBS)
        found = await self._take_newest(await self._find_all(part, end + 1), end + 1)
        hits = [await self._hit(job) for job in found[offset:end]]
        return hits, (end,) if len(found) > end and end < MOST_JOBS else None

    async def _find_all(self, part: str, limit: int) -> list[_FoundJob]:
        jobs, active = self._take_from_history(), await self._read_active()
        rows_per_backend = max(_FEWEST_ROWS, self.most_searched // (len(active) * len(ResultKind) or 1))
        parameters = {
            "pattern": name_pattern(part),
            "limit": limit,
            "looked": rows_per_backend,
            "since": self._since(),
        }
        for name, kinds in active.items():
            jobs += await self._find_in_backend(name, kinds, parameters)
        return jobs

    def _since(self) -> int:
        """The start of the first whole day."""
        return -(-to_us(self.now - JOBS_BACK) // DAY_US) * DAY_US

    def _take_from_history(self) -> list[_FoundJob]:
        return [
            _job_from(row["downstream"], row, kind=ResultKind(row["kind"]))
            for row in self.history.named or ()
            if row["downstream"] in self.visible.reporting and row["downstream"] not in self.history.unfed
        ]

    async def _read_active(self) -> dict[str, list[ResultKind]]:
        """The most recently active backends that the main store is searched for, with the kinds of their results."""
        newest: defaultdict[str, int] = defaultdict(int)
        kinds: defaultdict[str, list[ResultKind]] = defaultdict(list)
        for row in await self.tx.all(_ACTIVE, upstream=self.upstream) if self.visible.reporting else ():
            name, day_at = row["downstream"], row["day_at"]
            if day_at is not None and day_at >= self._since() and self._is_searched(name):
                newest[name] = max(newest[name], day_at)
                kinds[name].append(ResultKind(row["kind"]))
        names = sorted(newest, key=lambda name: (-newest[name], name))
        return {name: kinds[name] for name in names[: self.most_backends]}

    def _is_searched(self, name: str) -> bool:
        return name in self.visible.reporting and (self.history.named is None or name in self.history.unfed)

    async def _find_in_backend(
        self, name: str, kinds: Sequence[ResultKind], parameters: Mapping[str, Any]
    ) -> list[_FoundJob]:
        backend = {"upstream": self.upstream, "downstream": name}
        jobs = [_job_from(name, row) for row in await self.tx.all(_NEWEST, **backend, **parameters)]
        known_names = {(job.job_name, job.workflow_name) for job in jobs}
        for kind in kinds:
            if len(jobs) >= parameters["limit"] and kind is not ResultKind.INGESTED:
                continue  # those are the newest of all
            rows = await self.tx.all(_BY_DAY, kind=kind.value, **backend, **parameters)
            jobs += [
                _job_from_day(name, kind, row)
                for row in rows
                if kind is ResultKind.INGESTED or (row["job_name"], row["workflow_name"]) not in known_names
            ]
        return jobs

    async def _take_newest(self, jobs: list[_FoundJob], limit: int) -> list[_FoundJob]:
        """Each job once, the newest first; an inexact time is looked up before any older job is listed."""
        heap = [(job.order, index) for index, job in enumerate(jobs)]
        heapq.heapify(heap)
        newest: dict[tuple[str, str], _FoundJob] = {}
        lookups = 0
        while heap and len(newest) < limit:
            _, index = heapq.heappop(heap)
            candidate = jobs[index]
            if candidate.exact or candidate.looked_up or lookups >= _MOST_LOOKUPS:
                newest.setdefault((candidate.downstream, candidate.job_name), candidate)
                continue
            lookups += 1
            jobs[index] = await self._look_up_time(candidate)
            heapq.heappush(heap, (jobs[index].order, index))
        return list(newest.values())

    async def _look_up_time(self, job: _FoundJob) -> _FoundJob:
        day_at = job.at_us - job.at_us % DAY_US
        parameters = {
            "upstream": self.upstream,
            "downstream": job.downstream,
            "job_name": job.job_name,
            "workflow_name": job.workflow_name,
            "day_at": day_at,
            "day_end": day_at + DAY_US,
        }
        if job.kind is ResultKind.INGESTED:
            row = await self.tx.one(_LAST_INGESTED, delivered_at=day_at - _DELIVERED_BEFORE_US, **parameters)
        else:
            row = await self.tx.one(_LAST, **parameters)
        last_at = row["last_at"] if row else None
        return replace(job, at_us=last_at or day_at, exact=last_at is not None, looked_up=True)

    async def _hit(self, job: _FoundJob) -> Hit:
        entry = self.visible.reporting[job.downstream]
        at = from_us(job.at_us)
        return Hit(
            kind=HitKind.JOB,
            title=job.job_name,
            detail=job.workflow_name if job.exact else f"{job.workflow_name}, last on {at:%Y-%m-%d}",
            backend=entry.name,
            job=job.job_name,
            at=at if job.exact else None,
            result=await self._read_result(job) if job.exact else None,
        )

    async def _read_result(self, job: _FoundJob) -> CountedAs | None:
        """None for a result of another relay, and for one that is deleted."""
        key = {"upstream": self.upstream, "downstream": job.downstream, "at": job.at_us}
        row = await self.tx.one(_RESULT, job_name=job.job_name, workflow_name=job.workflow_name, **key)
        if row is None:
            return None
        conclusion, expected = (
            Conclusion(row[name]) if row[name] else None for name in ("conclusion", "expected")
        )
        return count_as(JobState(row["state"]), conclusion, expected)


def _read_offset(after: Key | None) -> int:
    match after:
        case None:
            return 0
        case (int(offset),) if 0 < offset < MOST_JOBS:
            return offset
    raise bad_cursor()


def _job_from(name: str, row: Row, *, kind: ResultKind | None = None) -> _FoundJob:
    return _FoundJob(
        downstream=name,
        job_name=row["job_name"],
        workflow_name=row["workflow_name"],
        kind=kind,
        at_us=row["last_at"],
    )


def _job_from_day(name: str, kind: ResultKind, row: Row) -> _FoundJob:
    return _FoundJob(
        downstream=name,
        job_name=row["job_name"],
        workflow_name=row["workflow_name"],
        kind=kind,
        at_us=row["day_at"] + DAY_US - 1,
        exact=False,
    )
