"""Ingested results of other relays: the same rows and sums in any order of arrival."""

import asyncio
import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count, permutations
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.dispatch.plan import ReceivedDelivery
from crcr.decide.jobs.ingested import IngestReceipt
from crcr.decide.model import Conclusion, JobState, RepoName
from crcr.decide.statistics.figures import CountedAs, EndedAs, LastResult, Tally
from crcr.decide.statistics.window import ResultKind, Span, Window
from crcr.decide.views.backend import BackendPage, BackendQuery, JobFigures, JobKey
from crcr.decide.views.overview import JobView
from crcr.errors import BadRequest
from crcr.receive.ingest.parse_envelope import parse_envelope
from crcr.record.jobs.ingested import IngestedResults
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.views.backends.figures import FigureScope, count_ingested_running, read_figures, read_last
from crcr.record.views.backends.ingested import read_ingested_job, read_ingested_rows
from crcr.record.views.backends.jobs import read_jobs_by_name
from crcr.record.views.sql_views import SqlViews
from crcr.record.views.visibility import visible_backends
from support.data.events_and_reports import a_pull
from support.running_relay import place_empty_database
from support.stores.databases import CORE, OTHER, UPSTREAMS, OpenDatabase, Stores

NOW = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
BACKEND = RepoName("Org/Backend")
MANY = "".join(f"  - org/backend{number}\n" for number in range(60))
LISTED = (
    f"L2:\n{MANY}  - {BACKEND}\n  - org/probe: {{expect: {{'*xfail*': failure}}}}\nL1:\n  - org/notified\n"
)
QUERY = BackendQuery(upstream=CORE, downstream=BACKEND)

Report = dict[str, Any]


def a_report(status: str = "completed", **more: Any) -> Report:
    """`queue_time` and `execution_time` are set by the relay, `payload` and `delivery_id` in the body, the rest in `workflow`."""
    return {"status": status, **({"conclusion": "success"} if status == "completed" else {}), **more}


def envelope(report: Report) -> bytes:
    report = dict(report)
    metrics = {name: report.pop(name, None) for name in ("queue_time", "execution_time")}
    repository = report.pop("repository", str(BACKEND))
    top = {
        "event_type": "push",
        "delivery_id": report.pop("delivery_id", "d-1"),
        "payload": report.pop("payload", {}),
    }
    workflow = {"name": "CI", "run_id": "77", "run_attempt": 1, "job_name": "build", **report}
    trusted = {"verified_repo": repository, "downstream_repo_level": "L2", "ci_metrics": metrics}
    return json.dumps(
        {"trusted": trusted, "untrusted": {"callback_payload": {**top, "workflow": workflow}}}
    ).encode()


class Hud:
    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.numbers = count()
        self.results = IngestedResults(stores.database, stores.allowlists, UPSTREAMS)

    async def take(self, report: Report, now: datetime = NOW) -> IngestReceipt:
        return await self.results.take(parse_envelope(envelope(report)), "192.0.2.7", now)

    async def rows(self) -> list[dict[str, Any]]:
        return await self.stores.rows("SELECT * FROM ingested ORDER BY delivery, job_name, check_run")

    async def sums(self) -> list[dict[str, Any]]:
        """Every sum that is not zero, rounded: subtracting a value may leave a rounding error in a float."""
        rows = [
            *await self.stores.rows("SELECT * FROM hours ORDER BY upstream, downstream, hour_at"),
            *await self.stores.rows("SELECT * FROM job_days ORDER BY upstream, downstream, day_at, job_name"),
        ]
        rounded = ({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()} for row in rows)
        kept = ({k: v for k, v in row.items() if v} for row in rounded)
        return [row for row in kept if set(row) & {ending.value for ending in EndedAs}]

    async def matrix(
        self, query: BackendQuery = QUERY, since: int = 0
    ) -> list[tuple[dict[str, Any], list[JobView]]]:
        async def unit(tx: Tx) -> list[tuple[dict[str, Any], list[JobView]]]:
            seen = await visible_backends(tx, self.stores.allowlists, CORE)
            return (await read_ingested_rows(tx, query, seen, since)).rows

        return await self.stores.database.read(unit)

    @property
    def views(self) -> SqlViews:
        return SqlViews(self.stores.database, self.stores.allowlists, UPSTREAMS, ingests=True)

    async def page(self, now: datetime = NOW, **filters: Any) -> BackendPage:
        query = BackendQuery(upstream=CORE, downstream=BACKEND, kind=ResultKind.INGESTED, **filters)
        return await self.views.backend(query, now)


