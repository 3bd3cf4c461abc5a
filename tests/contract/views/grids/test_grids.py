"""The grids match the pages of pull requests and commits; filters, sorting and paging of the pull request list."""

from collections import Counter
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.in_tree.checks import InTreeCheck
from crcr.decide.model import Level, RepoName
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.views.commit import BackendState, CommitBackend, GateShown
from crcr.decide.views.grids import (
    CommitListQuery,
    InTreeCell,
    PullFilter,
    PullLine,
    PullList,
    PullListQuery,
    PullScope,
    PullSort,
)
from crcr.decide.views.overview import DispatchAnswer
from crcr.errors import BadRequest
from crcr.record.schema.failures import person_verdicts
from support.data.store_rows import UPSTREAM, StoreRows, open_store_rows

ALLOWLIST = """
L1:
  - listen/only
L2:
  - Good/Backend
  - flaky/backend
  - secret/backend: {visibility: hidden}
L3:
  npu:
    Near/Gate: [ada]
L4:
  - Gate/One: {oncalls: [bob], jobs: [build]}
"""
BACKENDS = {"listen/only": 1, "good/backend": 2, "flaky/backend": 2, "near/gate": 3, "gate/one": 4}


@pytest.fixture(params=[False, True], ids=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path, on_postgresql=request.param) as rows:
        rows.allowlist(ALLOWLIST)
        yield rows


def add_pull(store: StoreRows, number: int, **more: Any) -> str:
    dispatched = more.pop("dispatched", BACKENDS)
    state = more.pop("dispatch", {})
    delivery = store.pull(number, updated_at=store.ago(minutes=1_000 - number), **more)
    for name in dispatched:
        columns = {"number": number, "head_sha": f"{number:040x}", "level": BACKENDS.get(name, 2)}
        store.dispatch(delivery, name, **{**columns, **state})
    return delivery


def fail(store: StoreRows, delivery: str, number: int, backend: str, **more: Any) -> None:
    verdict = more.pop("verdict", "new")
    columns = {"number": number, "head_sha": f"{number:040x}"}
    store.job(delivery, "failure", downstream=backend, **columns, **more)
    store.failure(delivery, backend, "it broke", verdict=verdict, **columns, **more)


async def read(store: StoreRows, **filters: Any) -> PullList:
    return await store.views.pulls(PullListQuery(upstream=UPSTREAM, **filters))


async def numbers(store: StoreRows, **filters: Any) -> list[int]:
    return [line.number for line in (await read(store, **filters)).items]


CellFacts = tuple[BackendState, Level, tuple[int, ...]]


def states_on_page(backends: tuple[CommitBackend, ...]) -> dict[RepoName, CellFacts]:
    return {
        backend.name: (
            backend.state,
            backend.level,
            tuple(Counter(job.counted for job in backend.jobs)[counted] for counted in COUNTED),
        )
        for backend in backends
        if backend.level >= Level.L2  # L1 has no column
    }


def states_of(line: Any) -> dict[RepoName, CellFacts]:
    return {
        cell.backend: (cell.state, cell.level, (cell.failed, cell.running, cell.passed, cell.other))
        for cell in line.backends
    }


COUNTED = (CountedAs.FAILURE, CountedAs.RUNNING, CountedAs.SUCCESS, CountedAs.OTHER)
RESULTS = (
    "success",
    "failure",
    "cancelled",
    "skipped",
    "neutral",
    "timed_out",
    "action_required",
    "none",
    None,
)
UNREPORTED = (
    {"answer": None},
    *({"answer": answer.value} for answer in DispatchAnswer),
    {"state": "held", "reason": "draft", "sent_at": None},
    {"state": "held", "reason": "paths", "sent_at": None},
    {"state": "waiting", "sent_at": None},
    {"state": "parked", "reason": "gone"},
    {"state": "cancelled"},
    {"state": "left_out", "reason": "labels"},
)


