"""Culprits of red jobs: the range and its evidence, on both databases."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.model import RepoName
from crcr.decide.views.culprits import CulpritQuery, CulpritRange, JobCulprits
from crcr.errors import NotFound
from support.data.base_history import MESSAGE, BaseHistory, fingerprint_of, sha_of
from support.data.store_rows import OTHER, UPSTREAM, StoreRows, open_store_rows
from support.failures.bisection_rows import BisectionRows

LISTED = """
L2:
  - Good/Backend: {paths: ["src/npu/**"]}
  - flaky/backend
  - secret/one: {visibility: hidden}
"""
ALL = CulpritQuery(upstream=UPSTREAM)
PASS, FAIL = "success", "failure"


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path, on_postgresql=request.param == "postgresql") as rows:
        rows.allowlist(LISTED)
        yield rows


@pytest.fixture
def base(store: StoreRows) -> BaseHistory:
    """Ten commits without results; commit N belongs to pull request 100 + N."""
    history = BaseHistory(store)
    for position in range(1, 11):
        paths = ["docs/a.md"] if position != 5 else ["src/npu/a.cpp", "docs/a.md"]
        history.place(
            position,
            title=f"Change (#{100 + position})",
            number=100 + position,
            paths=json.dumps(paths),
            path_count=len(paths),
        )
    return history


async def read(store: StoreRows, query: CulpritQuery = ALL) -> tuple[JobCulprits, ...]:
    return await store.views.culprits(query, store.clock.now())


async def read_one(store: StoreRows, query: CulpritQuery = ALL) -> JobCulprits:
    (culprits,) = await read(store, query)
    return culprits


def numbers(culprits: JobCulprits) -> list[int | None]:
    return [candidate.number for candidate in culprits.candidates]


def merged_pull(store: StoreRows, number: int, **more: Any) -> str:
    return store.pull(number, is_open=0, merged=1, **more)


def fail_on_pull(
    store: StoreRows, number: int, delivery: str, backend: str = "good/backend", **more: Any
) -> None:
    place = {"number": number, "head_sha": f"{number:040x}", "hours_ago": 30, **more}
    store.failure(delivery, backend, MESSAGE, **place)


async def test_the_range_is_from_the_last_pass_to_the_first_failure(
    store: StoreRows, base: BaseHistory
) -> None:
    base.push(2, PASS, hours_ago=9)
    base.push(7, FAIL, hours_ago=8)
    base.push(9, FAIL, hours_ago=7)
    culprits = await read_one(store)
    assert culprits.range == CulpritRange(good=sha_of(2), bad=sha_of(7), commits=5)
    assert (culprits.backend, culprits.job, culprits.bisection) == (RepoName("good/backend"), "build", None)
    assert sorted(numbers(culprits), key=str) == [103, 104, 105, 106, 107]
    assert culprits.candidates[0].reasons == (
        "touches src/npu/a.cpp, one of the backend's paths",
        "one of 5 changes since the last pass: 2 before the first failing commit",
    )
    assert culprits.candidates[-1].reasons[0] == "touches none of the backend's paths"


async def test_a_pull_request_merged_with_the_same_failure_comes_first(
    store: StoreRows, base: BaseHistory
) -> None:
    base.push(2, PASS, hours_ago=9)
    base.push(7, FAIL, hours_ago=8)
    fail_on_pull(store, 104, merged_pull(store, 104))
    fail_on_pull(store, 106, merged_pull(store, 106), "flaky/backend")
    fail_on_pull(store, 103, merged_pull(store, 103), verdict="flaky")
    fail_on_pull(store, 107, merged_pull(store, 107), passed_at=store.ago(hours=20))
    fail_on_pull(store, 105, store.pull(105))
    culprits = await read_one(store)
    assert numbers(culprits)[:2] == [104, 106]
    assert culprits.candidates[0].reasons[0] == "#104 was merged while this failed on it"
    assert (
        culprits.candidates[1].reasons[0] == "#106 was merged while flaky/backend: build failed alike on it"
    )
    assert [
        name for candidate in culprits.candidates[2:] for name in candidate.reasons if "merged while" in name
    ] == []


@pytest.mark.parametrize(
    ("searched", "is_named"), [(MESSAGE, True), (None, True), ("ImportError: no module", False)]
)
async def test_a_bisection_is_evidence_only_for_the_failure_that_it_searched(
    store: StoreRows, base: BaseHistory, searched: str | None, is_named: bool
) -> None:
    base.push(2, PASS, hours_ago=9)
    base.push(7, FAIL, hours_ago=8)
    fingerprints = fingerprint_of(searched) if searched else None
    number = BisectionRows(store).add(outcome="found", fingerprints=fingerprints, culprit=sha_of(4))
    culprits = await read_one(store)
    assert culprits.bisection == (number if is_named else None)
    reasons = [reason for candidate in culprits.candidates for reason in candidate.reasons]
    assert (f"bisection {number} found it" in reasons) is is_named
    assert (numbers(culprits)[0] == 104) is is_named


async def test_a_pull_request_whose_last_head_passed_comes_last(store: StoreRows, base: BaseHistory) -> None:
    base.push(2, PASS, hours_ago=9)
    base.push(7, FAIL, hours_ago=8)
    delivery = merged_pull(store, 104)
    fail_on_pull(store, 104, delivery, head_sha="e" * 40)
    store.job(delivery, PASS, number=104, head_sha=f"{104:040x}", ended_as="success")
    culprits = await read_one(store)
    (own,) = (candidate for candidate in culprits.candidates if candidate.number == 104)
    assert "the job passed on #104 before it was merged" in own.reasons
    assert own is culprits.candidates[-1]


async def test_a_failure_that_the_base_had_at_that_time_is_no_evidence_against_a_pull_request(
    store: StoreRows, base: BaseHistory
) -> None:
    for position, ended in enumerate((PASS, FAIL, FAIL, FAIL, PASS), start=1):
        base.push(position, ended, hours_ago=20 - position)
    base.push(8, FAIL, hours_ago=8)
    built_on: dict[str, Any] = {"built_on": sha_of(3), "built_on_exact": 1}
    fail_on_pull(store, 107, merged_pull(store, 107), **built_on)
    culprits = await read_one(store)
    assert culprits.range.good == sha_of(5)
    assert not any(
        "merged while" in reason for candidate in culprits.candidates for reason in candidate.reasons
    )


async def test_a_relanded_change_is_suspected_because_of_the_earlier_breakage(
    store: StoreRows, base: BaseHistory
) -> None:
    for position, ended in ((1, PASS), (2, FAIL), (3, FAIL), (4, FAIL), (5, PASS)):
        base.push(position, ended, hours_ago=20 - position)
    base.place(11, title='Reland "Change (#102)" (#111)', number=111, paths='["docs/a.md"]', path_count=1)
    base.push(12, FAIL, hours_ago=2)
    culprits = await read_one(store)
    assert numbers(culprits)[0] == 111
    assert (
        culprits.candidates[0].reasons[0] == "lands #102 again, which was there when this failure first came"
    )


async def test_the_pull_request_of_a_commit_is_found_by_its_recorded_merge(
    store: StoreRows, base: BaseHistory
) -> None:
    base.push(10, PASS, hours_ago=9)
    base.place(11)
    base.push(12, FAIL, hours_ago=8)
    merged_pull(store, 77, merge_commit_sha=sha_of(11))
    assert sorted(numbers(await read_one(store)), key=str) == [77, None]


async def test_another_job_with_the_same_failure_narrows_the_range(
    store: StoreRows, base: BaseHistory
) -> None:
    base.push(1, PASS, hours_ago=9)
    base.push(9, FAIL, hours_ago=8)
    for position, ended in ((2, PASS), (3, PASS), (4, FAIL), (5, FAIL)):
        base.push(position, ended, hours_ago=9, downstream="flaky/backend", job_name="test")
    narrow, wide = await read(store)
    assert (narrow.job, numbers(narrow)) == ("test", [104])
    assert numbers(wide)[0] == 104
    assert wide.candidates[0].reasons[0] == "flaky/backend: test began to fail alike around it"


async def test_hidden_backends_give_no_evidence(store: StoreRows, base: BaseHistory) -> None:
    base.push(2, PASS, hours_ago=9)
    base.push(7, FAIL, hours_ago=8)
    base.push(7, FAIL, hours_ago=8, downstream="secret/one")
    fail_on_pull(store, 104, merged_pull(store, 104), "secret/one")
    culprits = await read_one(store)
    assert not any("secret" in reason for candidate in culprits.candidates for reason in candidate.reasons)
    query = replace(ALL, backend=RepoName("secret/one"))
    with pytest.raises(NotFound):
        await read(store, query)
    for_admins = await store.views.for_admins().culprits(query, store.clock.now())
    assert numbers(for_admins[0])[0] == 104


async def test_pull_requests_built_on_commits_in_the_range_narrow_it(
    store: StoreRows, base: BaseHistory
) -> None:
    base.push(1, PASS, hours_ago=9)
    base.push(9, FAIL, hours_ago=6)
    passing = store.pull(300, merge_base=sha_of(3))
    store.job(passing, PASS, number=300, head_sha=f"{300:040x}", ended_as="success", hours_ago=7)
    for number in (301, 302):
        built_on: dict[str, Any] = {"built_on": sha_of(4), "built_on_exact": 1}
        fail_on_pull(store, number, store.pull(number), **built_on)
    culprits = await read_one(store)
    assert numbers(culprits)[0] == 104


async def test_a_flaky_failure_has_no_culprit(store: StoreRows, base: BaseHistory) -> None:
    base.push(1, PASS, hours_ago=9)
    verdicts = json.dumps([[fingerprint_of(), "flaky", "medium"]]).encode()
    base.push(2, FAIL, hours_ago=8, verdict="flaky", test_verdicts=verdicts)
    assert await read(store) == ()


async def test_culprits_can_be_filtered_by_backend_job_and_fingerprint(
    store: StoreRows, base: BaseHistory
) -> None:
    base.push(1, PASS, hours_ago=9)
    base.push(2, FAIL, hours_ago=8)
    base.push(2, FAIL, hours_ago=8, job_name="lint", message="ValueError: odd")
    base.push(3, FAIL, hours_ago=8, downstream="flaky/backend", message="KeyError: even")
    all_jobs = await read(store)
    assert [(item.backend.key, item.job) for item in all_jobs] == [
        ("flaky/backend", "build"),
        ("good/backend", "build"),
        ("good/backend", "lint"),
    ]
    assert [
        item.job for item in await read(store, replace(ALL, backend=RepoName("Good/backend"), job="lint"))
    ] == ["lint"]
    assert [item.job for item in await read(store, replace(ALL, limit=2))] == ["build", "build"]
    odd = replace(ALL, fingerprint=fingerprint_of("ValueError: odd"))
    assert [item.job for item in await read(store, odd)] == ["lint"]
    assert await read(store, replace(ALL, upstream=OTHER)) == ()
    assert all_jobs[0].range == CulpritRange(good=None, bad=sha_of(3), commits=None)
    assert all_jobs[0].candidates == ()


async def test_a_very_long_range_shows_at_most_fifty_candidates(store: StoreRows, base: BaseHistory) -> None:
    base.push(10, PASS, hours_ago=9)
    for position in range(11, 630):
        base.place(position)
    base.push(630, FAIL, hours_ago=8)
    culprits = await read_one(store)
    assert (culprits.range.commits, len(culprits.candidates)) == (620, 50)
