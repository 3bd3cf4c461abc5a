"""A job's last results and short address, and the causes and days of a backend's matrix, on every database."""

from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.jobs.short_address import short_token
from crcr.decide.model import RepoName
from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.backend import JobDetail, JobKey
from crcr.errors import NotFound
from support.data.backend_rows import GOOD, NOW, backend_page, dispatched_delivery, dispatched_push
from support.data.store_rows import UPSTREAM, StoreRows, open_store_rows

CI = ".github/workflows/ci.yml"
LISTED = "L2:\n  - Good/Backend: [ada]\n  - other/backend\n  - secret/one: {visibility: hidden}\n"
MESSAGE, OTHER_MESSAGE = (
    "NotImplementedError: aten::foo has no kernel",
    "RuntimeError: device ran out of memory",
)


@pytest.fixture(params=[False, True], ids=["sqlite", "postgresql"])
async def store(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path, now=NOW, on_postgresql=request.param) as store:
        store.allowlist(LISTED)
        yield store


async def read_job(store: StoreRows, delivery: str, **key: Any) -> JobDetail:
    key_parts = {"workflow": CI, "run_id": "1", "attempt": 1, "job_name": "build", **key}
    return await store.views.job(UPSTREAM, GOOD, JobKey(delivery=delivery, **key_parts))


def letters(results: tuple[Any, ...]) -> str:
    return "".join("X" if result.conclusion == "failure" else "O" for result in results)


async def test_a_pull_request_job_shows_the_last_ten_results_of_its_newest_events(
    store: StoreRows,
) -> None:
    for index in range(14):
        delivery = dispatched_delivery(store, hours_ago=40 - index)
        store.job(delivery, "failure" if index % 5 == 0 else "success", hours_ago=40 - index)
        store.job(delivery, "failure", hours_ago=40 - index, job_name="lint")
        store.job(delivery, "failure", hours_ago=40 - index, workflow="other.yml")
        store.job(delivery, "failure", hours_ago=40 - index, downstream="other/backend")
    store.job(delivery, "failure", attempt=2, hours_ago=20)
    for more in ({"action": "closed"}, {"state": "held"}, {"test": 1}):
        store.job(dispatched_delivery(store, hours_ago=1, **more), "failure", run_id="9")
    shown = await read_job(store, delivery)
    assert letters(shown.recent) == "XOOXOOOOXO"
    assert [result.attempt for result in shown.recent] == [2, *[1] * 9]
    assert shown.oncalls == ("ada",)
    assert (shown.on_base, shown.base_ref) == ((), None)


async def test_results_on_the_base_exclude_other_branches_and_jobs(store: StoreRows) -> None:
    store.pull(7, base_ref="main")
    pull = dispatched_delivery(store, number=7)
    store.job(pull, "failure")
    for position, conclusion in enumerate(("success", "failure", "success"), start=1):
        sha = f"{position:040x}"
        store.base_commit(sha, position)
        pushed = dispatched_push(store, hours_ago=9 - position, head_sha=sha)
        facts = {
            "event": "push",
            "number": None,
            "head_sha": sha,
            "hours_ago": 9 - position,
            "ended_as": conclusion,
        }
        store.job(pushed, conclusion, **facts)
        store.job(pushed, "failure", **{**facts, "job_name": "lint"})
    facts = {"event": "push", "number": None, "ended_as": "failure"}
    store.job(dispatched_push(store), "failure", head_sha="e" * 40, **facts)
    night = {**facts, "event": "nightly", "workflow": "night.yml", "head_sha": "a" * 40, "hours_ago": 7.5}
    store.job("a" * 40, "failure", **night)
    shown = await read_job(store, pull)
    assert (letters(shown.on_base), shown.base_ref) == ("OXXO", "main")
    assert [result.event for result in shown.on_base] == ["push", "push", "nightly", "push"]
    of_push = await read_job(store, pushed)
    assert letters(of_push.recent) == "XOXO", "of the same kind: pushes of every branch"
    of_night = await read_job(store, "a" * 40, workflow="night.yml")
    assert letters(of_night.recent) == "X"


def short_of(delivery: str, backend: str = "good/backend", **key: Any) -> str:
    key_parts = {"workflow": CI, "run_id": "1", "attempt": 1, "job_name": "build", **key}
    parts = (
        delivery,
        key_parts["workflow"],
        key_parts["run_id"],
        key_parts["attempt"],
        key_parts["job_name"],
    )
    token = short_token(UPSTREAM.key, backend, parts)
    assert token is not None
    return token