def add_random_runs(store: StoreRows, number: int) -> None:
    """Runs of several attempts; a job may be in some of them only, and a run may be superseded."""
    chance = Random(number)
    delivery = add_pull(store, number, dispatched=("good/backend", "flaky/backend"))
    for backend, run in product(("good/backend", "flaky/backend"), ("1", "2", "3")):
        about = {"run_id": run, "number": number, "downstream": backend}
        attempts, superseded = chance.choice((1, 1, 2, 2, 4)), int(chance.random() < 0.3)
        for attempt, job in product(range(1, attempts + 1), range(3)):
            if attempt == 1 or chance.random() < 0.5:
                result, expected = chance.choice(RESULTS), chance.choice((None, None, "failure", "success"))
                names = {"attempt": attempt, "job_name": f"job {job}"}
                store.job(delivery, result, expected=expected, superseded=superseded, **names, **about)


async def test_cells_of_the_pull_request_grid_match_the_pull_request_pages(store: StoreRows) -> None:
    pairs = [(first, second) for first in RESULTS for second in RESULTS[: RESULTS.index(first) + 1]]
    for number, results in enumerate(pairs, start=100):
        delivery = add_pull(store, number, dispatched=("good/backend",))
        for index, result in enumerate(results):
            store.job(delivery, result, job_name=f"job {index}", number=number)
    for number, facts in enumerate(UNREPORTED, start=200):
        add_pull(store, number, dispatch=facts)
    again = add_pull(store, 300, dispatched=("good/backend", "flaky/backend", "secret/backend"))
    store.job(again, "failure", attempt=1)
    store.job(again, None, attempt=2)
    store.job(again, "failure", run_id="2", superseded=1)
    store.job(again, "success", run_id="3")
    store.job(again, "failure", expected="failure", downstream="flaky/backend")
    store.job(again, "failure", downstream="secret/backend")
    add_pull(store, 301, is_open=0, dispatch={"superseded_at": store.ago(hours=1)})
    for number in range(400, 412):
        add_random_runs(store, number)

    page = await read(store, scope=PullScope.ALL, limit=200)
    assert len(page.items) == len(pairs) + len(UNREPORTED) + 2 + 12
    different = {}
    for line in page.items:
        view = await store.views.pull(UPSTREAM, line.number, store.clock.now())
        if states_of(line) != states_on_page(view.backends):
            different[line.number] = (states_of(line), states_on_page(view.backends))
        assert (line.state, line.title, line.delivery is not None) == (view.state, view.title, True)
    assert different == {}
    assert len({state for line in page.items for state, *_ in states_of(line).values()}) > 11
    assert [str(column.backend) for column in page.columns] == [
        *("Gate/One", "Near/Gate", "flaky/backend", "Good/Backend"),
    ]


async def test_pull_request_filters_select_the_matching_pull_requests(store: StoreRows) -> None:
    for number in (1, 2, 3, 4, 5):
        delivery = add_pull(store, number, author="Ada" if number < 3 else "bob")
        if number in (1, 2):
            fail(store, delivery, number, "gate/one")
    store.gate(f"{1:040x}", "failed")
    store.gate(f"{3:040x}", "pending")
    for number, reason in ((6, "approval"), (7, "paths"), (8, "draft")):
        held = {"state": "held", "reason": reason, "sent_at": None}
        add_pull(store, number, author="eve", dispatch=held, is_open=int(number < 8))
    numbers_by_filter = {
        "blocked": await numbers(store, only=PullFilter.BLOCKED),
        "failing": await numbers(store, only=PullFilter.FAILING),
        "waiting": await numbers(store, only=PullFilter.WAITING),
        "waiting, closed": await numbers(store, only=PullFilter.WAITING, scope=PullScope.CLOSED),
        "ada's": await numbers(store, author="aDa"),
        "ada's that fail and are blocked": await numbers(store, author="ada", only=PullFilter.BLOCKED),
        "by number": await numbers(store, text="#3"),
        "by title": await numbers(store, text="FUSE", author="ada"),
        "by an author's part": await numbers(store, text="da"),
        "a wildcard": await numbers(store, text="%"),
        "all": await numbers(store, scope=PullScope.ALL),
    }
    assert numbers_by_filter == {
        "blocked": [1],
        "failing": [2, 1],
        "waiting": [6],
        "waiting, closed": [8],
        "ada's": [2, 1],
        "ada's that fail and are blocked": [1],
        "by number": [3],
        "by title": [2, 1],
        "by an author's part": [2, 1],
        "a wildcard": [],
        "all": [8, 7, 6, 5, 4, 3, 2, 1],
    }


