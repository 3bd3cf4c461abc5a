"""Continuously failing jobs: which failure streaks are listed, on both databases."""

import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.views.failing import FailingJob, FailingKind, FailingQuery, FailingSort
from crcr.errors import BadRequest
from crcr.record.store.sqlite.database import SqliteTx, connect
from crcr.record.store.times import from_us
from crcr.record.views.failures.failing_jobs import find_red_jobs
from support.data.base_history import MESSAGE, BaseHistory, fingerprint_of, sha_of
from support.data.store_rows import OTHER, UPSTREAM, StoreRows, open_store_rows

LISTED = """
L1:
  - listen/only
L2:
  - Good/Backend: {hardware: "NPU 910B", oncalls: [ada, grace]}
  - flaky/backend
  - secret/one: {visibility: hidden}
  - shy/one: {visibility: name}
"""
PUSHES = FailingQuery(upstream=UPSTREAM)
NIGHTS = FailingQuery(upstream=UPSTREAM, kind=FailingKind.NIGHTLY)
DAY = 24.0


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path, on_postgresql=request.param == "postgresql") as rows:
        rows.allowlist(LISTED)
        yield rows


@pytest.fixture
def base(store: StoreRows) -> BaseHistory:
    return BaseHistory(store)


async def read_failing(store: StoreRows, query: FailingQuery = PUSHES) -> tuple[FailingJob, ...]:
    return (await store.views.failing(query, store.clock.now())).items


ExpectedRow = tuple[int, int, int | None] | None
"""Failures in a row, positions of the first bad and the last good commit; None when the job is not listed."""
History = Callable[[BaseHistory], object]


def _results(*results: str) -> History:
    """Results on the commits 1, 2, 3 … that arrive in this order."""

    def add(base: BaseHistory) -> None:
        for position, result in enumerate(results, start=1):
            if result != "-":
                base.push(position, result, hours_ago=len(results) - position + 1)

    return add


def _combined(*histories: History) -> History:
    def add(base: BaseHistory) -> None:
        for history in histories:
            history(base)

    return add


