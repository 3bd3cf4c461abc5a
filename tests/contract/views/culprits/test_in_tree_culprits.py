"""In-tree checks in the culprit views: as evidence for a downstream's range, and with their own culprits."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from crcr.decide.in_tree.checks import STATUSES
from crcr.decide.model import RepoName
from crcr.decide.views.culprits import CulpritQuery, CulpritRange, JobCulprits
from support.data.base_history import BaseHistory, fingerprint_of, sha_of
from support.data.store_rows import OTHER, UPSTREAM, StoreRows, open_store_rows
from support.failures.in_tree_courses import a_check, add_base

LISTED = """
L2:
  - good/backend
  - secret/one: {visibility: hidden}
"""
ALL = CulpritQuery(upstream=UPSTREAM)
IN_TREE = replace(ALL, backend=UPSTREAM)
DOWNSTREAM = replace(ALL, backend=RepoName("good/backend"))
PASS, FAIL = "success", "failure"


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path, on_postgresql=request.param == "postgresql") as rows:
        rows.allowlist(LISTED)
        yield rows


@pytest.fixture
def base(store: StoreRows) -> BaseHistory:
    """Twelve commits without results; commit N belongs to merged pull request 100 + N."""
    history = BaseHistory(store)
    for position in range(1, 13):
        history.place(position, title=f"Change (#{100 + position})", number=100 + position)
        store.pull(100 + position, is_open=0, merged=1, merge_base=sha_of(max(position - 1, 1)))
    return history


def add_pull(store: StoreRows, number: int, **letters: str) -> None:
    """Add the in-tree checks of a pull request's last head."""
    store.in_tree(f"{number:040x}", *(a_check(*check) for check in letters.items()), packed=True)


async def read(store: StoreRows, query: CulpritQuery) -> tuple[JobCulprits, ...]:
    return await store.views.culprits(query, store.clock.now())


async def read_one(store: StoreRows, query: CulpritQuery) -> JobCulprits:
    (culprits,) = await read(store, query)
    return culprits


def numbers(culprits: JobCulprits) -> list[int | None]:
    return [candidate.number for candidate in culprits.candidates]


def in_tree_reasons(culprits: JobCulprits) -> dict[int | None, list[str]]:
    reasons = {
        candidate.number: [text for text in candidate.reasons if "in-tree" in text]
        for candidate in culprits.candidates
    }
    return {number: texts for number, texts in reasons.items() if texts}


@pytest.fixture
def red_job(base: BaseHistory) -> BaseHistory:
    """A downstream's job that passed on commit 3 and fails from commit 8 on."""
    base.push(3, PASS, hours_ago=9)
    base.push(8, FAIL, hours_ago=8)
    base.push(9, FAIL, hours_ago=7)
    return base


@pytest.mark.parametrize("packed", [True, False])
async def test_a_change_at_which_in_tree_checks_turned_red_comes_first(
    store: StoreRows, red_job: BaseHistory, packed: bool
) -> None:
    add_base(store, build="++++++++++", test="++++xxxxxx", lint="++++xxxxxx", old="xxxxxxxxxx", packed=packed)
    culprits = await read_one(store, DOWNSTREAM)
    assert numbers(culprits)[0] == 105
    assert in_tree_reasons(culprits) == {105: ["in-tree check `lint` (+1) began to fail at it"]}


async def test_a_pull_request_merged_with_failing_in_tree_checks_comes_first(
    store: StoreRows, red_job: BaseHistory
) -> None:
    add_base(store, test="++++......", lint="++++++++++", old="xxxxxxxxxx")
    add_pull(store, 106, test="x", lint="x", old="x", cla="x")
    add_pull(store, 105, old="x")
    culprits = await read_one(store, DOWNSTREAM)
    assert numbers(culprits)[0] == 106
    # On the base, lint passes, `old` is red anyway, and cla never runs.
    assert in_tree_reasons(culprits) == {106: ["#106 was merged while in-tree check `test` failed on it"]}


