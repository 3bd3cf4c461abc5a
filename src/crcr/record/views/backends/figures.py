"""A backend's figures from the sums, and what sums do not hold: running jobs, last results, exact durations of few jobs."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any, cast

from sqlalchemy import text

from crcr.decide.jobs.ingested import RUNS_AT_MOST, RunAttempt, has_later_attempt, is_superseded
from crcr.decide.model import Conclusion, JobState
from crcr.decide.statistics.figures import (
    FEW,
    TIMED,
    CountedAs,
    Durations,
    EndedAs,
    Figures,
    LastResult,
    LeftOut,
    Part,
    Tally,
    count_as,
)
from crcr.decide.statistics.window import ResultKind, Window
from crcr.record.schema.statistics import EXECUTION, HIGHS, LOWS, QUEUE
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import added_up_s, from_us, to_us

_KEPT_PARTS = 4_096
_COUNTS = ("success", "failure", "timed_out", "silent", "other", "superseded", "earlier", "sent")
_SECONDS = ("delay_sum_s", "queue_sum_s", "execution_sum_s")
_EXTREMES = ", ".join(
    [*(f"min({name}) AS {name}" for name in LOWS), *(f"max({name}) AS {name}" for name in HIGHS)]
)
_SUMS = ", ".join(f"sum({name}) AS {name}" for name in (*_COUNTS, *_SECONDS, *QUEUE, *EXECUTION))
_BY_HOURS = Statement(
    text(
        f"SELECT (hour_at - :since) / :width AS part, {_SUMS}, {_EXTREMES} FROM hours"  # noqa: S608  our own column names
        " WHERE upstream = :upstream AND downstream = :downstream AND kind = :kind"
        " AND hour_at >= :since AND hour_at < :until GROUP BY 1"
    )
)
_BY_DAYS = Statement(
    text(
        f"SELECT (day_at - :since) / :width AS part, {_SUMS}, {_EXTREMES} FROM days"  # noqa: S608  our own column names
        " WHERE upstream = :upstream AND downstream = :downstream AND kind = :kind"
        " AND day_at >= :since AND day_at < :until GROUP BY 1"
    )
)
_EXTREMES_BY_HOURS = Statement(
    text(
        f"SELECT (hour_at - :since) / :width AS part, {_EXTREMES} FROM hours"  # noqa: S608  our own column names
        " WHERE upstream = :upstream AND downstream = :downstream AND kind = :kind"
        " AND hour_at >= :since AND hour_at < :until GROUP BY 1"
    )
)
_EXTREMES_BY_DAYS = Statement(
    text(
        f"SELECT (day_at - :since) / :width AS part, {_EXTREMES} FROM days"  # noqa: S608  our own column names
        " WHERE upstream = :upstream AND downstream = :downstream AND kind = :kind"
        " AND day_at >= :since AND day_at < :until GROUP BY 1"
    )
)
# Other relays' results change their times with later reports, so nothing is recorded of them.
_EXTREMES_INGESTED = Statement(
    text(
        "SELECT (coalesce(started_at, seen_at) - :since) / :width AS part, min(queue_s) AS queue_low_s,"
        " max(queue_s) AS queue_high_s, min(CASE WHEN ended_as <> 'silent' THEN execution_s END) AS execution_low_s,"
        " max(CASE WHEN ended_as <> 'silent' THEN execution_s END) AS execution_high_s FROM ingested"
        " WHERE upstream = :upstream AND downstream = :downstream AND delivery_at >= :delivered_at"
        " AND coalesce(started_at, seen_at) >= :since AND coalesce(started_at, seen_at) < :until"
        " AND ended_as IN ('success', 'failure', 'timed_out', 'silent') GROUP BY 1"
    )
)
_OLDER_US = 7 * 24 * 3_600_000_000
"""The delivery of another relay's result may be older than the result by this."""


# Running jobs are few, and a partial index has them all. SQLite would scan all jobs of the upstream in the order of another
# index, so it is told which one to use. Later attempts are rare, and have an index of their own: `attempt > 1` is its condition.
_RUNNING = (
    "WITH running AS MATERIALIZED (SELECT j.delivery, j.downstream, j.event, count(*) AS number FROM jobs j{index}"
    " WHERE j.state = 'in_progress' AND j.silent_at > 0 AND j.upstream = :upstream{condition} AND j.superseded = 0"
    " AND NOT EXISTS (SELECT 1 FROM jobs later WHERE later.delivery = j.delivery AND later.upstream = j.upstream"
    " AND later.downstream = j.downstream AND later.workflow = j.workflow AND later.run_id = j.run_id"
    " AND later.job_name = j.job_name AND later.attempt > j.attempt AND later.attempt > 1)"
    " GROUP BY j.delivery, j.downstream, j.event)"
    " SELECT r.downstream, r.event, sum(r.number) AS number FROM running r LEFT JOIN dispatches d"
    " ON d.delivery = r.delivery AND d.upstream = :upstream AND d.downstream = r.downstream"
    " WHERE d.superseded_at IS NULL AND coalesce(d.test, 0) = 0 GROUP BY r.downstream, r.event"
)