@pytest.fixture
async def hud(stores: Stores) -> Hud:
    await stores.prepare({CORE: LISTED, OTHER: LISTED}, NOW)
    return Hud(stores)


BEGUN = "2026-01-01T11:50:00Z"
ENDED = "2026-01-01T12:20:00Z"
START = a_report(
    "in_progress", started_at=BEGUN, queue_time=4.5, url="https://ci.test/start", check_run_id="5"
)
RESULT = a_report(
    completed_at=ENDED,
    execution_time=1800.0,
    conclusion="failure",
    check_run_id="5",
    artifact_url="https://ci.test/a",
    test_results={"passed": 3, "failed": 1},
    failed_tests=[{"name": "t", "message": "boom"}],
)
SECOND: Report = {"run_attempt": 2, "check_run_id": "6"}
AGAIN = a_report("in_progress", started_at="2026-01-01T12:25:00Z", **SECOND)
BETTER = a_report(completed_at="2026-01-01T12:29:00Z", execution_time=200.0, **SECOND)
TWO_ATTEMPTS = (START, RESULT, AGAIN, BETTER)


async def ingest_reports(hud: Hud, reports: Sequence[Report]) -> tuple[Any, Any, Any]:
    """Rows, sums and page of a new backend after these reports, sent a second apart; without the times of arrival."""
    backend = RepoName(f"org/backend{next(hud.numbers)}")
    for index, report in enumerate(reports):
        await hud.take({**report, "repository": str(backend)}, NOW + timedelta(seconds=index))
    own = {"downstream", "name", "seen_at", "updated_at", "delivery_at"}
    rows, sums = (
        [
            {k: v for k, v in row.items() if k not in own}
            for row in all_rows
            if row["downstream"] == backend.key
        ]
        for all_rows in (await hud.rows(), await hud.sums())
    )
    page = await hud.matrix(BackendQuery(upstream=CORE, downstream=backend))
    cells = [
        ({**about, "at": None}, [replace(cell, downstream="") for cell in cells]) for about, cells in page
    ]
    return rows, sums, cells


async def test_every_order_of_two_attempts_and_their_repeats_gives_the_same_rows(hud: Hud) -> None:
    expected = await ingest_reports(hud, TWO_ATTEMPTS)
    orders = list(permutations(TWO_ATTEMPTS))
    repeated = [(*order, order[0], order[1]) for order in orders]
    for order in (*orders, *repeated):
        assert await ingest_reports(hud, order) == expected

    rows, sums, [(_, [cell])] = expected
    assert [(row["check_run"], row["state"], row["conclusion"], row["ended_as"]) for row in rows] == [
        ("5", "completed", "failure", "earlier"),
        ("6", "completed", "success", "success"),
    ]
    hours = [hour for hour in sums if "hour_at" in hour]
    assert [(hour.get("success"), hour.get("failure"), hour.get("earlier")) for hour in hours] == [
        (None, None, 1),
        (1, None, None),
    ]
    assert (cell.attempt, cell.conclusion, cell.ended) == (2, Conclusion.SUCCESS, EndedAs.SUCCESS)


async def test_every_order_of_conflicting_results_gives_the_worse_result(hud: Hud) -> None:
    other = a_report(check_run_id="5", execution_time=3.0, completed_at=ENDED, url="https://ci.test/other")
    expected = await ingest_reports(hud, (START, RESULT, other))
    for order in permutations((START, RESULT, other)):
        rows, sums, page = await ingest_reports(hud, order)
        [row] = rows
        assert (row["conclusion"], row["disputed_conclusion"], row["tests_failed"]) == (
            "failure",
            "success",
            1,
        )
        assert (sums, page[0][1][0].marks) == (expected[1], ("disputed",))


