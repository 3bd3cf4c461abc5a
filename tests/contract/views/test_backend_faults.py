"""A backend's page on a real store: counting, visibility, levels and staleness."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.allowlist.entries import AllowlistReading
from crcr.decide.model import Conclusion, JobState
from crcr.decide.statistics.figures import CountedAs, LeftOut
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.backend import BackendQuery, JobKey, Matrix
from crcr.decide.views.overview import JobView
from crcr.errors import NotFound
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from support.data.backend_rows import GOOD, NOW, PROBING, backend_page, dispatched_delivery, dispatched_push
from support.data.store_rows import UPSTREAM, StoreRows, open_store_rows


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path, now=NOW) as store:
        yield store


# The faults


async def test_fault_47_a_delivery_with_65_jobs_is_one_row(store: StoreRows) -> None:
    store.allowlist()
    build = dispatched_delivery(store)
    for shard in range(65):
        store.job(build, job_name=f"shard {shard + 1}/65")
    page = await backend_page(store)
    assert [row.delivery for row in page.matrix.rows] == [build]
    assert len(page.matrix.columns) == len([cell for cell in page.matrix.rows[0].cells if cell]) == 65
    assert page.summary.figures is not None
    assert page.summary.figures.tally.success == 65


async def test_fault_45_a_re_run_of_an_old_commit_does_not_replace_the_result_of_the_new_commit(
    store: StoreRows,
) -> None:
    store.allowlist()
    old, new = (
        dispatched_delivery(store, hours_ago=6, superseded_at=store.ago(hours=3)),
        dispatched_delivery(store, hours_ago=3),
    )
    store.job(old, "failure", run_id="1", hours_ago=5)
    store.job(new, "failure", run_id="2", hours_ago=2)
    store.job(old, "success", run_id="1", attempt=2, hours_ago=0.5)
    page = await backend_page(store)
    [row] = page.matrix.rows
    assert [cell.conclusion for cell in row.cells if cell] == [Conclusion.FAILURE]
    figures = page.summary.figures
    assert figures is not None
    assert (figures.tally.success, figures.tally.failure) == (0, 1)
    assert figures.left_out == LeftOut(superseded=2)
    assert figures.last_result is not None
    assert figures.last_result.counted is CountedAs.FAILURE


async def test_fault_43_superseded_and_cancelled_runs_do_not_count_as_failures(store: StoreRows) -> None:
    store.allowlist()
    build = dispatched_delivery(store)
    store.job(build, "failure", run_id="1", superseded=1)
    store.job(build, "cancelled", run_id="2", job_name="cancelled")
    store.job(build, "success", run_id="2")
    tally = (await backend_page(store)).summary.figures.tally  # type: ignore[union-attr]
    assert (tally.success, tally.failure, tally.other, tally.pass_rate) == (1, 0, 1, 1.0)


async def test_fault_44_jobs_with_a_missing_start_or_end_are_shown(store: StoreRows) -> None:
    store.allowlist()
    build = dispatched_delivery(store)
    store.job(build, None, job_name="lost its end", state="timed_out", swept_at=store.ago(hours=1))
    store.job(build, "success", job_name="lost its start", late=1, late_start=1)
    store.job(build, "failure", job_name="came late", late=1, swept_at=store.ago(hours=1), execution_s=9.0)
    page = await backend_page(store)
    [row] = page.matrix.rows
    shown = {
        cell.job_name: (cell.state, cell.counted, cell.marks)
        for cell in row.cells
        if isinstance(cell, JobView)
    }
    assert shown == {
        "lost its end": (JobState.TIMED_OUT, CountedAs.FAILURE, ()),
        "lost its start": (JobState.COMPLETED, CountedAs.SUCCESS, ("late",)),
        "came late": (JobState.COMPLETED, CountedAs.FAILURE, ("late",)),
    }
    tally = page.summary.figures.tally  # type: ignore[union-attr]
    assert (tally.success, tally.failure, tally.timed_out) == (1, 2, 1)


async def test_fault_46_pushes_and_merge_groups_have_their_own_rows_and_figures(store: StoreRows) -> None:
    store.allowlist()
    build, pushed = dispatched_delivery(store), dispatched_push(store)
    merging = dispatched_push(store, event="merge_group", action="checks_requested")
    store.job(build, "failure")
    store.job(pushed, "success", event="push", number=None)
    store.job(merging, "failure", event="merge_group", number=None)
    page = await backend_page(store, kind=ResultKind.PUSH)
    assert {row.delivery for row in page.matrix.rows} == {pushed, merging}
    assert {row.ref for row in page.matrix.rows} == {"refs/heads/main"}
    tally = page.summary.figures.tally  # type: ignore[union-attr]
    assert (tally.success, tally.failure) == (1, 1)
    assert {failure.delivery for failure in page.failures} == {merging}


async def test_fault_46_each_nightly_run_is_one_row(store: StoreRows) -> None:
    store.allowlist()
    for night in (1, 2):
        for job in range(3):
            store.job(
                ("", "a" * 40, "b" * 40)[job],  # jobs of one run may name no commit or different commits
                "failure" if (night, job) == (1, 0) else "success",
                event="nightly",
                number=None,
                head_sha=(None, "a" * 40, "b" * 40)[job],
                run_id=str(night),
                job_name=f"job {job}",
                hours_ago=24 * night,
            )
    page = await backend_page(store, kind=ResultKind.NIGHTLY)
    assert [[cell.conclusion for cell in row.cells if cell] for row in page.matrix.rows] == [
        [Conclusion.FAILURE, Conclusion.SUCCESS, Conclusion.SUCCESS],
        [Conclusion.SUCCESS] * 3,
    ]
    tally = page.summary.figures.tally  # type: ignore[union-attr]
    assert (tally.success, tally.failure) == (5, 1)
    assert [(failure.run_id, failure.job_name) for failure in page.failures] == [("1", "job 0")]


# Visibility


@pytest.mark.parametrize("visibility", ["hidden", "name"])
async def test_a_non_public_backends_results_are_shown_to_administrators_only(
    store: StoreRows, visibility: str
) -> None:
    store.allowlist(f"L2:\n  - good/backend: {{visibility: {visibility}}}\n")
    build = dispatched_delivery(store)
    store.job(build, "failure")
    store.sum_up()
    key = JobKey(delivery=build, workflow=".github/workflows/ci.yml", run_id="1", attempt=1, job_name="build")
    views, now = store.views, store.clock.now()
    with pytest.raises(NotFound):
        await views.job(UPSTREAM, GOOD, key)
    with pytest.raises(NotFound):
        await views.badge(UPSTREAM, GOOD, ResultKind.PULLS, Span.WEEK, now)
    metrics = await views.metrics(UPSTREAM, Span.WEEK, now)
    assert (metrics.backends, metrics.total.tally.total) == ((), 0)
    assert (await views.summary(UPSTREAM, Span.WEEK, now)).tally.total == 0
    if visibility == "name":
        page = await backend_page(store)
        assert (page.matrix, page.summary.figures, page.detail) == (Matrix(), None, None)
    admin = views.for_admins()
    page = await admin.backend(BackendQuery(upstream=UPSTREAM, downstream=GOOD, detail=key), now)
    assert page.summary.hidden
    assert not page.summary.name_only
    assert page.detail is not None
    assert [row.delivery for row in page.matrix.rows] == [build]
    assert (await admin.summary(UPSTREAM, Span.WEEK, now)).tally.failure == 1
    assert (await admin.badge(UPSTREAM, GOOD, ResultKind.PULLS, Span.WEEK, now)).tally.failure == 1


async def test_a_backend_moved_back_to_l1_shows_no_pass_rate_of_its_earlier_level(store: StoreRows) -> None:
    store.allowlist("L1: [good/backend]")
    store.job(dispatched_delivery(store), "failure")
    page, now = await backend_page(store), store.clock.now()
    assert (page.summary.figures, page.summary.sent, page.jobs) == (None, 1, ())
    [metrics] = (await store.views.metrics(UPSTREAM, Span.WEEK, now)).backends
    assert (metrics.figures.tally.total, metrics.figures.tally.pass_rate, metrics.figures.sent) == (
        0,
        None,
        1,
    )
    with pytest.raises(NotFound):
        await store.views.badge(UPSTREAM, GOOD, ResultKind.PULLS, Span.WEEK, now)


# Levels


async def test_the_level_history_of_a_backend_follows_the_allowlist_versions(store: StoreRows) -> None:
    allowlists = Allowlists(
        store.database, Downstreams(store.database, CheckRefresher({})), CheckRefresher({}), read_allowlist
    )
    texts = [
        "L1: [good/backend]",
        "L1: [good/backend, other/one]",  # does not change its level
        "L2: [GOOD/backend, other/one]",
        "L9: [good/backend]",  # invalid, not applied
        "L2: [other/one]",
        "L2: [other/one]\nL4:\n  - good/backend: ann\n",
    ]
    began = store.clock.now()
    for text in texts:
        store.clock.advance(60)
        await allowlists.take_reading(UPSTREAM, AllowlistReading("test", text), store.clock.now())
    history = (await backend_page(store)).levels
    assert [change.level and change.level.name for change in history] == ["L4", None, "L2", "L1"]
    minutes = [round((change.at - began).total_seconds() / 60) for change in history]
    assert minutes == [6, 5, 3, 1]
    assert [change.version for change in history] == sorted((c.version for c in history), reverse=True)


# Probes and silent backends


async def read_probes(store: StoreRows, span: Span = Span.FORTNIGHT) -> list[tuple[bool, CountedAs | None]]:
    store.sum_up()
    health = (await store.views.summary(UPSTREAM, span, store.clock.now())).health
    return [
        (probe.stale, probe.last_result.counted if probe.last_result else None) for probe in health.probes
    ]


async def test_fault_42_a_probe_without_any_report_is_stale(store: StoreRows) -> None:
    store.allowlist(PROBING)
    assert await read_probes(store) == [(True, None)]


@pytest.mark.parametrize(
    ("conclusion", "counted"), [("failure", CountedAs.SUCCESS), ("success", CountedAs.FAILURE)]
)
async def test_a_probes_last_result_is_shown_and_becomes_stale_after_a_day(
    store: StoreRows, conclusion: str, counted: CountedAs
) -> None:
    store.allowlist(PROBING)
    store.job(dispatched_delivery(store), conclusion, expected="failure")
    assert await read_probes(store) == [(False, counted)]
    store.clock.advance(24 * 3600)
    assert await read_probes(store) == [(True, counted)]


@pytest.mark.parametrize("span", Span)
async def test_fault_42_a_probe_that_stopped_reporting_is_stale_in_every_range(
    store: StoreRows, span: Span
) -> None:
    store.allowlist(PROBING)
    store.job(dispatched_delivery(store, hours_ago=20), "failure", expected="failure", hours_ago=20)
    for _ in range(3):
        dispatched_delivery(store, hours_ago=5)
    assert await read_probes(store, span) == [(True, CountedAs.SUCCESS)]


async def test_results_of_a_probe_are_excluded_from_totals(store: StoreRows) -> None:
    store.allowlist(PROBING)
    store.job(dispatched_delivery(store), "failure", expected="failure")
    store.sum_up()
    now = store.clock.now()
    summary = await store.views.summary(UPSTREAM, Span.WEEK, now)
    assert (summary.tally.total, (await store.views.metrics(UPSTREAM, Span.WEEK, now)).total.tally.total) == (
        0,
        0,
    )
    assert summary.backends[0].figures is not None
    assert summary.backends[0].figures.tally.pass_rate == 1.0


@pytest.mark.parametrize("span", Span)
async def test_fault_42_a_backend_without_reports_after_a_dispatch_is_silent_in_every_range(
    store: StoreRows, span: Span
) -> None:
    store.allowlist("L2: [good/backend]")
    dispatched_delivery(store, hours_ago=72)
    now = store.clock.now()
    summary = await store.views.summary(UPSTREAM, span, now)
    [backend] = summary.backends
    assert backend.silent
    assert backend.figures is not None
    assert backend.figures.tally.pass_rate is None
    badge = await store.views.badge(UPSTREAM, GOOD, ResultKind.PULLS, span, now)
    assert (badge.stale, badge.state) == (True, None)


@pytest.mark.parametrize(
    "unanswered",
    [
        {"action": "closed"},
        {"test": 1},
        {"superseded_at": 1},
        {"event": "push", "number": None, "head_sha": "0" * 40},
        {"hours_ago": 0.9},
        {"sent_at": None, "state": "waiting"},
    ],
)
async def test_dispatches_that_need_no_report_do_not_make_a_backend_silent(
    store: StoreRows, unanswered: dict[str, Any]
) -> None:
    store.allowlist("L2: [good/backend]")
    for _ in range(4):
        dispatched_delivery(store, **unanswered)
    assert not (await backend_page(store)).summary.silent


async def test_the_job_figures_of_a_day_and_of_a_week_follow_the_same_rule(store: StoreRows) -> None:
    store.allowlist()
    build = dispatched_delivery(store)
    for index, conclusion in enumerate(
        ("success", "failure", "timed_out", "cancelled", "failure", "success")
    ):
        run = {"attempt": 1 + index % 2, "run_id": str(index // 2), "execution_s": 10.0 * index}
        store.job(build, conclusion, **run)
    store.job(build, None, job_name="silent", state="timed_out", execution_s=None)
    day, week = await backend_page(store, span=Span.DAY), await backend_page(store, span=Span.WEEK)
    assert day.jobs == week.jobs
    assert [
        (job.column.job_name, job.tally.success, job.tally.failure, job.tally.other) for job in day.jobs
    ] == [
        ("silent", 0, 1, 0),
        ("build", 1, 1, 1),
    ]
    assert day.summary.figures is not None
    assert day.summary.figures.tally == week.summary.figures.tally  # type: ignore[union-attr]