def _count_running(condition: str) -> Statement:
    return Statement(
        text(_RUNNING.format(index=" INDEXED BY ix_jobs_running", condition=condition)),
        text(_RUNNING.format(index="", condition=condition)),
    )


_RUNNING_OF_ALL = _count_running("")
_RUNNING_OF_BACKEND = _count_running(" AND j.downstream = :downstream")
_LAST = Statement(
    text(
        "SELECT state, conclusion, expected, job_name, completed_at FROM jobs WHERE upstream = :upstream"
        " AND downstream = :downstream AND event = :event"
        " AND ended_as IN ('success', 'failure', 'timed_out', 'other')"
        " ORDER BY completed_at DESC, delivery DESC, workflow DESC, run_id DESC, attempt DESC, job_name DESC LIMIT 1"
    )
)
_LAST_INGESTED = Statement(
    text(
        "SELECT state, conclusion, expected, job_name, completed_at"
        " FROM ingested WHERE upstream = :upstream AND downstream = :downstream"
        " AND ended_as IN ('success', 'failure', 'timed_out', 'other')"
        " ORDER BY completed_at DESC, delivery DESC, workflow_name DESC, job_name DESC, check_run DESC LIMIT 1"
    )
)
# All attempts of jobs that have one in progress: these are few, and an index of their own has them.
_BEGUN_INGESTED = Statement(
    text(
        "SELECT DISTINCT o.delivery, o.workflow_name, o.job_name, o.check_run, o.run_id, o.attempt, o.state, o.seen_at"
        " FROM ingested i CROSS JOIN ingested o WHERE i.upstream = :upstream AND i.downstream = :downstream"
        " AND i.state = 'in_progress' AND i.seen_at >= :since AND o.delivery = i.delivery"
        " AND o.downstream = i.downstream AND o.workflow_name = i.workflow_name AND o.job_name = i.job_name"
        " AND o.upstream = i.upstream"
    )
)


PART_COLUMNS = (*_COUNTS, *_SECONDS, *QUEUE, *EXECUTION, *LOWS, *HIGHS)
PART_SUMS = f"{_SUMS}, {_EXTREMES}"
"""The columns that are read for each part of a window, for one backend or for all of them (`overview`)."""


@dataclass(frozen=True, slots=True)
class FigureScope:
    """Which results are counted: those of one backend and one kind in one window."""

    upstream: str
    downstream: str
    kind: ResultKind
    window: Window

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "upstream": self.upstream,
            "downstream": self.downstream,
            "kind": self.kind.value,
            "since": to_us(self.window.since),
            "until": to_us(self.window.until),
            "width": self.window.width // timedelta(microseconds=1),
        }


@dataclass(frozen=True, slots=True)
class Running:
    """How many jobs that count run now, by backend and kind."""

    by_event: dict[tuple[str, str], int]

    def count(self, downstream: str, kind: ResultKind) -> int:
        return sum(self.by_event.get((downstream, event), 0) for event in kind.events)


async def read_running(tx: Tx, upstream: str, downstream: str | None = None) -> Running:
    """Count the running jobs of all backends, or of one."""
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    if downstream is None:
        rows = await tx.all(_RUNNING_OF_ALL, upstream=upstream)
    else:
        rows = await tx.all(_RUNNING_OF_BACKEND, upstream=upstream, downstream=downstream)
    for row in rows:
        counts[row["downstream"], row["event"]] += int(row["number"])
    return Running(counts)


async def read_figures(tx: Tx, scope: FigureScope) -> Figures:
    """The figures without running jobs and without the last result."""
    statement = _BY_DAYS if scope.window.whole_days else _BY_HOURS
    sums = await tx.all(statement, **scope.parameters)
    if scope.kind is not ResultKind.INGESTED:
        return make_figures(sums, scope.window)
    return make_figures(sums, scope.window, await read_extremes(tx, scope))


async def read_extremes(tx: Tx, scope: FigureScope) -> dict[int, Row]:
    """The shortest and longest durations of each part, for sums that have none."""
    parameters = scope.parameters
    if scope.kind is ResultKind.INGESTED:
        del parameters["kind"]
        rows = await tx.all(_EXTREMES_INGESTED, delivered_at=parameters["since"] - _OLDER_US, **parameters)
    else:
        statement = _EXTREMES_BY_DAYS if scope.window.whole_days else _EXTREMES_BY_HOURS
        rows = await tx.all(statement, **parameters)
    return {row["part"]: row for row in rows}