@pytest.mark.parametrize("order", list(permutations((0, 1, 2))))
async def test_a_report_does_not_erase_fields_that_another_report_set(hud: Hud, order: Iterable[int]) -> None:
    bare = a_report(conclusion="failure", check_run_id="5")
    for index in order:
        await hud.take((START, RESULT, bare)[index])
    [row] = await hud.rows()
    assert (row["queue_s"], row["execution_s"], row["url"]) == (4.5, 1800.0, "https://ci.test/start")
    assert (row["started_at"], row["tests_failed"]) == (to_us(NOW - timedelta(minutes=40)), 1)
    assert json.loads(row["failed_tests"]) == [{"name": "t", "file": None, "message": "boom"}]


async def test_a_late_start_report_sets_the_hour_and_the_times_of_the_result(hud: Hud) -> None:
    await hud.take(RESULT)
    [before] = [row for row in await hud.sums() if "hour_at" in row]
    await hud.take(START)
    [after] = [row for row in await hud.sums() if "hour_at" in row]
    assert before["hour_at"] == to_us(NOW.replace(minute=0))
    assert after["hour_at"] == to_us(NOW.replace(hour=11, minute=0))
    assert (before.get("queue_sum_s"), after["queue_sum_s"], after["failure"]) == (None, 4.5, 1)


async def test_a_result_without_a_start_is_shown_and_counted(hud: Hud) -> None:
    assert await hud.take(RESULT) == IngestReceipt(repeat=False, hint=None)
    [(about, [cell])] = await hud.matrix()
    assert (about["delivery"], cell.state, cell.counted) == ("d-1", JobState.COMPLETED, CountedAs.FAILURE)
    assert cell.started_at == NOW


async def test_a_newer_run_supersedes_an_older_one_in_any_order(hud: Hud) -> None:
    older = a_report(run_id="100", conclusion="failure", started_at=BEGUN, completed_at=ENDED)
    newer = a_report(run_id="1000", started_at=BEGUN, completed_at=ENDED)
    one, two = await ingest_reports(hud, (older, newer)), await ingest_reports(hud, (newer, older))
    assert one == two
    assert [row["ended_as"] for row in one[0]] == ["superseded", "success"]
    assert [cell.run_id for cell in one[2][0][1]] == ["1000"]


async def test_runs_with_non_numeric_ids_are_ordered_by_their_attempts(hud: Hud) -> None:
    await hud.take(a_report(run_id="b-uuid", run_attempt=2))
    await hud.take(a_report(run_id="a-uuid", conclusion="failure"))
    assert {row["run_id"]: row["ended_as"] for row in await hud.rows()} == {
        "b-uuid": "success",
        "a-uuid": "earlier",
    }


async def test_matrix_jobs_with_one_name_are_all_shown_and_counted(hud: Hud) -> None:
    for check_run in ("9", "10", "11"):
        await hud.take(
            a_report(check_run_id=check_run, conclusion="failure" if check_run == "10" else "success")
        )
    [(_, cells)] = await hud.matrix()
    assert [(cell.job_name, cell.conclusion) for cell in cells] == [
        ("build", Conclusion.SUCCESS),
        ("build (2)", Conclusion.FAILURE),
        ("build (3)", Conclusion.SUCCESS),
    ]
    [hour] = [row for row in await hud.sums() if "hour_at" in row]
    assert (hour["success"], hour["failure"]) == (2, 1)


async def test_fault_47_a_delivery_with_many_jobs_is_one_row(hud: Hud) -> None:
    payload = {
        "pull_request": {"number": 7, "title": "Fuse", "user": {"login": "ada"}, "head": {"sha": "a" * 40}}
    }
    for index in range(65):
        more: Report = {"payload": {**payload, "action": "opened"}} if index == 40 else {}
        await hud.take(a_report(job_name=f"job {index}", **more), NOW + timedelta(minutes=index))
    await hud.take(a_report(delivery_id="d-2"), NOW + timedelta(minutes=30))
    [newest, (about, cells)] = await hud.matrix()
    assert newest[0]["delivery"] == "d-2"
    assert len(cells) == 65
    assert about == {
        "delivery": "d-1", "at": NOW, "event": "push", "action": "opened", "number": 7, "head_sha": "a" * 40,
        "ref": None, "title": "Fuse", "author": "ada",
    }  # fmt: skip