PASS, FAIL = "success", "failure"
HISTORIES: dict[str, tuple[History, ExpectedRow]] = {
    "one failure": (_results(FAIL), (1, 1, None)),
    "failures after a pass": (_results(PASS, FAIL, FAIL), (2, 2, 1)),
    "a pass between": (_results(FAIL, FAIL, PASS, FAIL), (1, 4, 3)),
    "a pass at the end": (_results(FAIL, FAIL, PASS), None),
    "only passes": (_results(PASS, PASS), None),
    "nothing on a commit between": (_results(PASS, FAIL, "-", FAIL), (2, 2, 1)),
    "a pass of an earlier commit arrives last": (
        _combined(_results("-", FAIL, FAIL), lambda base: base.push(1, PASS, hours_ago=0.1)),
        (2, 2, 1),
    ),
    "a failure of an earlier commit arrives after the pass": (
        _combined(_results("-", PASS), lambda base: base.push(1, FAIL, hours_ago=0.1)),
        None,
    ),
    "a failure of a commit before the first bad one arrives last": (
        _combined(_results(PASS, "-", FAIL), lambda base: base.push(2, FAIL, hours_ago=0.1)),
        (2, 2, 1),
    ),
    "several runs of one commit count once": (
        _combined(_results(PASS, FAIL), lambda base: base.push(2, FAIL, hours_ago=0.5)),
        (1, 2, 1),
    ),
    "another run of the same commit passed": (
        _combined(_results(FAIL, FAIL), lambda base: base.push(2, PASS, hours_ago=0.5)),
        None,
    ),
    "a re-run passed": (
        _combined(
            lambda base: base.push(
                1, FAIL, run_id="7", ended_as="earlier", passed_at=base.store.ago(hours=0.5)
            ),
            lambda base: base.push(1, PASS, run_id="7", attempt=2, hours_ago=0.5),
        ),
        None,
    ),
    "a re-run failed too": (
        _combined(
            lambda base: base.push(1, FAIL, run_id="7", ended_as="earlier"),
            lambda base: base.push(1, FAIL, run_id="7", attempt=2, hours_ago=0.5),
        ),
        (1, 1, None),
    ),
    "a re-run passed, and a later commit fails": (
        _combined(
            lambda base: base.push(
                1, FAIL, run_id="7", ended_as="earlier", passed_at=base.store.ago(hours=2), hours_ago=3
            ),
            lambda base: base.push(1, PASS, run_id="7", attempt=2, hours_ago=2),
            lambda base: base.push(2, FAIL, hours_ago=1),
        ),
        (1, 2, 1),
    ),
    "a superseded failure": (
        _combined(_results(PASS), lambda base: base.push(2, FAIL, ended_as="superseded")),
        None,
    ),
    "a superseded failure within the row": (
        _combined(
            _results(PASS, FAIL, "-", FAIL),
            lambda base: base.push(3, FAIL, ended_as="superseded", hours_ago=0.5),
        ),
        (2, 2, 1),
    ),
    "a superseded pass": (
        _combined(
            _results(PASS, FAIL), lambda base: base.push(3, PASS, ended_as="superseded", hours_ago=0.5)
        ),
        (1, 2, 1),
    ),
    "a sick fleet does not make a row": (
        _combined(_results(PASS), lambda base: base.push(2, FAIL, verdict="infrastructure", hours_ago=0.5)),
        None,
    ),
    "a sick fleet neither breaks nor extends a row": (
        _combined(
            _results(PASS, FAIL, "-", FAIL),
            lambda base: base.push(3, FAIL, verdict="infrastructure", hours_ago=1.5),
            lambda base: base.push(5, FAIL, verdict="infrastructure", hours_ago=0.5),
        ),
        (2, 2, 1),
    ),
    "time-outs are failures": (_results(PASS, "timed_out", FAIL), (2, 2, 1)),
    "jobs that never report their end are failures": (_results(PASS, FAIL, "silent"), (2, 2, 1)),
    "a cancelled job has no result": (_results(PASS, FAIL, "cancelled"), (1, 2, 1)),
    "another branch": (
        _combined(_results(PASS), lambda base: base.push(9, FAIL, ref="release", hours_ago=0.5)),
        None,
    ),
    "a pass on another branch": (
        _combined(_results(PASS, FAIL), lambda base: base.push(9, PASS, ref="release", hours_ago=0.5)),
        (1, 2, 1),
    ),
    "a merge group that was pushed": (
        _combined(_results(PASS), lambda base: base.push(2, FAIL, event="merge_group", hours_ago=0.5)),
        (1, 2, 1),
    ),
    "a merge group and the push of the same commit count once": (
        _combined(_results(PASS, FAIL), lambda base: base.push(2, FAIL, event="merge_group", hours_ago=1.5)),
        (1, 2, 1),
    ),
    "a merge group that was not pushed": (
        _combined(
            _results(PASS),
            lambda base: base.push(2, FAIL, event="merge_group", on_base=False, hours_ago=0.5),
        ),
        None,
    ),
    "a passing merge group that was not pushed": (
        _combined(
            _results(PASS, FAIL),
            lambda base: base.push(3, PASS, event="merge_group", on_base=False, hours_ago=0.5),
        ),
        (1, 2, 1),
    ),
    "nights do not count": (
        _combined(_results(PASS), lambda base: base.night(FAIL, hours_ago=0.5)),
        None,
    ),
    "passing nights do not count": (
        _combined(_results(PASS, FAIL), lambda base: base.night(PASS, hours_ago=0.5)),
        (1, 2, 1),
    ),
    "pull requests do not count": (
        _combined(
            _results(PASS, FAIL),
            lambda base: base.push(3, PASS, event="pull_request", kind="pull_request", hours_ago=0.5),
        ),
        (1, 2, 1),
    ),
    "the last failure is long ago": (lambda base: base.push(1, FAIL, hours_ago=31 * DAY), None),
    "the first failure is long ago": (
        _combined(
            lambda base: base.push(1, FAIL, hours_ago=60 * DAY),
            lambda base: base.push(2, FAIL, hours_ago=DAY),
        ),
        (2, 1, None),
    ),
}


@pytest.mark.parametrize("history", HISTORIES)
async def test_a_failure_streak_starts_after_the_last_pass_in_commit_order(
    store: StoreRows, base: BaseHistory, history: str
) -> None:
    add, expected = HISTORIES[history]
    add(base)
    rows = [(job.failures_in_a_row, job.first_bad, job.last_good) for job in await read_failing(store)]
    if expected is None:
        assert rows == []
    else:
        number, first, good = expected
        assert rows == [(number, sha_of(first), sha_of(good) if good else None)]