@pytest.mark.parametrize(
    "course",
    [
        pytest.param("xxxxxxxxxx", id="always red"),
        pytest.param("x+xxx+xxxx", id="often red"),
        pytest.param("x+++xxxxxx", id="red before"),
        pytest.param("++++x+++++", id="by chance"),
        pytest.param("+xxxxxxxxx", id="before the range"),
        pytest.param("++++++++xx", id="after the range"),
        pytest.param("++++cccccc", id="cancelled"),
        pytest.param("++++ssssss", id="skipped"),
        pytest.param("++++rrrrrr", id="running"),
        pytest.param("....xxxxxx", id="without a pass"),
    ],
)
async def test_inconclusive_check_courses_give_no_evidence(
    store: StoreRows, red_job: BaseHistory, course: str
) -> None:
    before = await read_one(store, DOWNSTREAM)
    add_base(store, test=course)
    assert (await read_one(store, DOWNSTREAM)).candidates == before.candidates


async def test_an_open_pull_request_of_the_same_number_gives_no_evidence(
    store: StoreRows, red_job: BaseHistory
) -> None:
    red_job.place(13, title="Claims (#999)", number=999)
    red_job.push(13, FAIL, hours_ago=6)
    store.pull(999)
    add_base(store, test="+++++++++....")
    add_pull(store, 999, test="x")
    assert in_tree_reasons(await read_one(store, DOWNSTREAM)) == {}


async def test_without_a_recorded_pass_in_tree_checks_add_no_candidate(
    store: StoreRows, base: BaseHistory
) -> None:
    base.push(8, FAIL, hours_ago=8)
    add_base(store, test="++++xxxxxx")
    assert (await read_one(store, DOWNSTREAM)).candidates == ()


async def test_red_checks_have_their_own_culprits_listed_after_those_of_jobs(
    store: StoreRows, red_job: BaseHistory
) -> None:
    add_base(store, test="++++xxxxxx", lint="++x+++++..", slow="+.....x...", old="xxxxxxxxxx")
    culprits = await read(store, ALL)
    listed = [(item.backend, item.job) for item in culprits]
    assert listed == [
        (RepoName("good/backend"), "build"),
        *((UPSTREAM, name) for name in ("old", "slow", "test")),
    ]
    old, slow, test = culprits[1:]
    assert (old.range, old.candidates) == (CulpritRange(good=None, bad=sha_of(1), commits=None), ())
    assert (slow.range, len(slow.candidates)) == (CulpritRange(good=sha_of(1), bad=sha_of(7), commits=6), 6)
    assert (test.range, numbers(test)) == (CulpritRange(good=sha_of(4), bad=sha_of(5), commits=1), [105])
    assert (test.fingerprints, test.bisection, test.workflow) == ((), None, "check run of App 15368")
    assert numbers(slow)[0] == 105  # where another check turned red
    assert slow.candidates[0].reasons[0] == "in-tree check `test` began to fail at it"


async def test_the_pull_request_on_which_a_check_failed_is_its_first_candidate(
    store: StoreRows, base: BaseHistory
) -> None:
    add_base(store, test="++....xx")
    add_pull(store, 104, test="x")
    add_pull(store, 106, test="+")
    culprits = await read_one(store, IN_TREE)
    assert (numbers(culprits)[0], numbers(culprits)[-1]) == (104, 106)
    assert culprits.candidates[0].reasons[0] == "#104 was merged while this failed on it"
    assert "the job passed on #106 before it was merged" in culprits.candidates[-1].reasons


async def test_a_check_that_was_always_red_has_no_candidates(store: StoreRows, base: BaseHistory) -> None:
    add_base(store, old="xxxxxxxx")
    for number in range(101, 109):
        add_pull(store, number, old="x")
    assert (await read_one(store, IN_TREE)).candidates == ()


async def test_a_check_broken_on_the_base_at_that_time_is_no_evidence_against_a_pull_request(
    store: StoreRows, base: BaseHistory
) -> None:
    add_base(store, test="+xx+....xx")
    add_pull(store, 107, test="x")
    store.pull(301, is_open=0, merged=1, merge_base=sha_of(2), merge_commit_sha=sha_of(6))
    add_pull(store, 301, test="x")
    culprits = await read_one(store, IN_TREE)
    assert numbers(culprits)[0] == 107
    assert not any(
        "#301 was merged while" in text for candidate in culprits.candidates for text in candidate.reasons
    )


