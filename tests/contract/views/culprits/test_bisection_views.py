"""Views of bisections, on both databases: the list, the detail with commits and runs, and visibility."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.bisection.search import CommitFinding, RunResult
from crcr.decide.model import RepoName
from crcr.decide.views.bisections import (
    BisectionQuery,
    BisectionState,
    CulpritBisection,
    describe_briefly,
)
from crcr.errors import BadRequest, NotFound
from support.data.store_rows import OTHER, UPSTREAM, StoreRows, open_store_rows
from support.failures.bisection_rows import FAILED, PASSED, BisectionRows, commit_sha

LISTED = """
L1:
  - listen/only
L2:
  - Good/Backend: {bisect: manual}
  - flaky/backend
  - secret/one: {visibility: hidden}
  - named/one: {visibility: name}
"""
ALL = BisectionQuery(upstream=UPSTREAM)
FOUND = [(12, FAILED), (0, PASSED), (6, FAILED), (3, PASSED), (5, FAILED), (4, PASSED)]


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path, on_postgresql=request.param == "postgresql") as rows:
        rows.allowlist(LISTED)
        yield rows


@pytest.fixture
def rows(store: StoreRows) -> BisectionRows:
    return BisectionRows(store)


async def ids(store: StoreRows, query: BisectionQuery = ALL) -> list[int]:
    return [item.id for item in (await store.views.bisections(query)).items]


async def test_bisections_are_listed_newest_first_and_can_be_filtered(
    store: StoreRows, rows: BisectionRows
) -> None:
    ended = rows.add(FOUND, left_good=4, left_bad=5, outcome="found")
    other = rows.add(downstream="flaky/backend")
    lint = rows.add(job_name="lint")
    assert await ids(store) == [lint, other, ended]
    assert await ids(store, replace(ALL, backend=RepoName("GOOD/backend"))) == [lint, ended]
    assert await ids(store, replace(ALL, job="lint")) == [lint]
    assert await ids(store, replace(ALL, state=BisectionState.FINISHED)) == [ended]
    assert await ids(store, replace(ALL, upstream=OTHER)) == []


async def test_each_page_continues_after_the_previous_one(store: StoreRows, rows: BisectionRows) -> None:
    added = [rows.add(job_name=f"job {number}") for number in range(5)]
    read: list[int] = []
    after = None
    for size in (2, 2, 1):
        page = await store.views.bisections(replace(ALL, limit=2, after=after))
        assert len(page.items) == size
        read, after = read + [item.id for item in page.items], page.next
    assert (read, after) == (added[::-1], None)
    with pytest.raises(BadRequest):
        await store.views.bisections(replace(ALL, after=("x",)))


async def test_list_entries_of_long_ranges_equal_their_details_with_any_titles(
    store: StoreRows, rows: BisectionRows
) -> None:
    title = 'Fix "quotes", \\ $[0][0] and ü 🎉 of #1'
    number = rows.add(
        FOUND, commits=500, left_good=4, left_bad=5, outcome="found", titles=dict.fromkeys(range(501), title)
    )
    (listed,) = (await store.views.bisections(ALL)).items
    detail = await store.views.bisection(UPSTREAM, number)
    assert listed == detail.bisection
    assert (listed.good, listed.bad, listed.commits) == (commit_sha(0), commit_sha(500), 500)
    assert (listed.left_good, listed.left_bad) == (commit_sha(4), commit_sha(5))
    assert listed.culprit == replace(detail.commits[5], finding=CommitFinding.BAD)
    assert detail.commits[5].title == title


async def test_the_detail_shows_findings_of_commits_and_results_of_runs(
    store: StoreRows, rows: BisectionRows
) -> None:
    runs = [(12, FAILED), (0, PASSED), (6, RunResult.FAILED_OTHERWISE), (7, FAILED), (3, None)]
    detail = await store.views.bisection(UPSTREAM, rows.add(runs, left_bad=7))
    findings = {position: commit.finding for position, commit in enumerate(detail.commits) if commit.finding}
    assert findings == {
        0: CommitFinding.GOOD,
        3: CommitFinding.OPEN,
        6: CommitFinding.UNCLEAR,
        7: CommitFinding.BAD,
        12: CommitFinding.BAD,
    }
    assert [commit.is_candidate for commit in detail.commits] == [False] + [True] * 7 + [False] * 5
    assert [(run.number, run.sha, run.result) for run in detail.runs] == [
        (number, commit_sha(position), result) for number, (position, result) in enumerate(runs, start=1)
    ]
    bisection = detail.bisection
    assert (bisection.good, bisection.bad, bisection.left) == (commit_sha(0), commit_sha(12), 7)
    assert (bisection.runs, bisection.culprit) == (5, None)
    assert bisection.sentence == "Commits left: 7 of 12. Runs sent: 5 of at most 12."


async def test_bisections_read_by_id_are_described_briefly_without_hidden_ones(
    store: StoreRows, rows: BisectionRows
) -> None:
    finished = rows.add(FOUND, left_good=4, left_bad=5, outcome="found")
    running, hidden = rows.add(left_bad=3), rows.add(downstream="secret/one")
    stopped = rows.add(outcome="stopped", reason="stopped by ada")
    views = await store.views.bisections_by_id(UPSTREAM, {finished, running, hidden, stopped, 999})
    assert {key: describe_briefly(view) for key, view in views.items()} == {
        finished: "005c0ffeec (#1005) broke it",
        running: "3 of 12 commits left",
        stopped: "stopped, 12 of 12 commits left",
    }
    assert await store.views.bisections_by_id(UPSTREAM, ()) == {}


@pytest.mark.parametrize("downstream", ["secret/one", "named/one", "listen/only", "left/the-list"])
async def test_bisections_of_backends_without_public_results_are_hidden_from_the_public(
    store: StoreRows, rows: BisectionRows, downstream: str
) -> None:
    hidden = rows.add(FOUND, downstream=downstream, left_good=4, left_bad=5, outcome="found")
    assert await ids(store) == []
    with pytest.raises(NotFound):
        await store.views.bisection(UPSTREAM, hidden)
    with pytest.raises(NotFound):
        await store.views.bisection(UPSTREAM, hidden + 1)
    admin_list = await store.views.for_admins().bisections(ALL)
    assert bool(admin_list.items) == (downstream in {"secret/one", "named/one"})


async def test_a_bisection_belongs_to_its_upstream(store: StoreRows, rows: BisectionRows) -> None:
    store.allowlist(LISTED, OTHER)
    added = rows.add()
    with pytest.raises(NotFound):
        await store.views.bisection(OTHER, added)


async def test_the_culprits_commit_and_pull_request_name_the_bisection(
    store: StoreRows, rows: BisectionRows
) -> None:
    sha, now = commit_sha(5), store.clock.now()
    store.delivery(number=None, head_sha=sha)
    store.pull(1005, is_open=0, merged=1, merge_commit_sha=sha)
    store.pull(7)
    outcome: dict[str, Any] = {"left_good": 4, "left_bad": 5, "outcome": "found"}
    bisection_id = rows.add(FOUND, **outcome)
    rows.add(FOUND, **outcome, downstream="secret/one")
    rows.add(job_name="lint")
    expected = (CulpritBisection(id=bisection_id, backend=RepoName("good/backend"), job="build"),)
    assert (await store.views.commit(UPSTREAM, sha, now)).bisections == expected
    assert (await store.views.pull(UPSTREAM, 1005, now)).bisections == expected
    assert (await store.views.pull(UPSTREAM, 7, now)).bisections == ()