def make_figures(
    sums: Iterable[Row], window: Window, extremes: Mapping[int, Row] = MappingProxyType({})
) -> Figures:
    """Make figures from the sums of the window's parts, of either store; `extremes` where the sums have none."""
    starts = window.starts()
    parts = [Part(at=at) for at in starts]
    superseded = earlier = 0
    names: tuple[str, ...] = ()
    for row in sums:
        index = row["part"]
        if isinstance(row, dict):
            names, values = tuple(row), tuple(row.values())
        else:
            names, values = names or tuple(row.keys()), cast("tuple[Any, ...]", row)[:]
        more = tuple(dict(extremes[index]).items()) if index in extremes else ()
        parts[index], left_out = _make_part(starts[index], names, values, more)
        superseded, earlier = superseded + left_out.superseded, earlier + left_out.earlier
    return Figures(parts=tuple(parts), left_out=LeftOut(superseded, earlier))


async def read_last(tx: Tx, upstream: str, downstream: str, *kinds: ResultKind) -> LastResult | None:
    """The newest result that counts, of any of these kinds."""
    backend = {"upstream": upstream, "downstream": downstream}
    rows: list[Row | None] = []
    for kind in kinds:
        if kind is ResultKind.INGESTED:
            rows.append(await tx.one(_LAST_INGESTED, **backend))
        else:
            rows += [await tx.one(_LAST, event=event, **backend) for event in kind.events]
    return max((_last_result(row) for row in rows if row), key=lambda result: result.at, default=None)


async def count_ingested_running(
    tx: Tx, upstream: str, downstream: str, window: Window, now: datetime
) -> int:
    """Count jobs of another relay that began lately, without those that a newer run or attempt replaced."""
    since = to_us(max(window.since, now - RUNS_AT_MOST))
    rows = await tx.all(_BEGUN_INGESTED, upstream=upstream, downstream=downstream, since=since)
    attempts: defaultdict[tuple[str, ...], list[RunAttempt]] = defaultdict(list)
    for row in rows:
        attempts[_job_key(row)].append(_run_attempt(row))
    return sum(
        row["state"] == "in_progress"
        and row["seen_at"] >= since
        and not is_superseded(_run_attempt(row), attempts[_job_key(row)])
        and not has_later_attempt(_run_attempt(row), attempts[_job_key(row)])
        for row in rows
    )


def _job_key(row: Row) -> tuple[str, ...]:
    return row["delivery"], row["workflow_name"], row["job_name"]


def _run_attempt(row: Row) -> RunAttempt:
    return RunAttempt(row["run_id"], row["attempt"])


@lru_cache(_KEPT_PARTS)
def _make_part(
    at: datetime, names: tuple[str, ...], values: tuple[Any, ...], more: tuple[tuple[str, Any], ...]
) -> tuple[Part, LeftOut]:
    """A part and its results that are in no rate, from a row of sums and what replaces some of it.

    Nearly all days of a range are over: their rows, of sixty columns each, are the same when the page is read again.
    """
    row = {**dict(zip(names, values, strict=True)), **dict(more)}
    timed_out = row["timed_out"] + row["silent"]
    part = Part(
        at=at,
        tally=Tally(row["success"], row["failure"] + timed_out, 0, row["other"], timed_out),
        queue=_durations(row, "queue", _QUEUE_BUCKETS),
        execution=_durations(row, "execution", _EXECUTION_BUCKETS),
        sent=row["sent"],
        delay_s=added_up_s(row["delay_sum_s"]),
    )
    return part, LeftOut(row["superseded"], row["earlier"])


_QUEUE_BUCKETS, _EXECUTION_BUCKETS = itemgetter(*QUEUE), itemgetter(*EXECUTION)


def _durations(
    row: dict[str, Any], name: str, get_buckets: Callable[[Mapping[str, Any]], tuple[int, ...]]
) -> Durations:
    buckets = get_buckets(row)
    known = sum(buckets)
    if not known:
        return Durations(buckets=buckets)
    total = added_up_s(row[f"{name}_sum_s"])
    return Durations(total, known, buckets, row.get(f"{name}_low_s"), row.get(f"{name}_high_s"))


def _last_result(row: Row) -> LastResult:
    state, conclusion = JobState(row["state"]), row["conclusion"]
    concluded = Conclusion(conclusion) if conclusion else None
    expected = Conclusion(row["expected"]) if row["expected"] else None
    counted: CountedAs = count_as(state, concluded, expected)
    return LastResult(state, concluded, row["job_name"], from_us(row["completed_at"] or 0), counted)


