"""The upstream's own CI in the views: counts and failing checks of a commit, the trend of the default branch."""

from crcr.decide.in_tree.checks import STATUSES, InTreeCheck, Outcome
from crcr.decide.statistics.window import Span
from crcr.decide.views.in_tree import FailingCheck, InTreeView
from support.data.store_rows import UPSTREAM, StoreRows

HEAD = f"{7:040x}"


def a_check(name: str, conclusion: str | None = "success", app_id: int = 15_368) -> InTreeCheck:
    return InTreeCheck(
        app_id, name, 7, None if conclusion is None else 9, conclusion, f"https://ci.test/{name}"
    )


async def test_a_pull_request_and_its_head_show_the_same_counts_packed_or_unpacked(store: StoreRows) -> None:
    checks = (a_check("build"), a_check("test", "failure"), a_check("lint", None))
    legacy = a_check("ci/legacy", "error", STATUSES)
    expected = InTreeView(
        1,
        2,
        1,
        (
            FailingCheck("ci/legacy", "https://ci.test/ci/legacy", "error"),
            FailingCheck("test", "https://ci.test/test", "failure"),
        ),
    )
    store.allowlist()
    for number, packed in ((7, False), (8, True)):
        store.pull(number)
        store.in_tree(f"{number:040x}", *checks, legacy, packed=packed)
        pull = await store.views.pull(UPSTREAM, number, store.clock.now())
        commit = await store.views.commit(UPSTREAM, f"{number:040x}", store.clock.now())
        assert pull.in_tree == commit.in_tree == expected


async def test_without_recorded_checks_the_in_tree_view_is_none(store: StoreRows) -> None:
    store.allowlist()
    store.pull()
    assert (await store.views.pull(UPSTREAM, 7, store.clock.now())).in_tree is None
    assert (await store.views.commit(UPSTREAM, HEAD, store.clock.now())).in_tree is None


async def test_a_commit_with_only_in_tree_checks_has_a_page(store: StoreRows) -> None:
    store.allowlist()
    store.in_tree(HEAD, a_check("build"))
    commit = await store.views.commit(UPSTREAM, HEAD, store.clock.now())
    assert (commit.event, commit.backends, commit.in_tree) == ("push", (), InTreeView(1, 0, 0))


async def test_the_trend_shows_the_newest_commits_of_the_default_branch_in_order(store: StoreRows) -> None:
    store.allowlist()
    for position in range(1, 26):
        store.base_commit(f"{position:040x}", position)
        if position % 5:  # of a push with several commits, only the last has checks
            store.in_tree(f"{position:040x}", a_check("build", "failure" if position == 24 else "success"))
    store.in_tree("f" * 40, a_check("build", "failure"))  # of a pull request
    summary = await store.views.summary(UPSTREAM, Span.FORTNIGHT, store.clock.now())
    trend = summary.in_tree
    assert trend is not None
    assert trend.branch == "main"
    assert [int(commit.sha, 16) for commit in trend.commits] == [n for n in range(1, 26) if n % 5]
    assert (trend.commits[-1].outcome, trend.passed, len(trend.decided)) == (Outcome.FAILED, 19, 20)


async def test_an_upstream_without_in_tree_checks_has_no_trend(store: StoreRows) -> None:
    store.allowlist()
    store.base_commit(HEAD, 1)
    summary = await store.views.summary(UPSTREAM, Span.FORTNIGHT, store.clock.now())
    assert summary.in_tree is None