async def test_deliveries_are_paged_newest_first(hud: Hud) -> None:
    for index in range(5):
        await hud.take(a_report(delivery_id=f"d-{index}"), NOW + timedelta(minutes=index // 2))
    query = BackendQuery(upstream=CORE, downstream=BACKEND, limit=2)
    pages, after = [], None
    for _ in range(3):
        page = await hud.matrix(BackendQuery(upstream=CORE, downstream=BACKEND, limit=2, after=after))
        pages.append([about["delivery"] for about, _ in page])
        after = (to_us(page[:2][-1][0]["at"]), page[:2][-1][0]["delivery"])
    assert pages == [["d-4", "d-3", "d-2"], ["d-2", "d-1", "d-0"], ["d-0"]]
    assert await hud.matrix(query, since=to_us(NOW + timedelta(hours=1))) == []
    with pytest.raises(BadRequest):
        await hud.matrix(BackendQuery(upstream=CORE, downstream=BACKEND, after=("x", 1)))


@pytest.mark.parametrize("name", ["org/stranger", "org/notified"])
async def test_a_backend_without_a_visible_listing_has_rows_and_no_page(hud: Hud, name: str) -> None:
    receipt = await hud.take(a_report(repository=name))
    assert (receipt.repeat, receipt.hint is None) == (False, False)
    assert len(await hud.rows()) == 1
    assert await hud.matrix(BackendQuery(upstream=CORE, downstream=RepoName(name))) == []


async def test_an_expected_failure_of_a_probe_counts_as_success(hud: Hud) -> None:
    await hud.take(a_report(repository="org/probe", job_name="an xfail job", conclusion="failure"))
    assert [(row["expected"], row["ended_as"]) for row in await hud.rows()] == [("failure", "success")]


async def test_implausible_reported_times_are_ignored(hud: Hud) -> None:
    for index, claimed in enumerate(("1970-01-01T00:00:00Z", "2025-12-25T12:29:59Z", "2026-01-01T12:31:01Z")):
        await hud.take(a_report(delivery_id=f"d-{index}", started_at=claimed, completed_at=claimed))
    assert {(row["started_at"], row["completed_at"]) for row in await hud.rows()} == {(None, to_us(NOW))}


async def test_the_running_count_and_the_last_result_are_returned(hud: Hud) -> None:
    await hud.take(a_report("in_progress", started_at=BEGUN))
    await hud.take(a_report("in_progress", job_name="other", run_attempt=1))
    await hud.take(a_report("in_progress", job_name="other", run_attempt=2))
    await hud.take(a_report(job_name="test", conclusion="failure", completed_at="2026-01-01T12:29:00Z"))
    await hud.take(a_report(job_name="lint", completed_at=ENDED))

    async def unit(tx: Tx) -> tuple[int, LastResult | None]:
        window = Window.of(Span.WEEK, NOW)
        running = await count_ingested_running(tx, CORE.key, BACKEND.key, window, NOW)
        return running, await read_last(tx, CORE.key, BACKEND.key, ResultKind.INGESTED)

    running, last = await hud.stores.database.read(unit)
    assert running == 2
    assert last
    assert (last.job_name, last.counted, last.at) == ("test", CountedAs.FAILURE, NOW - timedelta(minutes=1))


SAME: Report = {"check_run_id": "x"}
CONTRADICTING = {
    "two attempts": (a_report(queue_time=1.0, **SAME), a_report(queue_time=2.0, run_attempt=2, **SAME)),
    "three ends": tuple(a_report(conclusion=value, **SAME) for value in ("success", "failure", "timed_out")),
    "three mild ends": tuple(
        a_report(conclusion=value, **SAME) for value in ("cancelled", "skipped", "neutral")
    ),
    "two queues": tuple(a_report("in_progress", queue_time=value, **SAME) for value in (5.0, 6.0, None)),
    "two runs": tuple(a_report(run_id=value, **SAME) for value in ("7", "8")),
    "two addresses": tuple(a_report(url=f"https://ci.test/{value}", **SAME) for value in "ab"),
    "a start, a time, an end": (
        a_report("in_progress", queue_time=5.0, **SAME),
        a_report(execution_time=7.0, **SAME),
        a_report(conclusion="failure", **SAME),
    ),
}


@pytest.mark.parametrize("reports", CONTRADICTING.values(), ids=CONTRADICTING)
async def test_every_order_of_contradicting_reports_gives_the_same_rows(
    hud: Hud, reports: tuple[Report, ...]
) -> None:
    ended = [{**report, "completed_at": ENDED} if "conclusion" in report else report for report in reports]
    expected = await ingest_reports(hud, ended)
    for order in permutations(ended):
        assert await ingest_reports(hud, order) == expected


async def count_running(hud: Hud, now: datetime, upstream: RepoName = CORE) -> int:
    async def unit(tx: Tx) -> int:
        return await count_ingested_running(tx, upstream.key, BACKEND.key, Window.of(Span.WEEK, now), now)

    return await hud.stores.database.read(unit)


async def test_a_superseded_run_is_not_counted_as_running(hud: Hud) -> None:
    await hud.take(a_report("in_progress", run_id="9"))
    assert await count_running(hud, NOW) == 1
    await hud.take(a_report(run_id="10"))
    assert await count_running(hud, NOW) == 0
    await hud.take(a_report("in_progress", run_id="11"))
    assert await count_running(hud, NOW) == 1


async def test_a_job_without_a_report_for_a_day_is_not_counted_as_running(hud: Hud) -> None:
    await hud.take(a_report("in_progress"))
    assert await count_running(hud, NOW + timedelta(hours=23)) == 1
    assert await count_running(hud, NOW + timedelta(hours=25)) == 0


async def test_runs_of_one_upstream_do_not_supersede_runs_of_another(hud: Hud) -> None:
    other = {"repository": {"full_name": str(OTHER)}}
    await hud.take(a_report(conclusion="failure", run_attempt=1))
    await hud.take(a_report(run_attempt=2, payload=other))
    await hud.take(a_report("in_progress", job_name="test", run_id="7"))
    await hud.take(a_report("in_progress", job_name="test", run_id="8", payload=other))
    ended = {(row["upstream"], row["ended_as"]) for row in await hud.rows() if row["ended_as"]}
    assert ended == {(CORE.key, "failure"), (OTHER.key, "success")}
    assert [await count_running(hud, NOW, upstream) for upstream in (CORE, OTHER)] == [1, 1]


@pytest.mark.parametrize("number", [1, 25])
async def test_percentiles_stay_between_the_shortest_and_the_longest_duration(hud: Hud, number: int) -> None:
    for index in range(number):
        fields: dict[str, Any] = {"started_at": BEGUN, "queue_time": 3.0, "execution_time": 7.0}
        await hud.take(a_report(delivery_id=f"d-{index}", completed_at=ENDED, **fields))
    figures = (await hud.page()).summary.figures
    assert figures is not None
    for times, seconds in ((figures.queue, 3.0), (figures.execution, 7.0)):
        assert (times.known, times.p50_s, times.p95_s) == (number, seconds, seconds)


async def test_backend_figures_and_job_figures_of_the_last_day_agree(hud: Hud) -> None:
    for hours, conclusion in ((1, "failure"), (20, "failure"), (23, "success"), (26, "success")):
        at = (NOW - timedelta(hours=hours)).isoformat()
        fields: Report = {"started_at": at, "completed_at": at, "execution_time": 60.0}
        await hud.take(a_report(delivery_id=f"d-{hours}", conclusion=conclusion, **fields))
        await hud.take(a_report(delivery_id=f"d-{hours}", conclusion=conclusion, job_name="test", **fields))

    async def unit(tx: Tx) -> tuple[Tally, list[JobFigures]]:
        window = Window.of(Span.DAY, NOW)
        figures = await read_figures(tx, FigureScope(CORE.key, BACKEND.key, ResultKind.INGESTED, window))
        jobs, _ = await read_jobs_by_name(tx, CORE, BACKEND, ResultKind.INGESTED, window)
        return figures.tally, list(jobs)

    tally, jobs = await hud.stores.database.read(unit)
    assert (tally.success, tally.failure) == (2, 4)
    assert [(job.column.job_name, job.tally.success, job.tally.failure) for job in jobs] == [
        ("build", 1, 2),
        ("test", 1, 2),
    ]
    assert {job.execution_s for job in jobs} == {60.0}


async def test_deliveries_are_found_by_author_text_and_result(hud: Hud) -> None:
    for number in range(1, 8):
        pull = {
            "number": number,
            "title": f"Title {number}",
            "user": {"login": "Ada" if number % 2 else "bob"},
        }
        conclusion = "failure" if number > 4 else "success"
        await hud.take(
            a_report(delivery_id=f"d-{number}", conclusion=conclusion, payload={"pull_request": pull})
        )

    async def find_deliveries(**filters: Any) -> list[str]:
        query = BackendQuery(upstream=CORE, downstream=BACKEND, limit=1, **filters)
        return [about["delivery"] for about, _ in await hud.matrix(query)]

    assert await find_deliveries(author="ada") == ["d-7", "d-5"]
    assert await find_deliveries(text="TITLE 2") == ["d-2"]
    assert await find_deliveries(author="bob", result=CountedAs.SUCCESS) == ["d-4", "d-2"]
    assert await find_deliveries(text="nowhere") == []


async def test_a_filter_that_searches_more_than_one_page_misses_nothing(hud: Hud) -> None:
    """At most 500 deliveries are searched at a time."""
    matching = {0, 3, 99, 100, 601}

    async def unit(tx: Tx) -> None:
        for index in range(602):
            title = "Wanted" if index in matching else "other"
            at = to_us(NOW - timedelta(hours=1)) + index // 2
            await tx.run(_INSERT_RESULT, delivery=f"d-{index:03d}", title=title, at=at, none=b"")

    await hud.stores.database.write(unit)
    deliveries, pages, after = [], 0, None
    while pages == 0 or after is not None:
        matrix = (await hud.page(text="wanted", limit=2, after=after)).matrix
        deliveries += [row.delivery for row in matrix.rows]
        pages, after = pages + 1, matrix.next
    assert deliveries == [f"d-{index:03d}" for index in sorted(matching, reverse=True)]
    assert (await hud.page(text="nowhere", limit=2)).matrix.searched == 500


_INSERT_RESULT = Statement(
    text(
        "INSERT INTO ingested (delivery, downstream, workflow_name, job_name, check_run, upstream, name, origin, rank,"  # noqa: S608
        " state, event, title, run_id, attempt, seen_at, delivery_at, updated_at, untrusted)"
        f" VALUES (:delivery, '{BACKEND.key}', 'CI', 'build', '1', '{CORE.key}', '{BACKEND}', '', 1, 'in_progress',"
        " 'push', :title, '1', 1, :at, :at, :at, :none)"
    )
)


async def test_failures_are_listed_with_their_first_tests(hud: Hud) -> None:
    tests = [{"name": f"t{number}", "message": "boom"} for number in range(7)]
    for index, conclusion in enumerate(("success", "failure", "failure")):
        fields: Report = {"failed_tests": tests if conclusion == "failure" else []}
        report = a_report(delivery_id=f"d-{index}", conclusion=conclusion, job_name=f"job {index}", **fields)
        await hud.take(report, NOW + timedelta(seconds=index))
    failures = (await hud.page()).failures
    assert [failure.job_name for failure in failures] == ["job 2", "job 1"]
    assert [test.name for test in failures[0].failed_tests] == ["t0", "t1", "t2", "t3", "t4"]
    assert failures[0].failed_tests_more == 2


async def test_a_badge_shows_the_newest_delivery_that_has_results(hud: Hud) -> None:
    async def state() -> CountedAs | None:
        badge = await hud.views.badge(CORE, BACKEND, ResultKind.INGESTED, Span.WEEK, NOW + timedelta(hours=1))
        return badge.state

    assert await state() is None
    for minute, (delivery, conclusion, expected) in enumerate(
        (
            ("d-1", "failure", CountedAs.FAILURE),
            ("d-2", "skipped", CountedAs.OTHER),
            ("d-3", "success", CountedAs.SUCCESS),
            ("d-1", "timed_out", CountedAs.SUCCESS),  # a late report for the oldest delivery
            ("d-3", "failure", CountedAs.FAILURE),
        )
    ):
        report = a_report(delivery_id=delivery, conclusion=conclusion, job_name=f"job {minute}")
        await hud.take(report, NOW + timedelta(minutes=minute))
        assert await state() is expected
    await hud.take(a_report("in_progress", delivery_id="d-4"), NOW + timedelta(minutes=30))
    assert await state() is CountedAs.FAILURE


async def test_job_details_contain_the_attempts_and_the_failed_tests(hud: Hud) -> None:
    for report in TWO_ATTEMPTS:
        await hud.take({**report, "environment": {"device": "npu"}})
    key = JobKey(delivery="d-1", workflow="CI", run_id="77", attempt=1, job_name="build")

    async def unit(tx: Tx) -> tuple[Any, ...]:
        seen = await visible_backends(tx, hud.stores.allowlists, CORE)
        other = JobKey(delivery="d-1", workflow="CI", run_id="78", attempt=1, job_name="build")
        return (
            await read_ingested_job(tx, CORE, BACKEND, key, seen),
            await read_ingested_job(tx, CORE, BACKEND, other, seen),
        )

    detail, none = await hud.stores.database.read(unit)
    assert none is None
    assert ([item.attempt for item in detail.attempts], detail.job.attempt) == ([2, 1], 1)
    assert [item.name for item in detail.job.failed_tests] == ["t"]
    assert detail.environment == '{"device":"npu"}'


async def test_concurrent_reports_in_two_processes_are_neither_lost_nor_counted_twice(
    open_database: OpenDatabase,
) -> None:
    one, two = Stores.over(open_database()), Stores.over(open_database())
    await one.prepare({CORE: LISTED}, NOW)
    huds = Hud(one), Hud(two)
    await asyncio.gather(
        *(
            hud.take({**report, "job_name": f"job {job}"})
            for job in range(8)
            for report in TWO_ATTEMPTS
            for hud in huds
        )
    )
    rows = await huds[0].rows()
    assert len(rows) == 16
    hours = [hud for hud in await huds[1].sums() if "hour_at" in hud]
    assert [(hud.get("earlier"), hud.get("success")) for hud in hours] == [(8, None), (None, 8)]


async def test_a_page_of_deliveries_is_read_from_a_covering_index(tmp_path: Path) -> None:
    """SQLite's plan; tests/contract/postgres/test_postgres_plans.py checks PostgreSQL's."""
    place_empty_database(tmp_path / "crcr.db")
    plan = (
        "EXPLAIN QUERY PLAN SELECT DISTINCT delivery_at, delivery FROM ingested WHERE upstream = 'a'"
        " AND downstream = 'b' AND delivery_at >= 0 ORDER BY delivery_at DESC, delivery DESC LIMIT 51"
    )
    with closing(sqlite3.connect(tmp_path / "crcr.db")) as connection:
        [step] = [row[3] for row in connection.execute(plan)]
    assert "COVERING INDEX ix_ingested_backend" in step


async def test_the_default_branch_is_taken_from_the_newest_webhook_that_names_it(hud: Hud) -> None:
    async def branch() -> str | None:
        rows = await hud.stores.rows("SELECT upstream, default_branch FROM upstreams")
        expected: dict[str, str | None] = {row["upstream"]: row["default_branch"] for row in rows}
        return expected[CORE.key]

    for index, (sent, expected) in enumerate(
        (("main", "main"), (None, "main"), ("trunk", "trunk"), ("trunk", "trunk"))
    ):
        event = a_pull(upstream=CORE, number=index + 1, updated_at=NOW, default_branch=sent)
        await hud.stores.inbox.take(ReceivedDelivery(f"g{index}", "pull_request", "test", b"", 0, NOW), event)
        assert await branch() == expected