async def test_failure_streaks_of_random_results_do_not_depend_on_the_order_of_arrival(
    store: StoreRows, base: BaseHistory
) -> None:
    chance, expected = random.Random(23), {}
    for number in range(40):
        job = f"job {number}"
        passed = {position for position in range(1, 9) if chance.random() < chance.choice((0.1, 0.4))}
        failed = {position for position in range(1, 9) if chance.random() < 0.4} - passed
        results = [*((position, PASS) for position in passed), *((position, FAIL) for position in failed)]
        chance.shuffle(results)
        for hours_ago, (position, ended) in enumerate(results, start=1):
            base.push(position, ended, job_name=job, hours_ago=hours_ago)
        good = max(passed, default=None)
        row = sorted(position for position in failed if position > (good or 0))
        if row:
            expected[job] = (len(row), sha_of(row[0]), sha_of(row[-1]), sha_of(good) if good else None)
    jobs = await read_failing(store, replace(PUSHES, limit=100))
    assert 10 < len(expected) < 35
    assert {
        job.job: (job.failures_in_a_row, job.first_bad, job.last_bad, job.last_good) for job in jobs
    } == expected


async def test_a_failing_job_has_the_facts_of_its_failures_and_of_the_allowlist(
    store: StoreRows, base: BaseHistory
) -> None:
    base.push(1, PASS, hours_ago=5)
    base.push(2, FAIL, hours_ago=4, message="RuntimeError: first")
    base.push(3, FAIL, hours_ago=3)
    base.know()
    (job,) = await read_failing(store)
    assert (str(job.backend), job.workflow, job.job) == ("Good/Backend", ".github/workflows/ci.yml", "build")
    assert (job.since, job.last_failed_at) == (from_us(store.ago(hours=4)), from_us(store.ago(hours=3)))
    assert (job.fingerprint, job.sample, job.last_bad) == (fingerprint_of(), MESSAGE, sha_of(3))
    assert job.oncalls == ("ada", "grace")
    assert job.known is not None
    assert (job.known.url, job.known.by) == ("https://github.com/good/backend/issues/12", "grace")


async def test_since_is_the_time_of_the_earliest_failure_of_the_streak(
    store: StoreRows, base: BaseHistory
) -> None:
    base.push(3, FAIL, hours_ago=4)
    base.push(2, FAIL, hours_ago=1)
    (job,) = await read_failing(store)
    assert (job.since, job.first_bad) == (from_us(store.ago(hours=4)), sha_of(2))


async def test_nightlies_are_ordered_by_time_and_each_run_counts(store: StoreRows, base: BaseHistory) -> None:
    base.night(PASS, hours_ago=4 * DAY, head_sha="a" * 40)
    base.night(FAIL, hours_ago=3 * DAY, head_sha="b" * 40)
    base.night(FAIL, hours_ago=2 * DAY, head_sha="b" * 40)
    base.night(FAIL, hours_ago=1 * DAY, head_sha="c" * 40, event="periodic")
    base.night(FAIL, hours_ago=DAY / 2, verdict="infrastructure")
    base.push(1, PASS, hours_ago=1)
    (job,) = await read_failing(store, NIGHTS)
    assert (job.failures_in_a_row, job.first_bad, job.last_good) == (3, "b" * 40, "a" * 40)
    assert (job.last_bad, job.since) == ("c" * 40, from_us(store.ago(days=3)))
    base.night(PASS, hours_ago=0.2)
    assert await read_failing(store, NIGHTS) == ()


async def test_failing_jobs_of_another_branch_are_listed_on_request(
    store: StoreRows, base: BaseHistory
) -> None:
    base.push(1, PASS)
    base.push(8, PASS, ref="release", hours_ago=2)
    base.push(9, FAIL, ref="release", hours_ago=1)
    page = await store.views.failing(PUSHES, store.clock.now())
    assert (page.items, page.branch) == ((), "main")
    (job,) = await read_failing(store, replace(PUSHES, branch="release"))
    assert (job.first_bad, job.last_good) == (sha_of(9, "release"), sha_of(8, "release"))


async def test_a_query_for_a_branch_without_results_does_not_read_passes_of_other_branches(
    tmp_path: Path,
) -> None:
    """Any client can name a branch; passes of a job that never failed there are not read."""
    async with open_store_rows(tmp_path, on_postgresql=False) as store:
        base = BaseHistory(store)
        for position in range(20):
            base.push(position, FAIL, job_name=f"job {position}", hours_ago=500)
        with closing(connect(tmp_path / "crcr.db", read_only=True)) as connection:
            steps: list[int] = []
            for _ in range(2):
                steps.append(await _count_steps(connection, store))
                for position in range(20, 220):
                    base.push(position, PASS, job_name=f"job {position % 20}", hours_ago=400 - position)
    assert steps[1] < 1.5 * steps[0]


