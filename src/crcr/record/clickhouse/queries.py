"""The history questions of the pages, asked of ClickHouse: rows as the main store's sums would give them.

Asked with FINAL, so that of each fact its newest version counts, whether ClickHouse has merged by then or not.
"""
# ruff: noqa: S608 - every name in these questions is our own; what comes from outside is bound

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

from crcr.decide.statistics.figures import BUCKETS, COUNTING, EDGES_S, TIMED, EndedAs
from crcr.decide.statistics.window import ResultKind, Window
from crcr.record.clickhouse.connection import ClickHouseLink, Record
from crcr.record.clickhouse.rows import DISPATCHES, INGESTED, JOBS
from crcr.record.schema.statistics import ENDED, EXECUTION, QUEUE
from crcr.record.store.times import to_us


def _texts(*values: str) -> str:
    return ", ".join(f"'{value}'" for value in values)


_TIMED = f"ended_as IN ({_texts(*sorted(TIMED))})"
_RAN = f"ended_as IN ({_texts(*sorted(TIMED - {EndedAs.SILENT}))})"
_SHOWN = _texts(*COUNTING, EndedAs.SILENT)


def _bucket(column: str) -> str:
    """Where a duration is counted, as `decide.statistics.figures.bucket_of` says."""
    return f"arrayCount(edge -> edge < {column}, {list(EDGES_S)})"


def _sums() -> str:
    counts = [f"countIf(ended_as = '{each}') AS {each}" for each in ENDED]
    seconds = [
        f"ifNull(sumIf(queue_s, {_TIMED}), 0) AS queue_sum_s",
        f"ifNull(sumIf(execution_s, {_RAN}), 0) AS execution_sum_s",
    ]
    queued = [f"countIf(queued = {place}) AS {QUEUE[place]}" for place in range(BUCKETS)]
    ran = [f"countIf(ran = {place}) AS {EXECUTION[place]}" for place in range(BUCKETS)]
    return ", ".join((*counts, *seconds, *queued, *ran))


_OF_UPSTREAM = "upstream = {upstream:String} AND kind = {kind:String}"
_OF_BACKEND = f"{_OF_UPSTREAM} AND downstream = {{downstream:String}}"


def _in_window(at: str) -> str:
    since, until = (f"fromUnixTimestamp64Micro({{{name}:Int64}}, 'UTC')" for name in ("since", "until"))
    return f"{at} >= {since} AND {at} < {until}"


def _part(at: str) -> str:
    return f"intDiv(toUnixTimestamp64Micro({at}) - {{since:Int64}}, {{width:Int64}}) AS part"


def _figures(table: str, where: str) -> str:
    placed = (
        f"SELECT downstream, {_part('began_at')}, ended_as, queue_s, execution_s,"
        f" if({_TIMED} AND queue_s IS NOT NULL, {_bucket('ifNull(queue_s, 0)')}, NULL) AS queued,"
        f" if({_RAN} AND execution_s IS NOT NULL, {_bucket('ifNull(execution_s, 0)')}, NULL) AS ran"
        f" FROM {table} FINAL WHERE {where} AND {_in_window('began_at')} AND ended_as <> ''"
    )
    return f"SELECT downstream, part, {_sums()} FROM ({placed}) GROUP BY downstream, part"


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
        f" WHERE {_OF_BACKEND} AND {_in_window('began_at')} AND ended_as IN ({_SHOWN})"
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


_TABLE_OF = {kind: INGESTED.name if kind is ResultKind.INGESTED else JOBS.name for kind in ResultKind}
_WHERE = {True: _OF_BACKEND, False: _OF_UPSTREAM}
_FIGURES = {(t, one): _figures(t, _WHERE[one]) for t in {*_TABLE_OF.values()} for one in _WHERE}
_SENT = {one: _sent(where) for one, where in _WHERE.items()}
_BY_NAME = {table: _by_name(table) for table in _TABLE_OF.values()}
_NAMED = tuple(_named(table) for table in (JOBS.name, INGESTED.name))

Figured = dict[str, list[Record]]
"""By backend the sums of each part of the window that has any, with the names of the columns of `hours`."""


class ClickHouseHistory:
    def __init__(self, link: ClickHouseLink) -> None:
        self._link = link

    async def figures(
        self, upstream: str, kind: ResultKind, window: Window, downstream: str | None = None
    ) -> Figured:
        """Of all backends of an upstream, or of one."""
        asked = {"upstream": upstream, "kind": kind.value, **_times(window)}
        one = downstream is not None
        if downstream is not None:
            asked["downstream"] = downstream
        asked["width"] = window.width // timedelta(microseconds=1)
        ended = await self._link.ask(_FIGURES[_TABLE_OF[kind], one], **asked)
        sent = [] if kind is ResultKind.INGESTED else await self._link.ask(_SENT[one], **asked)
        return _together(ended, sent)

    async def by_name(self, upstream: str, downstream: str, kind: ResultKind, window: Window) -> list[Record]:
        """A backend's jobs that counted in the window, one row for each name."""
        where = {"upstream": upstream, "downstream": downstream, "kind": kind.value}
        return await self._link.ask(_BY_NAME[_TABLE_OF[kind]], **where, **_times(window))

    async def named(self, upstream: str, part: str, since: datetime, most: int) -> list[Record]:
        """Jobs with this text in their name, of each backend and kind the newest."""
        asked = {"upstream": upstream, "part": part, "since": to_us(since), "most": most}
        return [row for question in _NAMED for row in await self._link.ask(question, **asked)]


def _times(window: Window) -> dict[str, Any]:
    return {"since": to_us(window.since), "until": to_us(window.until)}


_NOTHING = dict.fromkeys((*ENDED, "sent", *QUEUE, *EXECUTION), 0) | dict.fromkeys(
    ("delay_sum_s", "queue_sum_s", "execution_sum_s"), 0.0
)


def _together(*answers: list[Record]) -> Figured:
    parts: defaultdict[str, dict[int, Record]] = defaultdict(dict)
    for row in (row for answer in answers for row in answer):
        part = parts[row["downstream"]].setdefault(row["part"], dict(_NOTHING))
        part.update(row)
    return {downstream: list(found.values()) for downstream, found in parts.items()}