# Exact durations where there are few: a percentile is then the duration of one of the jobs, not a bucket's.
#
# Sums hold no single durations, so the rows of jobs are read, which are kept for longer than any range. Where the number of
# rows differs from the sums, the sums are used.

_MOST_ROWS = 5_000
"""Read for one stretch of time; a part with more keeps the values of its sums."""
_DELIVERED_BEFORE = timedelta(days=7)
"""Another relay's result may be of a delivery that is older by this."""
_ENDED = ", ".join(f"'{ended}'" for ended in sorted(TIMED))
_JOBS = Statement(
    text(
        "SELECT in_progress_at AS began_at, ended_as, queue_s, execution_s FROM jobs WHERE upstream = :upstream"  # noqa: S608  our own words
        " AND downstream = :downstream AND in_progress_at >= :since AND in_progress_at < :until"
        f" AND event IN (:event, :other_event) AND ended_as IN ({_ENDED})"
        " ORDER BY in_progress_at LIMIT :most"
    )
)
_INGESTED = Statement(
    text(
        "SELECT coalesce(started_at, seen_at) AS began_at, ended_as, queue_s, execution_s FROM ingested"  # noqa: S608  our own words
        " WHERE upstream = :upstream AND downstream = :downstream AND delivery_at >= :delivered_at"
        " AND coalesce(started_at, seen_at) >= :since AND coalesce(started_at, seen_at) < :until"
        f" AND ended_as IN ({_ENDED}) LIMIT :most"
    )
)


def has_few_durations(figures: Figures) -> bool:
    """Whether percentiles of the whole window are of few durations."""
    return any(0 < times.known < FEW for times in (figures.queue, figures.execution))


def parts_with_few_durations(figures: Figures) -> list[int]:
    """The indices of the window's parts whose percentiles are of few durations."""
    return [
        index
        for index, part in enumerate(figures.parts)
        if any(0 < times.known < FEW for times in (part.queue, part.execution))
    ]


async def read_exact_durations(tx: Tx, scope: FigureScope, figures: Figures, *, parts: bool) -> Figures:
    """Add exact durations to the figures: of the whole window where it has few, else of `parts` that have few."""
    window = scope.window
    whole = has_few_durations(figures)
    if whole:
        indices = [
            index for index, part in enumerate(figures.parts) if part.queue.known or part.execution.known
        ]
    else:
        indices = parts_with_few_durations(figures) if parts else []
    rows_by_part: defaultdict[int, list[Row]] = defaultdict(list)
    for stretch in _merge_adjacent(window, indices):
        for row in await _read_jobs(tx, scope, stretch):
            index = (row["began_at"] - to_us(window.since)) // (window.width // timedelta(microseconds=1))
            rows_by_part[index].append(row)
    if not rows_by_part:
        return figures
    changed = list(figures.parts)
    for index in indices:
        part, rows = changed[index], rows_by_part[index]
        changed[index] = replace(
            part,
            queue=_with_exact_values(part.queue, [row["queue_s"] for row in rows], whole=whole),
            execution=_with_exact_values(part.execution, [_execution_s(row) for row in rows], whole=whole),
        )
    return replace(figures, parts=tuple(changed))


def _execution_s(row: Row) -> float | None:
    """How long a job took; the end of a silent one is unknown."""
    return None if row["ended_as"] == EndedAs.SILENT.value else row["execution_s"]


def _with_exact_values(durations: Durations, seconds: Collection[float | None], *, whole: bool) -> Durations:
    known = tuple(sorted(second for second in seconds if second is not None))
    if len(known) != durations.known or not 0 < len(known) < FEW:
        return durations
    if not whole:
        # Keep the recorded shortest and longest: the total must not depend on which parts were read job by job.
        return replace(durations, few=known)
    return replace(durations, few=known, low_s=known[0], high_s=known[-1])


def _merge_adjacent(window: Window, indices: list[int]) -> Iterator[tuple[datetime, datetime]]:
    """The times of these parts, those beside each other as one."""
    starts = (*window.starts(), window.until)
    for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
        adjacent = [index for _, index in run]
        yield starts[adjacent[0]], starts[adjacent[-1] + 1]


async def _read_jobs(tx: Tx, scope: FigureScope, stretch: tuple[datetime, datetime]) -> list[Row]:
    since, until = stretch
    backend = {"upstream": scope.upstream, "downstream": scope.downstream}
    parameters = {**backend, "since": to_us(since), "until": to_us(until)}
    if scope.kind is ResultKind.INGESTED:
        return await tx.all(
            _INGESTED, delivered_at=to_us(since - _DELIVERED_BEFORE), most=_MOST_ROWS, **parameters
        )
    events = {"event": scope.kind.events[0], "other_event": scope.kind.events[-1]}
    return await tx.all(_JOBS, most=_MOST_ROWS, **events, **parameters)
