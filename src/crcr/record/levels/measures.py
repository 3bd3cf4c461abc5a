"""Measures the criteria of levels from sums: those of every page, and sums by day that only levels need.

A day's own sums are counted from the rows of that day, again until a day after its end, and kept then: an evaluation reads the
rows of the last days and never those of the whole window. Failures that the upstream caused are taken out of the pass rate: the
verdict is `new` or `pre-existing`, and two other backends failed alike on the same commit, or the upstream has reverted the cause.
"""
# ruff: noqa: S608 - every name in these statements is our own

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.dispatch.plan import SHADOW_REASON
from crcr.decide.levels.criteria import (
    CriterionName,
    LevelCriteria,
    Measure,
    Measures,
    median_from_slots,
    share_over,
)
from crcr.decide.statistics.figures import Figures
from crcr.decide.statistics.window import ResultKind, Window
from crcr.record.statistics.sums import DAY_US
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.backends.backend_reader import AWAITED, IS_UPSTREAM_EVENT
from crcr.record.views.backends.figures import FigureScope, read_figures

SLOT = timedelta(minutes=15)
_SLOT_US = SLOT // timedelta(microseconds=1)
_SLOT_H = SLOT / timedelta(hours=1)
_MOST_SLOTS = 400
_FINAL_AFTER_US = DAY_US
"""A day is counted again until this long after its end: jobs that began on it have ended, and answers are too late."""
_AGREEING = 3
"""Backends with the same failure on one commit, this one included, that make it the upstream's."""
_MOST_UNANSWERED = 10
_SILENT_BACK = timedelta(days=90)
"""A backend that answered nothing is silent until it answers; that events stopped is no recovery."""
_OF_DAY = (
    "j.upstream = :upstream AND j.downstream = :downstream AND j.in_progress_at >= :since AND j.in_progress_at < :until"
    " AND j.event = 'pull_request'"
)
# The first attempt: what a person runs again the next day did not take a day.
_RUNS = Statement(
    text(
        "SELECT took / :slot AS slot, count(*) AS number FROM (SELECT max(j.completed_at) - min(d.created_at) AS took"
        " FROM jobs j JOIN dispatches d ON d.delivery = j.delivery AND d.upstream = j.upstream"
        f" AND d.downstream = j.downstream WHERE {_OF_DAY} AND j.attempt = 1"
        " AND j.ended_as IN ('success', 'failure', 'timed_out', 'earlier') AND j.completed_at IS NOT NULL"
        " GROUP BY j.delivery, j.workflow, j.run_id) AS timed GROUP BY 1"
    )
)
_JOB_SLOTS = (
    "SELECT {slot} AS slot, count(*) AS number FROM jobs j"
    f" WHERE {_OF_DAY} AND j.ended_as IN ('success', 'failure') AND j.execution_s IS NOT NULL GROUP BY 1"
)
_JOBS = Statement(
    text(_JOB_SLOTS.format(slot="CAST(j.execution_s / 900 AS INTEGER)")),
    text(_JOB_SLOTS.format(slot="CAST(floor(j.execution_s / 900) AS BIGINT)")),
)
_ANSWERS = Statement(
    text(
        "SELECT count(*) AS expected, coalesce(sum(answered), 0) AS answered FROM (SELECT d.sent_at, d.superseded_at,"
        # The expressions are in no index: SQLite would read all earlier jobs of the backend for each dispatch.
        " CASE WHEN EXISTS (SELECT 1 FROM jobs j WHERE j.delivery = d.delivery AND j.upstream || '' = d.upstream"
        " AND j.downstream || '' = d.downstream AND j.in_progress_at <= d.sent_at + :within) THEN 1 ELSE 0 END AS answered"
        " FROM dispatches d WHERE d.upstream = :upstream AND d.downstream = :downstream AND d.event = 'pull_request'"
        " AND d.created_at >= :since AND d.created_at < :until AND d.sent_at <= :before AND d.test = 0"
        # Of imported history only the answered dispatches are known; what shadow mode did not send, nobody can answer.
        f" AND d.imported = 0 AND coalesce(d.reason, '') <> '{SHADOW_REASON}'"
        " AND coalesce(d.action, '') <> 'closed') AS sent"
        # A newer commit cancels the run of an older one before it reports.
        " WHERE answered = 1 OR superseded_at IS NULL OR superseded_at > sent_at + :within"
    )
)
_KNOWN_DAYS = Statement(
    text(
        "SELECT day_at, runs, jobs, expected, answered, counted_at FROM level_days WHERE upstream = :upstream"
        " AND downstream = :downstream AND day_at >= :since"
    )
)
_LEFT_OUT = Statement(
    text(
        "WITH mine AS MATERIALIZED (SELECT f.delivery, f.number, f.verdict, f.workflow, f.job_name, j.in_progress_at,"
        " f.fingerprint AS cause FROM failures f JOIN jobs j ON j.delivery = f.delivery"
        " AND j.upstream = f.upstream AND j.downstream = f.downstream AND j.workflow = f.workflow AND j.run_id = f.run_id"
        " AND j.attempt = f.attempt AND j.job_name = f.job_name WHERE f.upstream = :upstream"
        " AND f.downstream = :downstream AND f.at >= :since AND f.kind = 'pull_request'"
        " AND f.verdict IN ('new', 'pre-existing') AND j.ended_as = 'failure' AND j.in_progress_at >= :since"
        " AND j.in_progress_at < :until),"
        " shared AS MATERIALIZED (SELECT o.delivery, o.fingerprint AS cause"
        " FROM (SELECT DISTINCT delivery FROM mine) AS m CROSS JOIN failures o WHERE o.delivery = m.delivery"
        " AND o.upstream = :upstream AND o.fingerprint IS NOT NULL GROUP BY 1, 2"
        f" HAVING count(DISTINCT o.downstream) >= {_AGREEING}),"
        " reverted AS MATERIALIZED (SELECT b.reverts AS sha, c.number FROM base_commits b LEFT JOIN base_commits c"
        " ON c.sha = b.reverts AND c.upstream = b.upstream AND c.ref = b.ref WHERE b.upstream = :upstream"
        " AND b.pushed_at >= :since AND b.reverts IS NOT NULL),"
        " culprits AS MATERIALIZED (SELECT s.workflow, s.job_name FROM bisections s JOIN reverted r ON r.sha = s.culprit"
        " WHERE s.upstream = :upstream AND s.downstream = :downstream AND s.culprit IS NOT NULL)"
        " SELECT count(*) AS number, coalesce(sum(CASE WHEN m.in_progress_at >= :leave_since THEN 1 ELSE 0 END), 0)"
        " AS lately FROM mine m WHERE (m.delivery, m.cause) IN (SELECT delivery, cause FROM shared)"
        " OR (m.verdict = 'new' AND m.number IN (SELECT number FROM reverted WHERE number IS NOT NULL))"
        " OR (m.verdict = 'pre-existing' AND (m.workflow, m.job_name) IN (SELECT workflow, job_name FROM culprits))"
    )
)
_LAST_REPORT = Statement(
    text(
        "SELECT in_progress_at AS at FROM jobs WHERE upstream = :upstream AND downstream = :downstream"
        f" AND {IS_UPSTREAM_EVENT} ORDER BY in_progress_at DESC LIMIT 1"
    )
)
_UNANSWERED = Statement(
    text(
        "SELECT min(sent_at) AS first, count(*) AS number FROM (SELECT d.sent_at FROM dispatches d"
        " WHERE d.upstream = :upstream AND d.downstream = :downstream AND d.created_at > :since"
        f" AND {AWAITED} ORDER BY d.created_at LIMIT :most) AS few"
    )
)
_LEVEL_SINCE = Statement(
    text(
        "SELECT level, at FROM levels WHERE upstream = :upstream AND downstream = :downstream"
        " ORDER BY version DESC LIMIT 20"
    )
)


