"""History for pages: from ClickHouse where it is complete, from the main store's sums otherwise.

A page first reads from the main store the newest change and the backends with facts that are not fed yet. Then it
queries ClickHouse, and only then takes its own snapshot: so an answer is never older than the change from which live
updates continue, and a backend with unfed facts is read from the main store. No failure of ClickHouse can fail a page.

ClickHouse's queries use FINAL, so that only the newest version of a fact counts, merged or not. Their rows have the
columns of the main store's sums.
"""

# ruff: noqa: S608 - every name in these queries is our own; values from outside are bound
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import structlog
from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.statistics.figures import BUCKETS, COUNTING, EDGES_S, TIMED, EndedAs
from crcr.decide.statistics.window import HistoryState, ResultKind, Window
from crcr.errors import OutsideFault
from crcr.record.clickhouse.connection import ClickHouseLink, Record
from crcr.record.clickhouse.feeder import mark
from crcr.record.clickhouse.tables import DISPATCHES, INGESTED, JOBS
from crcr.record.schema.statistics import ENDED, EXECUTION, QUEUE, FeedMark
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.relay.state import newest_change

log = structlog.get_logger(__name__)
T = TypeVar("T")

RETRY_AFTER = timedelta(seconds=30)
"""How long ClickHouse is not queried after a failure."""
BEHIND_AFTER = timedelta(seconds=60)
_MOST_UNFED = 2_000
_UNFED = Statement(
    text(
        "SELECT downstream, count(*) AS number, min(due_at) AS due_at FROM (SELECT downstream, due_at FROM unfed"
        " WHERE upstream = :upstream ORDER BY seq LIMIT :most) oldest GROUP BY downstream"
    )
)

Rows = list[dict[str, Any]]


class HistorySource(Protocol):
    """The queries; each result has the columns of the main store's sums."""

    async def figures(
        self, upstream: str, kind: ResultKind, window: Window, downstream: str | None = None
    ) -> Mapping[str, Rows]: ...
    async def by_name(self, upstream: str, downstream: str, kind: ResultKind, window: Window) -> Rows: ...
    async def named(self, upstream: str, part: str, since: datetime, most: int) -> Rows: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryAnswer:
    """ClickHouse's results for one page. For `unfed` backends, and for missing results, the page reads the main store."""

    state: HistoryState = HistoryState.OWN
    cursor: int | None = None
    unfed: frozenset[str] = frozenset()
    figures: Mapping[str, Rows] | None = None
    by_name: Rows | None = None
    named: Rows | None = None

    def backend_figures(self, downstream: str) -> Sequence[Row] | None:
        if self.figures is None or downstream in self.unfed:
            return None
        return self.figures.get(downstream, [])

    def backend_jobs(self, downstream: str) -> Sequence[Row] | None:
        return None if downstream in self.unfed else self.by_name

    def named_jobs(self, downstream: str, kind: ResultKind) -> Sequence[Row] | None:
        if self.named is None or downstream in self.unfed:
            return None
        return [row for row in self.named if (row["downstream"], row["kind"]) == (downstream, kind.value)]


NO_ANSWER = HistoryAnswer()


@dataclass(slots=True)
class HistoryReader:
    """Queries ClickHouse for the pages of one process, and pauses for a while when it fails."""

    database: Database
    source: HistorySource | None = None
    _paused_until: datetime | None = field(default=None, init=False)

    async def read_all_backends(
        self, upstream: RepoName, kind: ResultKind, window: Window, now: datetime
    ) -> HistoryAnswer:
        async def query(source: HistorySource) -> HistoryAnswer:
            return HistoryAnswer(figures=await source.figures(upstream.key, kind, window))

        return await self._query(upstream, now, query)

    async def read_backend(
        self, upstream: RepoName, downstream: RepoName, kind: ResultKind, window: Window, now: datetime
    ) -> HistoryAnswer:
        async def query(source: HistorySource) -> HistoryAnswer:
            figures = await source.figures(upstream.key, kind, window, downstream.key)
            return HistoryAnswer(
                figures=figures, by_name=await source.by_name(upstream.key, downstream.key, kind, window)
            )

        return await self._query(upstream, now, query)

    async def read_job_names(
        self, upstream: RepoName, part: str, since: datetime, most: int, now: datetime
    ) -> HistoryAnswer:
        async def query(source: HistorySource) -> HistoryAnswer:
            return HistoryAnswer(named=await source.named(upstream.key, part, since, most))

        return await self._query(upstream, now, query)

    async def _query(
        self, upstream: RepoName, now: datetime, query: Callable[[HistorySource], Awaitable[HistoryAnswer]]
    ) -> HistoryAnswer:
        if self.source is None:
            return NO_ANSWER
        start = await self.database.read(lambda tx: _read_start(tx, upstream.key, now))
        if start.state is not HistoryState.ANSWERED:
            return start
        paused_until = self._paused_until
        if paused_until is not None:
            if now < paused_until:
                return HistoryAnswer(state=HistoryState.UNREACHABLE)
            self._paused_until = now + RETRY_AFTER  # one page tries, and the others do not wait for it
        try:
            answer = await query(self.source)
        except OutsideFault as fault:
            if paused_until is None:
                log.warning("history_unreachable", error=fault.detail)
            self._paused_until = now + RETRY_AFTER
            return HistoryAnswer(state=HistoryState.UNREACHABLE)
        if paused_until is not None:
            log.info("history_answers_again")
        self._paused_until = None
        return replace(answer, state=start.state, cursor=start.cursor, unfed=start.unfed)


