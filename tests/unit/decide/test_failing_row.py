"""The row of failures at the end of a branch, for any history in any order of arrival."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.failures.failing import BranchCommit, find_failing_row

START = datetime(2026, 8, 3, tzinfo=UTC)


def result(position: int, ended: str, minute: int) -> BranchCommit:
    sha = f"{position:040x}"
    return BranchCommit(
        order=(position, sha),
        sha=sha,
        at=START + timedelta(minutes=minute),
        passed=ended == "pass",
        sick=ended == "sick",
    )


RESULTS = st.lists(
    st.builds(result, st.integers(1, 12), st.sampled_from(["pass", "fail", "sick"]), st.integers(0, 999)),
    max_size=30,
)


@given(RESULTS)
def test_a_row_has_the_failing_commits_after_the_last_one_with_a_pass(results: list[BranchCommit]) -> None:
    passed = {commit.order[0] for commit in results if commit.passed}
    failed = {commit.order[0] for commit in results if not commit.passed and not commit.sick}
    bad = sorted(position for position in failed if position > max(passed, default=0))
    row = find_failing_row(results)
    if not bad:
        assert row is None
        return
    assert row is not None
    assert (row.number, row.first.order[0], row.newest.order[0]) == (len(bad), bad[0], bad[-1])
    assert (row.last_good.order[0] if row.last_good else 0) == max(passed, default=0)
    assert row.since == min(commit.at for commit in results if commit.order[0] in bad and not commit.sick)


@given(RESULTS, st.randoms())
def test_the_order_of_arrival_does_not_matter(results: list[BranchCommit], random: object) -> None:
    shuffled = results.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = find_failing_row(results), find_failing_row(shuffled)
    assert (first and (first.number, first.since, first.first.order)) == (
        second and (second.number, second.since, second.first.order)
    )


def test_a_row_may_have_hundreds_of_commits() -> None:
    row = find_failing_row([result(1, "pass", 0), *(result(n, "fail", n) for n in range(2, 902))])
    assert row is not None
    assert (row.number, row.since) == (900, START + timedelta(minutes=2))
