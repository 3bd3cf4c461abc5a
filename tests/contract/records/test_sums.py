"""After any sequence of events the stored sums match the rows, and each job is counted exactly once."""

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
STEPS_BETWEEN_CHECKS = 10
"""On PostgreSQL: a seed makes the same steps on both databases, and SQLite shows which step failed."""


def find_differences(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    """All differences between the stored sums and the rows of jobs and dispatches."""
    jobs, dispatches = rows["jobs"], rows["dispatches"]
    categories = job_categories(jobs, dispatches)
    errors = [
        f"{job_key(job)} is {job['ended_as']}, not {categories[job_key(job)]}"
        for job in jobs
        if job["ended_as"] != categories[job_key(job)]
    ]
    errors += differences(backend_sums(jobs, dispatches, HOUR_US), stored_sums(rows["hours"], *HOURS))
    errors += differences(backend_sums(jobs, dispatches, DAY_US), stored_sums(rows["days"], *DAYS))
    errors += differences(day_sums(jobs, dispatches), stored_sums(rows["job_days"], *JOB_DAYS))
    errors += too_narrow(durations(jobs, dispatches, HOUR_US), rows["hours"], *HOURS)
    errors += too_narrow(durations(jobs, dispatches, DAY_US), rows["days"], *DAYS)
    sums = (*rows["hours"], *rows["days"], *rows["job_days"])
    errors += [
        f"{row} has a negative number"
        for row in sums
        if any(value < -1e-6 for value in row.values() if isinstance(value, int | float))
    ]
    return errors


async def read_tables(walk: RandomWalk) -> dict[str, list[dict[str, Any]]]:
    return {table: await walk.rows(f"SELECT * FROM {table}") for table in TABLES}  # noqa: S608 - our own


@pytest.mark.parametrize("seed", range(20))
async def test_after_any_sequence_of_steps_the_sums_match_the_rows(stores: Stores, seed: int) -> None:
    walk = RandomWalk(stores, Random(seed))
    await walk.begin()
    tables = await read_tables(walk)
    interval = STEPS_BETWEEN_CHECKS if isinstance(stores.database, PostgresDatabase) else 1
    for step in range(1, STEPS + 1):
        act = await walk.step()
        if step % interval:
            continue
        tables_before, tables = tables, await read_tables(walk)
        assert tables == tables_before or find_differences(tables) == [], f"after step {step}, {act}"
    await _assert_views_match(walk, tables)
    rebuilt = await _rebuild_sums(walk)
    assert find_differences(rebuilt) == []
    for table, key in (("hours", HOURS), ("days", DAYS), ("job_days", JOB_DAYS)):
        assert differences(stored_sums(rebuilt[table], *key), stored_sums(tables[table], *key)) == []
    assert _names(rebuilt["job_days"]) == _names(tables["job_days"])


async def _assert_views_match(walk: RandomWalk, tables: dict[str, list[dict[str, Any]]]) -> None:
    """The views show the counts of the rows, for every range and kind."""
    views = SqlViews(walk.stores.database, walk.stores.allowlists, (CORE,))
    for span, kind in product(Span, (ResultKind.PULLS, ResultKind.PUSH)):
        window = Window.of(span, walk.now)
        window_filter: dict[str, Any] = {
            "kind": kind.value,
            "since_us": to_us(window.since),
            "until_us": to_us(window.until),
        }
        for backend in (await views.summary(CORE, span, walk.now, kind=kind)).backends:
            expected = page_counts(
                tables["jobs"], tables["dispatches"], downstream=backend.name.key, **window_filter
            )
            assert _numbers(backend.figures) == expected
            page = await views.backend(
                BackendQuery(upstream=CORE, downstream=backend.name, span=span, kind=kind), walk.now
            )
            _assert_percentiles_are_exact(page.summary.figures, tables, backend.name.key, kind, window)
            for name in ("success", "failure", "timed_out", "other"):
                assert sum(getattr(job.tally, name) for job in page.jobs) == expected[name]


def _assert_percentiles_are_exact(
    figures: Figures | None,
    tables: dict[str, list[dict[str, Any]]],
    downstream: str,
    kind: ResultKind,
    window: Window,
) -> None:
    """With fewer than 20 durations, percentiles are exact, for the window and for each of its parts."""
    assert figures is not None
    width = window.width // timedelta(microseconds=1)
    counted = durations(tables["jobs"], tables["dispatches"], width)
    known = [counted.get((CORE.key, downstream, kind.value, to_us(part.at)), {}) for part in figures.parts]
    all_durations = {
        measure: [s for times in known for s in times.get(measure, ())] for measure in ("queue", "execution")
    }
    for shown_figures, seconds in (*zip(figures.parts, known, strict=True), (figures, all_durations)):
        for measure in ("queue", "execution"):
            seconds_of_kind, times = seconds.get(measure, []), getattr(shown_figures, measure)
            if 0 < len(seconds_of_kind) < 20:
                assert (times.p50_s, times.p95_s) == (
                    percentile(seconds_of_kind, 0.5),
                    percentile(seconds_of_kind, 0.95),
                )


def _numbers(figures: Figures | None) -> dict[str, int | None]:
    assert figures is not None
    tally, left_out, last = figures.tally, figures.left_out, figures.last_result
    counts = {name: getattr(tally, name) for name in ("success", "failure", "timed_out", "other", "running")}
    out = {"superseded": left_out.superseded, "earlier": left_out.earlier}
    return {**counts, **out, "sent": figures.sent, "last": to_us(last.at) if last else None}


async def _rebuild_sums(walk: RandomWalk) -> dict[str, list[dict[str, Any]]]:
    """The same rows with all sums rebuilt, as for a database without sums."""
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


async def send_push(stores: Stores) -> tuple[RandomWalk, dict[str, dict[str, Any]]]:
    """Send a push to all backends; return its dispatches by backend."""
    walk = RandomWalk(stores, Random(0))
    await walk.begin()
    await walk.push()
    for effect in await walk.workers[0].claim(9, walk.now):
        await walk.workers[0].finish(effect, began_at=walk.now, now=walk.now)
    return walk, {row["downstream"]: row for row in await walk.rows("SELECT * FROM dispatches")}


async def test_a_newer_allowlist_does_not_change_the_expected_result_of_a_running_job(stores: Stores) -> None:
    walk, dispatches = await send_push(stores)
    probe = dispatches["org/probe"]
    await walk.report(probe, "1001", 1, "build")
    await walk.stores.allowlists.take_reading(
        CORE, AllowlistReading("test", LISTED.format(expected="success")), walk.now
    )
    await walk.report(probe, "1001", 1, "build", status=ReportStatus.COMPLETED, conclusion=Conclusion.FAILURE)
    assert find_differences(await read_tables(walk)) == []
    [job] = await walk.rows("SELECT * FROM jobs")
    assert (job["expected"], job["ended_as"]) == ("failure", "success")


async def test_a_new_build_of_one_workflow_does_not_supersede_the_others_of_the_old_build(
    stores: Stores,
) -> None:
    walk, dispatches = await send_push(stores)
    dispatch = dispatches["org/one"]
    for build, workflow in (("b-1", "CI"), ("b-1", "More"), ("b-2", "CI")):
        await walk.report(dispatch, build, 1, "build", workflow_name=workflow)
    for build, workflow in (("b-1", "CI"), ("b-1", "More"), ("b-2", "CI")):
        ended = {"status": ReportStatus.COMPLETED, "conclusion": Conclusion.SUCCESS}
        await walk.report(dispatch, build, 1, "build", workflow_name=workflow, **ended)
    assert find_differences(await read_tables(walk)) == []
    jobs = await walk.rows("SELECT run_id, workflow, ended_as FROM jobs ORDER BY run_id, workflow")
    assert [job["ended_as"] for job in jobs] == ["superseded", "success", "success"]


async def test_a_resent_dispatch_counts_at_its_last_send_time(stores: Stores) -> None:
    walk, dispatches = await send_push(stores)
    walk.now += timedelta(hours=5)
    await stores.acts.replay(CORE, dispatches["org/one"]["delivery"], who="ann", now=walk.now, everyone=True)
    walk.now += timedelta(seconds=3)
    for effect in await walk.workers[0].claim(9, walk.now):
        await walk.workers[0].finish(effect, began_at=walk.now, now=walk.now)
        await walk.workers[1].finish(
            effect, began_at=walk.now, now=walk.now
        )  # a worker that sent it after losing its lease
    assert find_differences(await read_tables(walk)) == []
    sums = [row for row in await walk.rows("SELECT * FROM hours") if row["sent"]]
    assert [(row["sent"], row["delay_sum_s"]) for row in sums] == [(1, 3.0)] * len(dispatches)


async def test_destroying_a_merge_group_supersedes_jobs_whose_dispatch_was_to_be_resent(
    stores: Stores,
) -> None:
    walk, _ = await send_push(stores)
    await walk.group()
    [effect] = [
        effect for effect in await walk.workers[0].claim(9, walk.now) if effect.kind == "send_dispatch"
    ]
    await walk.workers[0].finish(effect, began_at=walk.now, now=walk.now)
    [row] = await walk.rows("SELECT * FROM dispatches WHERE event = 'merge_group'")
    await walk.report(row, "1001", 1, "build")
    await walk.report(row, "1001", 1, "build", status=ReportStatus.COMPLETED, conclusion=Conclusion.FAILURE)
    await stores.acts.replay(CORE, row["delivery"], who="ann", now=walk.now, everyone=True)
    assert [job["ended_as"] for job in await walk.rows("SELECT * FROM jobs")] == ["failure"]
    await walk.destroy(walk.groups[0])
    assert [job["ended_as"] for job in await walk.rows("SELECT * FROM jobs")] == ["superseded"]
    assert find_differences(await read_tables(walk)) == []


@pytest.mark.parametrize("open_database", ["sqlite"], indirect=True)
async def test_the_random_walk_reaches_every_kind_of_job(stores: Stores) -> None:
    """The random walks above only test what they reach; a seed makes the same steps on every database."""
    endings: set[str | None] = set()
    marks: set[str] = set()
    for seed in range(14):
        walk = RandomWalk(stores, Random(seed), numbers=seed * 1_000_000)
        await walk.begin()
        for _ in range(STEPS):
            await walk.step()
    for job in await walk.rows("SELECT * FROM jobs"):
        endings.add(job["ended_as"])
        marks |= {name for name in ("late", "disputed", "superseded", "unsigned", "expected") if job[name]}
        marks |= {job["event"], job["verification"], f"attempt {job['attempt']}"}
    assert endings == {None, "success", "failure", "timed_out", "silent", "other", "superseded", "earlier"}
    assert {"late", "disputed", "superseded", "unsigned", "expected"} <= marks
    assert {"pull_request", "push", "merge_group", "crcr_test", "disputed", "confirmed"} <= marks
    assert {"nightly", "periodic"} <= marks
    assert {"attempt 1", "attempt 2", "attempt 3"} <= marks
