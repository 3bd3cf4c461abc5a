"""The sums after any sequence of facts are what the rows themselves say, and each job stands in one place of them."""

from datetime import timedelta
from itertools import product
from random import Random
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistReading
from crcr.decide.jobs.report import ReportStatus
from crcr.decide.model import Conclusion
from crcr.decide.statistics.figures import Figures
from crcr.decide.statistics.window import ResultKind, Span, Window
from crcr.decide.views.backend import BackendQuery
from crcr.record.statistics.rebuild_all_sums import rebuild_extremes, rebuild_sums
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.times import to_us
from crcr.record.views.sql_views import SqlViews
from support.data.random_walk import LISTED, RandomWalk
from support.data.sums_oracle import (
    DAY_US,
    HOUR_US,
    backend_sums,
    day_sums,
    differences,
    durations,
    job_categories,
    job_key,
    page_counts,
    percentile,
    stored_sums,
    too_narrow,
)
from support.stores.databases import CORE, Stores
from support.stores.tables import database_location, open_table_engine

HOURS = ("upstream", "downstream", "kind", "hour_at")
DAYS = ("upstream", "downstream", "kind", "day_at")
JOB_DAYS = (*DAYS, "workflow", "job_name")
TABLES = ("jobs", "dispatches", "hours", "days", "job_days")
STEPS = 150
STEPS_BETWEEN_LOOKS = 10
"""On PostgreSQL: a seed takes the same steps on both databases, and SQLite shows which step went wrong."""


