"""The durations themselves where they are few: a percentile of some jobs is one of theirs, and not read from a bucket.

Sums hold no single durations, so the rows of jobs are read, which are kept for longer than any range. A part whose rows
are not as many as its sums say keeps what the sums say.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby

from sqlalchemy import text

from crcr.decide.statistics.figures import FEW, TIMED, Durations, EndedAs, Figures
from crcr.decide.statistics.window import ResultKind, Window
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

_MOST_ROWS = 5_000
"""Read for one stretch of time; what has more keeps what its sums say."""
_DELIVERED_BEFORE = timedelta(days=7)
"""Another relay's result may be of a delivery that is older by this."""
_ENDED = ", ".join(f"'{each}'" for each in sorted(TIMED))
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


def has_few(figures: Figures) -> bool:
    """Whether percentiles of the whole window are of few durations."""
    return any(0 < each.known < FEW for each in (figures.queue, figures.execution))


def few_parts(figures: Figures) -> list[int]:
    """The places of the window's parts whose percentiles are of few durations."""
    return [
        place
        for place, part in enumerate(figures.parts)
        if any(0 < each.known < FEW for each in (part.queue, part.execution))
    ]


async def read_few(
    tx: Tx, upstream: str, downstream: str, kind: ResultKind, window: Window, *, figures: Figures, parts: bool
) -> Figures:
    """The figures with the durations themselves: of the whole window where these are few, of `parts` that have few."""
    whole = has_few(figures)
    if whole:
        wanted = [
            place for place, part in enumerate(figures.parts) if part.queue.known or part.execution.known
        ]
    else:
        wanted = few_parts(figures) if parts else []
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for stretch in _stretches(window, wanted):
        for row in await _rows(tx, upstream, downstream, kind, stretch):
            place = (row["began_at"] - to_us(window.since)) // (window.width // timedelta(microseconds=1))
            found[place].append(row)
    if not found:
        return figures
    changed = list(figures.parts)
    for place in wanted:
        part, rows = changed[place], found[place]
        changed[place] = replace(
            part,
            queue=_exactly(part.queue, [row["queue_s"] for row in rows], whole=whole),
            execution=_exactly(part.execution, [_ran_s(row) for row in rows], whole=whole),
        )
    return replace(figures, parts=tuple(changed))


def _ran_s(row: Row) -> float | None:
    """How long a job took; nobody knows when a silent one ended."""
    return None if row["ended_as"] == EndedAs.SILENT.value else row["execution_s"]


def _exactly(durations: Durations, seconds: Collection[float | None], *, whole: bool) -> Durations:
    known = tuple(sorted(each for each in seconds if each is not None))
    if len(known) != durations.known or not 0 < len(known) < FEW:
        return durations
    if not whole:
        # Keep the recorded shortest and longest: the total must not depend on which parts were read job by job.
        return replace(durations, few=known)
    return replace(durations, few=known, low_s=known[0], high_s=known[-1])


def _stretches(window: Window, places: list[int]) -> Iterator[tuple[datetime, datetime]]:
    """The times of these parts, those beside each other as one."""
    starts = (*window.starts(), window.until)
    for _, run in groupby(enumerate(places), key=lambda each: each[1] - each[0]):
        beside = [place for _, place in run]
        yield starts[beside[0]], starts[beside[-1] + 1]


async def _rows(
    tx: Tx, upstream: str, downstream: str, kind: ResultKind, stretch: tuple[datetime, datetime]
) -> list[Row]:
    since, until = stretch
    where = {"upstream": upstream, "downstream": downstream, "since": to_us(since), "until": to_us(until)}
    if kind is ResultKind.INGESTED:
        return await tx.all(
            _INGESTED, delivered_at=to_us(since - _DELIVERED_BEFORE), most=_MOST_ROWS, **where
        )
    events = {"event": kind.events[0], "other_event": kind.events[-1]}
    return await tx.all(_JOBS, most=_MOST_ROWS, **events, **where)
