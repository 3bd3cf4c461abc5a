"""Failing in-tree checks of a commit compared with the base, on both databases."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crcr.decide.in_tree.base_results import OnBase
from crcr.decide.in_tree.checks import STATUSES
from crcr.decide.views.in_tree import FailingCheck, InTreeView, RedSince
from support.data.base_history import MESSAGE, BaseHistory, sha_of
from support.data.store_rows import UPSTREAM, StoreRows, open_store_rows
from support.failures.in_tree_courses import a_check, add_base

HEAD = "e" * 40
FAILED, PASSED = OnBase.FAILED, OnBase.PASSED


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path, on_postgresql=request.param == "postgresql") as rows:
        rows.allowlist()
        history = BaseHistory(rows)
        for position in range(1, 31):
            history.place(position, title=f"Change (#{100 + position})", number=100 + position)
        yield rows


def add_head(store: StoreRows, *names: str, merge_base: int | None = None, is_open: int = 1) -> str:
    """Add a pull request whose head has these failing checks; return its delivery."""
    base = None if merge_base is None else sha_of(merge_base)
    delivery = store.pull(7, head_sha=HEAD, merge_base=base, is_open=is_open)
    store.in_tree(HEAD, *(a_check(name, "x") for name in names), a_check("passes", "+"))
    return delivery


async def read_pull(store: StoreRows) -> dict[str, OnBase | None]:
    view = (await store.views.pull(UPSTREAM, 7, store.clock.now())).in_tree
    assert view is not None
    return {check.name: check.on_base for check in view.failing}


async def read_commit(store: StoreRows, sha: str) -> dict[str, tuple[OnBase | None, RedSince | None]]:
    view = (await store.views.commit(UPSTREAM, sha, store.clock.now())).in_tree
    assert view is not None
    return {check.name: (check.on_base, check.since) for check in view.failing}


@pytest.mark.parametrize("packed", [True, False])
async def test_failing_checks_are_compared_with_the_merge_base_of_the_pull_request(
    store: StoreRows, packed: bool
) -> None:
    add_base(store, test="++++xx", lint="x+++++", build="+xxx++", rare="+.....", packed=packed)
    add_head(store, "build", "cla", "lint", "rare", "test", merge_base=4, is_open=0)
    assert await read_pull(store) == {
        "build": FAILED,
        "cla": None,
        "lint": PASSED,
        "rare": PASSED,
        "test": PASSED,
    }


async def test_an_open_pull_request_is_also_compared_with_the_newest_base_commits(store: StoreRows) -> None:
    """Its CI may have tested the merge with them."""
    add_base(store, test="++++xx", build="+xxx++")
    add_head(store, "build", "test", merge_base=4)
    assert await read_pull(store) == {"build": FAILED, "test": FAILED}


async def test_without_a_known_merge_base_the_newest_base_commits_are_used(store: StoreRows) -> None:
    add_base(store, test="++++xx", lint="++++++")
    add_head(store, "lint", "test")
    assert await read_pull(store) == {"lint": PASSED, "test": FAILED}


async def test_a_closed_pull_request_is_not_compared_with_newer_base_commits(
    store: StoreRows,
) -> None:
    add_base(store, test="++++xx", lint="++++++")
    add_head(store, "lint", "test", is_open=0)
    assert await read_pull(store) == {"lint": None, "test": None}


async def test_checks_with_equal_names_of_different_apps_are_different(store: StoreRows) -> None:
    add_base(store, test="+++")
    store.in_tree(sha_of(4), a_check("test", "x", STATUSES))
    add_head(store, "test", merge_base=4)
    assert await read_pull(store) == {"test": PASSED}


async def test_a_base_branch_without_recorded_pushes_gives_no_result(store: StoreRows) -> None:
    store.pull(7, head_sha=HEAD, merge_base="f" * 40, base_ref="release/1.0")
    store.in_tree(HEAD, a_check("test", "x"))
    assert await read_pull(store) == {"test": None}


async def test_the_commit_page_of_a_head_shows_the_same_as_its_pull_request(store: StoreRows) -> None:
    add_base(store, test="++++xx", lint="++++++")
    add_head(store, "lint", "test", merge_base=4)
    assert await read_commit(store, HEAD) == {"lint": (PASSED, None), "test": (FAILED, None)}


async def test_a_base_commit_shows_since_which_commit_and_pull_request_a_check_is_red(
    store: StoreRows,
) -> None:
    add_base(store, test="++xxx", slow="+..xx", new="++++x", old="xxxxx")
    checks = await read_commit(store, sha_of(5))
    assert checks == {
        "new": (PASSED, RedSince(sha_of(5), 105)),
        "old": (FAILED, None),
        "slow": (FAILED, RedSince(sha_of(4), None)),
        "test": (FAILED, RedSince(sha_of(3), 103)),
    }


async def test_several_commits_of_one_pull_request_count_as_one_change(store: StoreRows) -> None:
    history = BaseHistory(store)
    for position in (31, 32):
        history.place(position, title="Part (#131)", number=131)
    store.in_tree(sha_of(30), a_check("test", "+"))
    store.in_tree(sha_of(32), a_check("test", "x"))
    assert await read_commit(store, sha_of(32)) == {"test": (PASSED, RedSince(sha_of(32), 131))}


async def test_later_commits_do_not_affect_an_earlier_one(store: StoreRows) -> None:
    add_base(store, test="++x+++")
    assert await read_commit(store, sha_of(3)) == {"test": (PASSED, RedSince(sha_of(3), 103))}


async def test_a_cancelled_check_is_listed_as_failing_without_a_start(store: StoreRows) -> None:
    add_base(store, test="++c")
    assert await read_commit(store, sha_of(3)) == {"test": (PASSED, None)}


async def test_failure_groups_mention_the_failing_in_tree_checks_of_the_commit(store: StoreRows) -> None:
    add_base(store, test="++++", lint="++xx")
    delivery = add_head(store, "lint", "test", "test 2", merge_base=4)
    store.dispatch(delivery, head_sha=HEAD)
    store.job(delivery, "failure", head_sha=HEAD)
    store.failure(delivery, "good/backend", MESSAGE, head_sha=HEAD)
    pull = await store.views.pull(UPSTREAM, 7, store.clock.now())
    commit = await store.views.commit(UPSTREAM, HEAD, store.clock.now())
    expected = (
        "In-tree CI fails on this commit too: test, which passed on the base; lint, which also fails on the base;"
        " test 2, of which the base has no result."
    )
    assert [group.in_tree for group in (*pull.groups, *commit.groups)] == [expected, expected]


async def test_thousands_of_failing_checks_are_compared_within_limits(store: StoreRows) -> None:
    names = [f"test {number:04}" for number in range(5_000)]
    for position in range(1, 31):
        letter = "+" if position < 20 else "x"
        store.in_tree(sha_of(position), *(a_check(name, letter) for name in names), packed=True)
    checks = await read_commit(store, sha_of(30))
    assert len(checks) == 500
    assert set(checks.values()) == {(FAILED, RedSince(sha_of(20), 120))}


async def test_without_failing_checks_nothing_is_compared(store: StoreRows) -> None:
    add_base(store, test="+x+")
    assert (await store.views.commit(UPSTREAM, sha_of(3), store.clock.now())).in_tree == InTreeView(1, 0, 0)
    assert FailingCheck("a", None, "failure").on_base is None