def wrong(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Everything in which the sums are not what the rows of jobs and dispatches say."""
    jobs, dispatches = rows["jobs"], rows["dispatches"]
    placed = job_categories(jobs, dispatches)
    found = [
        f"{job_key(job)} is {job['ended_as']}, not {placed[job_key(job)]}"
        for job in jobs
        if job["ended_as"] != placed[job_key(job)]
    ]
    found += differences(backend_sums(jobs, dispatches, HOUR_US), stored_sums(rows["hours"], *HOURS))
    found += differences(backend_sums(jobs, dispatches, DAY_US), stored_sums(rows["days"], *DAYS))
    found += differences(day_sums(jobs, dispatches), stored_sums(rows["job_days"], *JOB_DAYS))
    found += too_narrow(durations(jobs, dispatches, HOUR_US), rows["hours"], *HOURS)
    found += too_narrow(durations(jobs, dispatches, DAY_US), rows["days"], *DAYS)
    sums = (*rows["hours"], *rows["days"], *rows["job_days"])
    found += [
        f"{row} has a negative number"
        for row in sums
        if any(value < -1e-6 for value in row.values() if isinstance(value, int | float))
    ]
    return found


async def read_tables(walk: RandomWalk) -> dict[str, list[dict[str, Any]]]:
    return {table: await walk.rows(f"SELECT * FROM {table}") for table in TABLES}  # noqa: S608 - our own


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_the_sums_are_what_the_rows_say(stores: Stores, seed: int) -> None:
    walk = RandomWalk(stores, Random(seed))
    await walk.begin()
    kept = await read_tables(walk)
    apart = STEPS_BETWEEN_LOOKS if isinstance(stores.database, PostgresDatabase) else 1
    for step in range(1, STEPS + 1):
        act = await walk.step()
        if step % apart:
            continue
        before, kept = kept, await read_tables(walk)
        assert kept == before or wrong(kept) == [], f"after step {step}, {act}"
    await _is_shown(walk, kept)
    worked_out = await _summed_anew(walk)
    assert wrong(worked_out) == []
    for table, key in (("hours", HOURS), ("days", DAYS), ("job_days", JOB_DAYS)):
        assert differences(stored_sums(worked_out[table], *key), stored_sums(kept[table], *key)) == []
    assert _names(worked_out["job_days"]) == _names(kept["job_days"])


async def _is_shown(walk: RandomWalk, kept: dict[str, list[dict[str, Any]]]) -> None:
    """What the views make of the sums is what the rows say, for every range and kind."""
    views = SqlViews(walk.stores.database, walk.stores.allowlists, (CORE,))
    for span, kind in product(Span, (ResultKind.PULLS, ResultKind.PUSH)):
        window = Window.of(span, walk.now)
        where: dict[str, Any] = {
            "kind": kind.value,
            "since_us": to_us(window.since),
            "until_us": to_us(window.until),
        }
        for each in (await views.summary(CORE, span, walk.now, kind=kind)).backends:
            wanted = page_counts(kept["jobs"], kept["dispatches"], downstream=each.name.key, **where)
            assert _numbers(each.figures) == wanted
            page = await views.backend(
                BackendQuery(upstream=CORE, downstream=each.name, span=span, kind=kind), walk.now
            )
            _are_exact(page.summary.figures, kept, each.name.key, kind, window)
            for name in ("success", "failure", "timed_out", "other"):
                assert sum(getattr(job.tally, name) for job in page.jobs) == wanted[name]


def _are_exact(
    figures: Figures | None,
    kept: dict[str, list[dict[str, Any]]],
    downstream: str,
    kind: ResultKind,
    window: Window,
) -> None:
    """Percentiles of few are durations of theirs, for the window and for each of its parts."""
    assert figures is not None
    width = window.width // timedelta(microseconds=1)
    counted = durations(kept["jobs"], kept["dispatches"], width)
    known = [counted.get((CORE.key, downstream, kind.value, to_us(part.at)), {}) for part in figures.parts]
    whole = {what: [s for times in known for s in times.get(what, ())] for what in ("queue", "execution")}
    for shown_, seconds in (*zip(figures.parts, known, strict=True), (figures, whole)):
        for what in ("queue", "execution"):
            few, times = seconds.get(what, []), getattr(shown_, what)
            if 0 < len(few) < 20:
                assert (times.p50_s, times.p95_s) == (percentile(few, 0.5), percentile(few, 0.95))


def _numbers(figures: Figures | None) -> dict[str, int | None]:
    assert figures is not None
    tally, left_out, last = figures.tally, figures.left_out, figures.last_result
    counts = {name: getattr(tally, name) for name in ("success", "failure", "timed_out", "other", "running")}
    out = {"superseded": left_out.superseded, "earlier": left_out.earlier}
    return {**counts, **out, "sent": figures.sent, "last": to_us(last.at) if last else None}


async def _summed_anew(walk: RandomWalk) -> dict[str, list[dict[str, Any]]]:
    """The same rows, with every sum worked out at once, as for a database that had none."""
    engine = open_table_engine(database_location(walk.stores.database))
    with engine.begin() as connection:
        for statement in (
            "DELETE FROM hours",
            "DELETE FROM days",
            "DELETE FROM job_days",
            "UPDATE jobs SET ended_as = NULL",
        ):
            connection.execute(text(statement))
        rebuild_sums(connection)
        rebuild_extremes(connection)
    engine.dispose()
    return await read_tables(walk)


def _names(days: list[dict[str, Any]]) -> dict[tuple[Any, ...], str]:
    return {tuple(row[name] for name in JOB_DAYS): row["workflow_name"] for row in days}


async def pushed(stores: Stores) -> tuple[RandomWalk, dict[str, dict[str, Any]]]:
    """A push that was sent to everybody; its dispatches by backend."""
    walk = RandomWalk(stores, Random(0))
    await walk.begin()
    await walk.push()
    for effect in await walk.workers[0].claim(9, walk.now):
        await walk.workers[0].finish(effect, began_at=walk.now, now=walk.now)
    return walk, {row["downstream"]: row for row in await walk.rows("SELECT * FROM dispatches")}


async def test_a_newer_allowlist_does_not_change_what_a_running_job_is_to_do(stores: Stores) -> None:
    walk, dispatches = await pushed(stores)
    probe = dispatches["org/probe"]
    await walk.report(probe, "1001", 1, "build")
    await walk.stores.allowlists.take_reading(
        CORE, AllowlistReading("test", LISTED.format(expected="success")), walk.now
    )
    await walk.report(probe, "1001", 1, "build", status=ReportStatus.COMPLETED, conclusion=Conclusion.FAILURE)
    assert wrong(await read_tables(walk)) == []
    [job] = await walk.rows("SELECT * FROM jobs")
    assert (job["expected"], job["ended_as"]) == ("failure", "success")


async def test_a_builds_other_workflow_counts_on_when_one_of_them_is_run_anew(stores: Stores) -> None:
    walk, dispatches = await pushed(stores)
    one = dispatches["org/one"]
    for build, workflow in (("b-1", "CI"), ("b-1", "More"), ("b-2", "CI")):
        await walk.report(one, build, 1, "build", workflow_name=workflow)
    for build, workflow in (("b-1", "CI"), ("b-1", "More"), ("b-2", "CI")):
        ended = {"status": ReportStatus.COMPLETED, "conclusion": Conclusion.SUCCESS}
        await walk.report(one, build, 1, "build", workflow_name=workflow, **ended)
    assert wrong(await read_tables(walk)) == []
    found = await walk.rows("SELECT run_id, workflow, ended_as FROM jobs ORDER BY run_id, workflow")
    assert [job["ended_as"] for job in found] == ["superseded", "success", "success"]


async def test_what_is_sent_again_counts_where_it_was_sent_last(stores: Stores) -> None:
    walk, dispatches = await pushed(stores)
    walk.now += timedelta(hours=5)
    await stores.acts.replay(CORE, dispatches["org/one"]["delivery"], who="ann", now=walk.now, everyone=True)
    walk.now += timedelta(seconds=3)
    for effect in await walk.workers[0].claim(9, walk.now):
        await walk.workers[0].finish(effect, began_at=walk.now, now=walk.now)
        await walk.workers[1].finish(effect, began_at=walk.now, now=walk.now)  # who lost its lease and sent
    assert wrong(await read_tables(walk)) == []
    sums = [row for row in await walk.rows("SELECT * FROM hours") if row["sent"]]
    assert [(row["sent"], row["delay_sum_s"]) for row in sums] == [(1, 3.0)] * len(dispatches)


async def test_a_destroyed_merge_group_takes_what_was_to_be_sent_again_out_of_the_numbers(
    stores: Stores,
) -> None:
    walk, _ = await pushed(stores)
    await walk.group()
    [effect] = [each for each in await walk.workers[0].claim(9, walk.now) if each.kind == "send_dispatch"]
    await walk.workers[0].finish(effect, began_at=walk.now, now=walk.now)
    [row] = await walk.rows("SELECT * FROM dispatches WHERE event = 'merge_group'")
    await walk.report(row, "1001", 1, "build")
    await walk.report(row, "1001", 1, "build", status=ReportStatus.COMPLETED, conclusion=Conclusion.FAILURE)
    await stores.acts.replay(CORE, row["delivery"], who="ann", now=walk.now, everyone=True)
    assert [job["ended_as"] for job in await walk.rows("SELECT * FROM jobs")] == ["failure"]
    await walk.destroy(walk.groups[0])
    assert [job["ended_as"] for job in await walk.rows("SELECT * FROM jobs")] == ["superseded"]
    assert wrong(await read_tables(walk)) == []


@pytest.mark.parametrize("open_database", ["sqlite"], indirect=True)
async def test_the_walk_goes_everywhere(stores: Stores) -> None:
    """The walks above say nothing about what they never come to; a seed takes the same steps on every database."""
    met: set[str | None] = set()
    marks: set[str] = set()
    for seed in range(14):
        walk = RandomWalk(stores, Random(seed), numbers=seed * 1_000_000)
        await walk.begin()
        for _ in range(STEPS):
            await walk.step()
    for job in await walk.rows("SELECT * FROM jobs"):
        met.add(job["ended_as"])
        marks |= {name for name in ("late", "disputed", "superseded", "unsigned", "expected") if job[name]}
        marks |= {job["event"], job["verification"], f"attempt {job['attempt']}"}
    assert met == {None, "success", "failure", "timed_out", "silent", "other", "superseded", "earlier"}
    assert {"late", "disputed", "superseded", "unsigned", "expected"} <= marks
    assert {"pull_request", "push", "merge_group", "crcr_test", "disputed", "confirmed"} <= marks
    assert {"nightly", "periodic"} <= marks
    assert {"attempt 1", "attempt 2", "attempt 3"} <= marks