async def _count_steps(connection: sqlite3.Connection, store: StoreRows) -> int:
    """The steps of SQLite's virtual machine, in hundreds."""
    hundreds = count()
    connection.set_progress_handler(lambda: next(hundreds) and 0, 100)
    assert await find_red_jobs(SqliteTx(connection), UPSTREAM, "nobody's", store.clock.now()) == []
    return next(hundreds)


async def test_hidden_removed_and_l1_backends_are_not_listed(store: StoreRows, base: BaseHistory) -> None:
    for name in ("good/backend", "secret/one", "shy/one", "listen/only", "gone/away"):
        base.push(1, FAIL, downstream=name)
    assert [str(job.backend) for job in await read_failing(store)] == ["Good/Backend"]
    for_admins = await store.views.for_admins().failing(PUSHES, store.clock.now())
    assert [str(job.backend) for job in for_admins.items] == ["Good/Backend", "secret/one", "shy/one"]
    assert await read_failing(store, replace(PUSHES, upstream=OTHER)) == ()


async def test_an_upstream_with_an_unknown_default_branch_has_an_empty_list(store: StoreRows) -> None:
    page = await store.views.failing(PUSHES, store.clock.now())
    assert (page.items, page.branch) == ((), None)


async def test_filters_narrow_the_list(store: StoreRows, base: BaseHistory) -> None:
    base.push(1, FAIL, job_name="build")
    base.push(1, FAIL, job_name="Test (3.12)", message="ValueError: odd shape")
    base.push(1, FAIL, downstream="flaky/backend", job_name="lint", workflow="lint.yml")
    base.know("ValueError: odd shape")
    for change, expected in (
        ({"backend": "GOOD"}, ["Test (3.12)", "build"]),
        ({"backend": "nobody"}, []),
        ({"text": "test"}, ["Test (3.12)"]),
        ({"text": "ODD SHAPE"}, ["Test (3.12)"]),
        ({"text": "lint.yml"}, ["lint"]),
        ({"text": "ada"}, ["Test (3.12)", "build"]),
        ({"known": True}, ["Test (3.12)"]),
        ({"known": False}, ["build", "lint"]),
    ):
        query = replace(PUSHES, sort=FailingSort.JOB, **change)
        assert [job.job for job in await read_failing(store, query)] == expected, change


async def test_an_ended_or_expired_issue_link_is_not_shown(store: StoreRows, base: BaseHistory) -> None:
    base.push(1, FAIL, job_name="ended", message="ValueError: one")
    base.push(1, FAIL, job_name="expired", message="ValueError: two words")
    base.know("ValueError: one", ended_at=store.ago(hours=1))
    base.know("ValueError: two words", until_at=store.ago(hours=1))
    assert [job.known for job in await read_failing(store)] == [None, None]


ORDERS: dict[FailingSort, Callable[[FailingJob], Any]] = {
    FailingSort.SINCE: lambda job: job.since,
    FailingSort.FAILURES: lambda job: job.failures_in_a_row,
    FailingSort.BACKEND: lambda job: job.backend.key,
    FailingSort.JOB: lambda job: job.job,
    FailingSort.LAST: lambda job: job.last_failed_at,
}


async def test_every_sort_order_is_paged_without_gaps_or_duplicates(
    store: StoreRows, base: BaseHistory
) -> None:
    for number in range(6):
        name = ("good/backend", "flaky/backend")[number % 2]
        for position in range(1, 2 + number % 3):
            base.push(
                position,
                FAIL,
                downstream=name,
                job_name=f"job {number % 4}",
                workflow=f"{number}.yml",
                hours_ago=9 - position,
            )
    for sort, down in product(FailingSort, (False, True)):
        query = replace(PUSHES, sort=sort, down=down)
        all_jobs = await read_failing(store, query)
        paged_jobs = await read_all_pages(store, replace(query, limit=2))
        assert (len(all_jobs), tuple(paged_jobs)) == (6, all_jobs)
        keys = [ORDERS[sort](job) for job in all_jobs]
        assert keys == sorted(keys, reverse=down)


async def read_all_pages(store: StoreRows, query: FailingQuery) -> list[FailingJob]:
    jobs: list[FailingJob] = []
    while True:
        page = await store.views.failing(query, store.clock.now())
        jobs += page.items
        if page.next is None:
            return jobs
        query = replace(query, after=page.next)


@pytest.mark.parametrize("after", [(), (1,), ("a", "b", "c", "d"), (1, "b", "c", 4), (1, "b", "c", "d", "e")])
async def test_a_cursor_of_another_list_is_refused(store: StoreRows, after: tuple[str | int, ...]) -> None:
    with pytest.raises(BadRequest):
        await read_failing(store, replace(PUSHES, after=after))