async def test_a_failure_counts_until_its_job_runs_again_or_a_newer_delivery_arrives(
    store: StoreRows,
) -> None:
    """It counts only where its backend is visible."""
    for number in (1, 2, 3, 4):
        delivery = add_pull(store, number, dispatched=("good/backend", "secret/backend"))
        fail(store, delivery, number, "secret/backend" if number == 4 else "good/backend")
        if number == 1:
            store.job(delivery, None, attempt=2, number=1, head_sha=f"{1:040x}")
        if number == 2:
            store.delivery(number=2, head_sha=f"{2:040x}", hours_ago=1, action="reopened")
    assert await numbers(store, only=PullFilter.FAILING) == [3]
    admin = await store.views.for_admins().pulls(PullListQuery(upstream=UPSTREAM, only=PullFilter.FAILING))
    assert [line.number for line in admin.items] == [4, 3]
    assert [line.verdict for line in (await read(store)).items] == [None, VerdictKind.NEW, None, None]


@pytest.mark.parametrize("scope", [PullScope.OPEN, PullScope.ALL])
async def test_pages_in_every_order_contain_each_pull_request_once(
    store: StoreRows, scope: PullScope
) -> None:
    for number in range(1, 12):
        delivery = add_pull(store, number, dispatched=("good/backend", "flaky/backend"))
        for backend in ("good/backend", "flaky/backend")[: number % 3]:
            fail(store, delivery, number, backend)
        if number % 4:
            store.gate(f"{number:040x}", ("failed", "pending", "passed")[number % 4 - 1])
    orders = {}
    for sort in PullSort:
        for down in (False, True):
            lines: list[PullLine] = []
            after = None
            for _ in range(6):
                page = await read(store, scope=scope, sort=sort, down=down, after=after, limit=2)
                lines += page.items
                after = page.next
            assert after is None
            assert sorted(line.number for line in lines) == [*range(1, 12)]
            orders[sort, down] = [line.number for line in lines]
    assert orders[PullSort.UPDATED, True] == orders[PullSort.NUMBER, True] == orders[PullSort.AGE, False]
    assert orders[PullSort.AGE, True] == [*range(1, 12)]
    assert orders[PullSort.FAILURES, True] == [11, 8, 5, 2, 10, 7, 4, 1, 9, 6, 3]
    assert orders[PullSort.GATE, False] == [9, 5, 1, 10, 6, 2, 11, 7, 3, 8, 4]


@pytest.mark.parametrize("after", [("x",), (1, "x"), (1, 2, 3), (-5, -1), (2**80, 2**40)])
async def test_a_forged_cursor_is_refused(store: StoreRows, after: Any) -> None:
    for sort in (PullSort.UPDATED, PullSort.GATE):
        with pytest.raises(BadRequest):
            await read(store, sort=sort, after=after)


async def test_a_row_shows_what_it_waits_for_without_naming_hidden_backends(store: StoreRows) -> None:
    waits = {
        1: ("pending", {"state": "held", "reason": "draft"}, "the draft to be marked ready for review"),
        2: (
            "pending",
            {"state": "held", "reason": "approval"},
            "a maintainer's approval of the author's change",
        ),
        3: ("failed", {}, "Gate/One failed (build)"),
        4: ("passed", {"answer": None}, "4 backends to finish"),
        5: (None, {"state": "left_out", "reason": "labels"}, None),
    }
    for number, (gate, facts, _) in waits.items():
        add_pull(store, number, dispatch=facts)
        if gate:
            store.gate(f"{number:040x}", gate, "Gate/One failed (build)")
    hidden = add_pull(store, 6, dispatched=("good/backend",))
    store.dispatch(hidden, "secret/backend", number=6, head_sha=f"{6:040x}", level=4)
    add_pull(store, 7, head_sha=f"{6:040x}", dispatched=())
    store.gate(f"{6:040x}", "failed", "secret/backend failed")
    lines = {line.number: line for line in (await read(store)).items}
    assert {number: lines[number].waits_for for number in waits} == {
        number: expected for number, (*_, expected) in waits.items()
    }
    assert {lines[number].waits_for for number in (6, 7)} == {"a gating backend to be fixed or waived"}
    assert lines[6].gate is lines[7].gate is GateShown.FAILED