@dataclass(frozen=True, slots=True)
class CountedDay:
    """The sums of one day that only levels need."""

    day_at: int
    runs: Mapping[int, int]
    jobs: Mapping[int, int]
    expected: int = 0
    answered: int = 0

    def row(self) -> dict[str, Any]:
        return {
            "day_at": self.day_at,
            "runs": json.dumps(self.runs),
            "jobs": json.dumps(self.jobs),
            "expected": self.expected,
            "answered": self.answered,
        }


@dataclass(frozen=True, slots=True)
class BackendMeasures:
    arriving: Measures
    """Over the window to come to L3."""
    leaving: Measures
    """Over the window to leave it."""
    left_out: int
    """Failures of the longer window that the upstream caused."""
    counted: tuple[CountedDay, ...]
    """Days that were counted for it, to be kept."""


@dataclass(frozen=True, slots=True)
class _Backend:
    upstream: str
    downstream: str

    @property
    def key(self) -> dict[str, str]:
        return {"upstream": self.upstream, "downstream": self.downstream}


async def measure_backend(
    tx: Tx, upstream: str, downstream: str, criteria: LevelCriteria, now: datetime
) -> BackendMeasures:
    backend = _Backend(upstream, downstream)
    window, leave = Window.of(criteria.window, now), Window.of(criteria.leave_window, now)
    days, counted = await _read_days(tx, backend, min(window.since, leave.since), criteria, now)
    left_out, left_out_lately = await _read_left_out(tx, backend, window, leave)
    always = {
        CriterionName.SILENCE: await _measure_silence(tx, backend, criteria, now),
        CriterionName.TIME_AT_L2: await _measure_time_at_l2(tx, backend, now),
    }
    measures = [
        {
            **always,
            **_measure_sums(await read_figures(tx, _scope(backend, span)), lost),
            **_measure_days([day for day in days if day.day_at >= to_us(span.since)], criteria),
        }
        for span, lost in ((window, left_out), (leave, left_out_lately))
    ]
    return BackendMeasures(measures[0], measures[1], left_out, counted)