async def test_a_short_address_finds_its_job_but_no_hidden_one(store: StoreRows) -> None:
    deliveries = [f"72d3162e-cc78-11e3-81ab-{number:012x}" for number in range(3)]
    for delivery in deliveries:
        for backend in ("good/backend", "other/backend", "secret/one"):
            for attempt in (1, 2):
                store.job(delivery, downstream=backend, attempt=attempt)
    for delivery in deliveries:
        for backend, attempt in (("good/backend", 1), ("other/backend", 2)):
            token = short_of(delivery, backend, attempt=attempt)
            detail = await store.views.job_by_short_token(UPSTREAM, token)
            assert (detail.backend.key, detail.job.delivery, detail.job.attempt) == (
                backend,
                delivery,
                attempt,
            )
    refusals = []
    for token in (short_of(deliveries[0], "secret/one"), short_of("72d3162e"), "x", "%" * 17, "a" * 17):
        with pytest.raises(NotFound) as error:
            await store.views.job_by_short_token(UPSTREAM, token)
        refusals.append((str(error.value), error.value.hint))
    assert len(set(refusals)) == 1, "a hidden job is as unknown as any other"
    secret = short_of(deliveries[0], "secret/one")
    assert (await store.views.for_admins().job_by_short_token(UPSTREAM, secret)).backend == RepoName(
        "secret/one"
    )


async def test_failures_are_grouped_by_cause_and_show_their_first_line(store: StoreRows) -> None:
    first, second, old = (dispatched_delivery(store, hours_ago=hours) for hours in (2, 3, 4))
    replaced = dispatched_delivery(store, hours_ago=5, superseded_at=store.ago(hours=1))
    for delivery, name, message in (
        (first, "build", MESSAGE),
        (first, "lint", None),
        (second, "build", OTHER_MESSAGE),
        (second, "test", MESSAGE),
        (old, "lint", None),
        (replaced, "build", MESSAGE),
    ):
        store.job(delivery, "failure", job_name=name)
        if message:
            store.failure(delivery, "good/backend", message, job_name=name)
    store.failure(first, "other/backend", "not of this backend", job_name="lint")
    page = await backend_page(store, older=True)
    causes = [
        (cause.line, cause.count, cause.newest.delivery, cause.newest.job_name) for cause in page.causes
    ]
    assert causes == [
        (MESSAGE, 2, first, "build"),
        (None, 2, first, "lint"),
        (OTHER_MESSAGE, 1, second, "build"),
    ]
    assert [bool(cause.fingerprint) for cause in page.causes] == [True, False, True]
    assert {(key[0], key[4]): line.line for key, line in page.lines.items()} == {
        (first, "build"): MESSAGE,
        (second, "build"): OTHER_MESSAGE,
        (second, "test"): MESSAGE,
        (replaced, "build"): MESSAGE,
    }


async def test_the_only_failing_filter_keeps_columns_that_failed_on_the_shown_events(
    store: StoreRows,
) -> None:
    for hours, failed in ((2, "test"), (3, "none")):
        delivery = dispatched_delivery(store, hours_ago=hours)
        for name in ("build", "lint", "test"):
            store.job(delivery, "failure" if name == failed else "success", job_name=name)
    matrix = (await backend_page(store, only_failing=True)).matrix
    assert [column.job_name for column in matrix.columns] == ["test"]
    assert [letters(row.cells) for row in matrix.rows] == ["X", "O"]


@pytest.mark.parametrize("kind", [ResultKind.PULLS, ResultKind.PUSH, ResultKind.NIGHTLY])
async def test_a_day_contains_its_events_from_midnight_to_midnight(
    store: StoreRows, kind: ResultKind
) -> None:
    hours = (12.49, 12.51, 30, 36.49, 36.51, 24 * 40)  # NOW is half past twelve
    for index, hours_ago in enumerate(hours):
        if kind is ResultKind.NIGHTLY:
            facts = {"event": "nightly", "number": None, "run_id": str(index), "ended_as": "success"}
            store.job(f"{index:040x}", hours_ago=hours_ago, head_sha=f"{index:040x}", **facts)
        else:
            add = dispatched_delivery if kind is ResultKind.PULLS else dispatched_push
            add(store, hours_ago=hours_ago, head_sha=f"{index:040x}")

    async def find_commits(day: date, **query: Any) -> list[int]:
        rows = (await backend_page(store, kind=kind, day=day, **query)).matrix.rows
        return [int(row.head_sha or "", 16) for row in rows]

    assert await find_commits(date(2026, 1, 20)) == [0]
    assert await find_commits(date(2026, 1, 19)) == [1, 2, 3]
    assert await find_commits(date(2026, 1, 18)) == [4]
    assert await find_commits(date(2025, 12, 11)) == [5], "also before the range of the figures"
    assert await find_commits(date(1, 1, 1)) == await find_commits(date(9999, 12, 31)) == []
    if kind is not ResultKind.NIGHTLY:
        first = await backend_page(store, kind=kind, day=date(2026, 1, 19), limit=2)
        assert await find_commits(date(2026, 1, 19), limit=2, after=first.matrix.next) == [3]
        assert await find_commits(date(2026, 1, 18), after=(2**61, "")) == [4], (
            "a cursor leads to no other day"
        )