async def test_in_tree_culprits_can_be_filtered_by_upstream_and_name(
    store: StoreRows, red_job: BaseHistory
) -> None:
    add_base(store, test="++++xxxxxx", lint="++++xxxxxx")
    store.in_tree(sha_of(11), a_check("test", "x", STATUSES), a_check("test", "x"))
    chosen = replace(IN_TREE, backend=RepoName("torch/TORCH"), job="test")
    assert [(item.job, item.workflow) for item in await read(store, chosen)] == [
        ("test", "commit status"),
        ("test", "check run of App 15368"),
    ]
    assert [item.job for item in await read(store, replace(IN_TREE, limit=1))] == ["lint"]
    assert [item.job for item in await read(store, replace(ALL, limit=2))] == ["build", "lint"]
    assert [item.job for item in await read(store, replace(ALL, limit=1))] == ["build"]
    assert await read(store, replace(IN_TREE, fingerprint=fingerprint_of())) == ()
    assert await read(store, replace(IN_TREE, upstream=OTHER, backend=OTHER)) == ()


async def test_hidden_backends_get_in_tree_evidence_but_are_not_shown_as_evidence(
    store: StoreRows, red_job: BaseHistory
) -> None:
    red_job.push(3, PASS, hours_ago=9, downstream="secret/one")
    red_job.push(8, FAIL, hours_ago=8, downstream="secret/one")
    add_base(store, test="++++xxxxxx")
    for culprits in await read(store, ALL):
        assert "secret" not in str(culprits)
    hidden = replace(ALL, backend=RepoName("secret/one"))
    (shown,) = await store.views.for_admins().culprits(hidden, store.clock.now())
    assert numbers(shown)[0] == 105


async def test_a_rerun_check_that_passed_counts_as_passed(store: StoreRows, red_job: BaseHistory) -> None:
    """A check's own row replaces the packed one, also while the check runs again."""
    add_base(store, test="++++xxxx")
    store.rerun(sha_of(5), a_check("test", "r"))
    assert in_tree_reasons(await read_one(store, DOWNSTREAM)) == {
        number: ["in-tree check `test` began to fail around it"] for number in (105, 106)
    }
    for position in (6, 7, 8):
        store.rerun(sha_of(position), a_check("test", "+"))
    assert in_tree_reasons(await read_one(store, DOWNSTREAM)) == {}
    assert await read(store, IN_TREE) == ()


async def test_commits_are_ordered_by_branch_position_and_not_by_arrival(
    store: StoreRows, red_job: BaseHistory
) -> None:
    for position in (9, 5, 4, 8, 7, 6):
        store.in_tree(sha_of(position), a_check("test", "+" if position < 7 else "x"), packed=True)
    culprits = await read_one(store, IN_TREE)
    assert (culprits.range.good, culprits.range.bad) == (sha_of(6), sha_of(7))


async def test_thousands_of_checks_with_hostile_names_are_read_within_limits(
    store: StoreRows, red_job: BaseHistory
) -> None:
    hostile = "\u202e<script>alert(1)</script>\n`' ; DROP TABLE pulls; --"
    for position in range(1, 11):
        letter = "+" if position < 6 else "x"
        checks = [a_check(f"{hostile} {number:04}", letter) for number in range(5_000)]
        store.in_tree(sha_of(position), *checks, packed=True)
    downstream, *in_tree = await read(store, replace(ALL, limit=30))
    assert numbers(downstream)[0] == 106
    (reason,) = in_tree_reasons(downstream)[106]
    assert reason.endswith("(+4999) began to fail at it")
    assert "\n" not in reason
    assert len(reason) < 150
    assert len(in_tree) == 29


async def test_a_force_pushed_branch_keeps_the_results_of_removed_commits(
    store: StoreRows, base: BaseHistory
) -> None:
    """Commits that a forced push removed stay in the order: the next ones are tested after them."""
    add_base(store, test="+++xx+xxx")
    culprits = await read_one(store, IN_TREE)
    assert (culprits.range.good, culprits.range.bad, numbers(culprits)) == (sha_of(6), sha_of(7), [107])