async def _read_start(tx: Tx, upstream: str, now: datetime) -> HistoryAnswer:
    """Whether ClickHouse can answer, the change from which live updates continue, and the backends it lacks facts of."""
    if await mark(tx, FeedMark.WHOLE) is None or await mark(tx, FeedMark.SINCE) is None:
        return NO_ANSWER
    rows = await tx.all(_UNFED, upstream=upstream, most=_MOST_UNFED)
    if is_behind(rows, now):
        return HistoryAnswer(state=HistoryState.BEHIND)
    unfed = frozenset(row["downstream"] for row in rows)
    return HistoryAnswer(state=HistoryState.ANSWERED, cursor=await newest_change(tx), unfed=unfed)


def is_behind(rows: list[Row], now: datetime) -> bool:
    number, oldest = sum(row["number"] for row in rows), min((row["due_at"] for row in rows), default=None)
    return number >= _MOST_UNFED or (oldest is not None and now - from_us(oldest) > BEHIND_AFTER)


def _texts(*values: str) -> str:
    return ", ".join(f"'{value}'" for value in values)


_TIMED = f"ended_as IN ({_texts(*sorted(TIMED))})"
_RAN = f"ended_as IN ({_texts(*sorted(TIMED - {EndedAs.SILENT}))})"
_SHOWN = _texts(*COUNTING, EndedAs.SILENT)


def _bucket(column: str) -> str:
    """The bucket of a duration, like `decide.statistics.figures.find_bucket`."""
    return f"arrayCount(edge -> edge < {column}, {list(EDGES_S)})"


def _sums() -> str:
    counts = [f"countIf(ended_as = '{ended}') AS {ended}" for ended in ENDED]
    seconds = [
        f"ifNull(sumIf(queue_s, {_TIMED}), 0) AS queue_sum_s",
        f"ifNull(sumIf(execution_s, {_RAN}), 0) AS execution_sum_s",
    ]
    queued = [f"countIf(queued = {bucket}) AS {QUEUE[bucket]}" for bucket in range(BUCKETS)]
    ran = [f"countIf(ran = {bucket}) AS {EXECUTION[bucket]}" for bucket in range(BUCKETS)]
    return ", ".join((*counts, *seconds, *queued, *ran))


_UPSTREAM_FILTER = "upstream = {upstream:String} AND kind = {kind:String}"
_BACKEND_FILTER = f"{_UPSTREAM_FILTER} AND downstream = {{downstream:String}}"


def _in_window(at: str) -> str:
    since, until = (f"fromUnixTimestamp64Micro({{{name}:Int64}}, 'UTC')" for name in ("since", "until"))
    return f"{at} >= {since} AND {at} < {until}"


def _part(at: str) -> str:
    return f"intDiv(toUnixTimestamp64Micro({at}) - {{since:Int64}}, {{width:Int64}}) AS part"


def _figures(table: str, where: str) -> str:
    bucketed = (
        f"SELECT downstream, {_part('began_at')}, ended_as, queue_s, execution_s,"
        f" if({_TIMED} AND queue_s IS NOT NULL, {_bucket('ifNull(queue_s, 0)')}, NULL) AS queued,"
        f" if({_RAN} AND execution_s IS NOT NULL, {_bucket('ifNull(execution_s, 0)')}, NULL) AS ran"
        f" FROM {table} FINAL WHERE {where} AND {_in_window('began_at')} AND ended_as <> ''"
    )
    return f"SELECT downstream, part, {_sums()} FROM ({bucketed}) GROUP BY downstream, part"