def _scope(backend: _Backend, window: Window) -> FigureScope:
    return FigureScope(backend.upstream, backend.downstream, ResultKind.PULLS, window)


def _measure_sums(figures: Figures, left_out: int) -> dict[CriterionName, Measure]:
    tally, queue_s = figures.tally, figures.queue.average_s
    decided = max(tally.decided - left_out, tally.success)
    return {
        CriterionName.PASS_RATE: Measure(_percent(tally.success, decided), decided),
        CriterionName.TIMEOUTS: Measure(_percent(tally.timed_out, tally.decided), tally.decided),
        CriterionName.QUEUE_TIME: Measure(None if queue_s is None else queue_s / 60, figures.queue.known),
    }


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def _measure_days(days: list[CountedDay], criteria: LevelCriteria) -> dict[CriterionName, Measure]:
    runs, jobs = _add_slots([day.runs for day in days]), _add_slots([day.jobs for day in days])
    over = share_over(jobs, _SLOT_H, criteria.long_job_hours)
    expected = sum(day.expected for day in days)
    return {
        CriterionName.RUN_TIME: Measure(median_from_slots(runs, _SLOT_H), sum(runs.values())),
        CriterionName.LONG_JOBS: Measure(None if over is None else 100 * over, sum(jobs.values())),
        CriterionName.ANSWERED: Measure(_percent(sum(day.answered for day in days), expected), expected),
    }


def _add_slots(slots: list[Mapping[int, int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for one in slots:
        total.update(one)
    return total


async def _read_days(
    tx: Tx, backend: _Backend, since: datetime, criteria: LevelCriteria, now: datetime
) -> tuple[list[CountedDay], tuple[CountedDay, ...]]:
    """The days from then on, and those of them that were counted now."""
    first, today = to_us(since), to_us(now) - to_us(now) % DAY_US
    known = {row["day_at"]: row for row in await tx.all(_KNOWN_DAYS, since=first, **backend.key)}
    days, counted = [], []
    for day_at in range(first, today + 1, DAY_US):
        row = known.get(day_at)
        if row is not None and row["counted_at"] >= day_at + DAY_US + _FINAL_AFTER_US:
            runs, jobs = (_read_slots(row[name]) for name in ("runs", "jobs"))
            days.append(CountedDay(day_at, runs, jobs, row["expected"], row["answered"]))
        else:
            days.append(await _count_day(tx, backend, day_at, criteria, now))
            counted.append(days[-1])
    return days, tuple(counted)


def _read_slots(encoded: str) -> dict[int, int]:
    return {int(slot): number for slot, number in json.loads(encoded).items()}


async def _count_day(
    tx: Tx, backend: _Backend, day_at: int, criteria: LevelCriteria, now: datetime
) -> CountedDay:
    day = {**backend.key, "since": day_at, "until": day_at + DAY_US}
    within = int(criteria.answer_hours * 3_600_000_000)
    answers = await tx.one(_ANSWERS, within=within, before=to_us(now) - within, **day)
    return CountedDay(
        day_at,
        _count_slots(await tx.all(_RUNS, slot=_SLOT_US, **day)),
        _count_slots(await tx.all(_JOBS, **day)),
        answers["expected"] if answers else 0,
        answers["answered"] if answers else 0,
    )


def _count_slots(rows: list[Row]) -> Counter[int]:
    """The clock of a job may be wrong: what took less than nothing, or days, is put into the first or last slot."""
    slots: Counter[int] = Counter()
    for row in rows:
        slots[min(max(row["slot"], 0), _MOST_SLOTS)] += row["number"]
    return slots


async def _read_left_out(tx: Tx, backend: _Backend, window: Window, leave: Window) -> tuple[int, int]:
    since, leave_since = min(window.since, leave.since), to_us(leave.since)
    row = await tx.one(
        _LEFT_OUT, since=to_us(since), until=to_us(window.until), leave_since=leave_since, **backend.key
    )
    return (row["number"], row["lately"]) if row else (0, 0)


async def _measure_silence(tx: Tx, backend: _Backend, criteria: LevelCriteria, now: datetime) -> Measure:
    """How long dispatches have had no answer: a time without events, or before the first of them, is no silence."""
    last = await tx.one(_LAST_REPORT, **backend.key)
    reported = last["at"] if last else None
    since = max(reported or 0, to_us(now - _SILENT_BACK))
    before = to_us(now - timedelta(hours=criteria.answer_hours))
    row = await tx.one(_UNANSWERED, since=since, before=before, most=_MOST_UNANSWERED, **backend.key)
    if row is None or not row["number"]:
        return Measure(None if reported is None else 0.0)
    return Measure((now - from_us(row["first"])) / timedelta(hours=1), row["number"])


async def _measure_time_at_l2(tx: Tx, backend: _Backend, now: datetime) -> Measure:
    since = None
    for row in await tx.all(_LEVEL_SINCE, **backend.key):
        if row["level"] is None or row["level"] < 2:
            break
        since = from_us(row["at"])
    return Measure((now - since) / timedelta(days=1) if since else None)