async def test_a_persons_verdict_replaces_the_verdict_of_the_rules(store: StoreRows) -> None:
    delivery = add_pull(store, 1)
    fail(store, delivery, 1, "good/backend", verdict="flaky")
    fail(store, delivery, 1, "near/gate", verdict="pre-existing")

    async def read_worst_verdict() -> VerdictKind | None:
        return (await read(store)).items[0].verdict

    assert await read_worst_verdict() is VerdictKind.FLAKY
    key = {"upstream": UPSTREAM.key, "number": 1, "head_sha": f"{1:040x}", "downstream": "near/gate"}
    verdict_columns = {
        "job": "build",
        "verdict": "new",
        "who": "mia",
        "reason": "look",
        "at": store.ago(minutes=1),
    }
    store.add(person_verdicts, {**key, **verdict_columns})
    assert await read_worst_verdict() is VerdictKind.NEW


async def test_cells_of_the_commit_grid_match_the_commit_pages(store: StoreRows) -> None:
    shas = [f"{position:040x}" for position in range(1, 6)]
    for position, sha in enumerate(shas, start=1):
        store.base_commit(sha, position)
        if position == 2:
            continue  # the first of two commits of a push
        delivery = store.delivery(number=None, head_sha=sha, ref="refs/heads/main")
        for name in ("good/backend", "gate/one", "secret/backend", "listen/only"):
            level = BACKENDS.get(name, 2)
            store.dispatch(delivery, name, event="push", action=None, number=None, head_sha=sha, level=level)
        for job in ("test (1, 2)", "test (2, 2)", "lint"):
            result = "failure" if position == 4 and job != "lint" else "success"
            store.job(delivery, result, job_name=job, event="push", number=None, head_sha=sha)
    store.in_tree(
        shas[0], *(InTreeCheck(1, f"check {end}", 7, 9, end, None) for end in ("success", "failure"))
    )
    query = CommitListQuery(upstream=UPSTREAM, opened=(RepoName("good/backend"), RepoName("secret/backend")))
    page = await store.views.commits(query)
    assert [line.sha for line in page.items] == shas[::-1]
    for line in page.items:
        if line.delivery:
            view = await store.views.commit(UPSTREAM, line.sha, store.clock.now())
            assert states_of(line) == states_on_page(view.backends)
    untested = page.items[3]
    assert (untested.delivery, untested.backends) == (None, ())
    assert page.items[4].in_tree == InTreeCell(1, 1, 0)
    assert [cell.failed for cell in page.items[1].backends] == [0, 2]
    assert page.opened.keys() == {"good/backend"}
    matrix = page.opened["good/backend"]
    assert [column.job_name for column in matrix.columns] == ["lint", "test (1, 2)", "test (2, 2)"]
    assert [[cell.conclusion if cell else None for cell in row.cells] for row in matrix.rows][1:4:2] == [
        ["success", "failure", "failure"],
        [None, None, None],
    ]
    first = await store.views.commits(CommitListQuery(upstream=UPSTREAM, limit=2))
    rest = await store.views.commits(CommitListQuery(upstream=UPSTREAM, limit=9, after=first.next))
    assert [line.sha for line in (*first.items, *rest.items)] == shas[::-1]
    assert rest.next is None
    assert (await store.views.commits(CommitListQuery(upstream=UPSTREAM, branch="other"))).items == ()