def _sent(where: str) -> str:
    return (
        f"SELECT downstream, {_part('sent_at')}, count() AS sent, sum(delay_s) AS delay_sum_s"
        f" FROM {DISPATCHES.name} AS d FINAL WHERE {where} AND {_in_window('sent_at')} AND d.sent = 1"
        " GROUP BY downstream, part"
    )


def _by_name(table: str) -> str:
    return (
        "SELECT workflow, max(workflow_name) AS workflow_name, job_name, countIf(ended_as = 'success') AS success,"
        " countIf(ended_as = 'failure') AS failure, countIf(ended_as IN ('timed_out', 'silent')) AS timed_out,"
        f" countIf(ended_as = 'other') AS other, ifNull(sumIf(execution_s, {_RAN}), 0) AS execution_sum_s,"
        f" countIf({_RAN} AND execution_s IS NOT NULL) AS execution_known FROM {table} FINAL"
        f" WHERE {_BACKEND_FILTER} AND {_in_window('began_at')} AND ended_as IN ({_SHOWN})"
        " GROUP BY workflow, job_name"
    )


def _named(table: str) -> str:
    return (
        "SELECT downstream, kind, job_name, workflow_name,"
        " toUnixTimestamp64Micro(max(began_at)) AS last_at"
        f" FROM {table} FINAL WHERE upstream = {{upstream:String}}"
        " AND toStartOfDay(began_at) >= fromUnixTimestamp64Micro({since:Int64}, 'UTC') AND ended_as <> ''"
        " AND positionCaseInsensitive(job_name, {part:String}) > 0"
        " GROUP BY downstream, kind, job_name, workflow_name"
        " ORDER BY last_at DESC, job_name, workflow_name LIMIT {most:UInt32} BY downstream, kind"
    )


_TABLES = {kind: INGESTED.name if kind is ResultKind.INGESTED else JOBS.name for kind in ResultKind}
_FILTERS = {True: _BACKEND_FILTER, False: _UPSTREAM_FILTER}
_FIGURES = {(t, one): _figures(t, _FILTERS[one]) for t in {*_TABLES.values()} for one in _FILTERS}
_SENT = {one: _sent(where) for one, where in _FILTERS.items()}
_BY_NAME = {table: _by_name(table) for table in _TABLES.values()}
_NAMED = tuple(_named(table) for table in (JOBS.name, INGESTED.name))

SumsByBackend = dict[str, list[Record]]
"""The sums of each part of the window that has any, by backend, with the columns of the table `hours`."""


class ClickHouseHistory:
    def __init__(self, link: ClickHouseLink) -> None:
        self._link = link

    async def figures(
        self, upstream: str, kind: ResultKind, window: Window, downstream: str | None = None
    ) -> SumsByBackend:
        """Sums of all backends of an upstream, or of one."""
        parameters = {"upstream": upstream, "kind": kind.value, **_times(window)}
        one = downstream is not None
        if downstream is not None:
            parameters["downstream"] = downstream
        parameters["width"] = window.width // timedelta(microseconds=1)
        ended = await self._link.query(_FIGURES[_TABLES[kind], one], **parameters)
        sent = [] if kind is ResultKind.INGESTED else await self._link.query(_SENT[one], **parameters)
        return _merge(ended, sent)

    async def by_name(self, upstream: str, downstream: str, kind: ResultKind, window: Window) -> list[Record]:
        """A backend's jobs that counted in the window, one row per name."""
        where = {"upstream": upstream, "downstream": downstream, "kind": kind.value}
        return await self._link.query(_BY_NAME[_TABLES[kind]], **where, **_times(window))

    async def named(self, upstream: str, part: str, since: datetime, most: int) -> list[Record]:
        """Jobs with this text in their name: the newest of each backend and kind."""
        parameters = {"upstream": upstream, "part": part, "since": to_us(since), "most": most}
        return [row for sql in _NAMED for row in await self._link.query(sql, **parameters)]


def _times(window: Window) -> dict[str, Any]:
    return {"since": to_us(window.since), "until": to_us(window.until)}


_NO_SUMS = dict.fromkeys((*ENDED, "sent", *QUEUE, *EXECUTION), 0) | dict.fromkeys(
    ("delay_sum_s", "queue_sum_s", "execution_sum_s"), 0.0
)


def _merge(*answers: list[Record]) -> SumsByBackend:
    parts: defaultdict[str, dict[int, Record]] = defaultdict(dict)
    for row in (row for answer in answers for row in answer):
        part = parts[row["downstream"]].setdefault(row["part"], dict(_NO_SUMS))
        part.update(row)
    return {downstream: list(by_part.values()) for downstream, by_part in parts.items()}
