"""The range of a breakage: after the last clean commit, up to the first that shows the failure."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.culprits.commit_range import (
    BreakageRange,
    CommitResult,
    EarlierBreakage,
    count_chance_failures,
    find_breakages,
)

START = datetime(2026, 8, 3, tzinfo=UTC)


def result(position: int, ended: str, minute: int = 0, *, tests: int | None = None) -> CommitResult:
    """`ended` is `pass`, `sick`, or letters, each a fingerprint; `-` is a failure without details, `?` a flaky one."""
    marks = frozenset(ended.rstrip("?").strip("-")) if ended not in {"pass", "sick"} else frozenset[str]()
    flaky: frozenset[str | None] = (
        frozenset((*marks, *((None,) if not marks else ()))) if "?" in ended else frozenset()
    )
    return CommitResult(
        position=position,
        sha=f"{position:040x}",
        at=START + timedelta(minutes=minute),
        passed=ended == "pass",
        sick=ended == "sick",
        fingerprints=marks,
        tests=tests,
        flaky=flaky,
    )


def results(history: str) -> list[CommitResult]:
    """Results on the commits 1, 2, 3 …; `.` is an untested commit, `/` separates results of one commit."""
    words = [word.split("/") for word in history.split()]
    return [
        result(position, {"p": "pass", "s": "sick"}.get(ended, ended), position)
        for position, commit in enumerate(words, start=1)
        for ended in commit
        if ended != "."
    ]


Ranges = list[tuple[str, int | None, int, int]]


def ranges(breakages: tuple[BreakageRange, ...]) -> Ranges:
    """The failures, and the positions of the good, the first bad and the surely bad commit."""
    return [
        (
            "".join(mark or "-" for mark in breakage.fingerprints),
            breakage.good.position if breakage.good else None,
            breakage.first_bad.position,
            breakage.bad.position,
        )
        for breakage in breakages
    ]


HISTORIES: dict[str, tuple[str, Ranges]] = {
    "the next commit failed": ("p p A A", [("A", 2, 3, 3)]),
    "commits that nobody tested": ("p . . . A . A", [("A", 1, 5, 5)]),
    "it passed since": ("p A A p", []),
    "no pass is recorded": (". A A", [("A", None, 2, 2)]),
    "fixed and broken again": ("p A A A p p A A", [("A", 6, 7, 7)]),
    "another failure before, by chance, and gone when this one came": ("p B A A", [("A", 1, 3, 3)]),
    "another failure on top of it": ("p A AB? A", [("A", 1, 2, 2)]),
    "another failure at the end, by chance": ("p A A AB?", [("A", 1, 2, 2)]),
    "two breakages, one after the other": ("p A A AB AB", [("A", 1, 2, 2), ("B", 3, 4, 4)]),
    "two breakages, and the first was fixed": ("p A AB AB B", [("B", 2, 3, 3)]),
    "several tests broken by one change": ("p . ABC ABC", [("ABC", 1, 3, 3)]),
    "only failures by chance": ("p p A?", []),
    "twice in a row is no chance": ("p A? A?", [("A", 1, 2, 2)]),
    "unless it often is": ("p A? p A? p p A? p A? A?", []),
    "broken and fixed before": ("p A? A? p p A? A?", [("A", 5, 6, 6)]),
    "without details": ("p - -", [("-", 1, 2, 2)]),
    "without details at the end": ("p A A -", [("A", 1, 2, 2)]),
    "without details at first": ("p - A A", [("A", 1, 3, 3)]),
    "sick machines between": ("p s s A", [("A", 1, 4, 4)]),
    "sick machines at the end": ("p A A s", [("A", 1, 2, 2)]),
    "only sick machines": ("p s s", []),
    "another run of the commit passed": ("p A A/p A", [("A", 3, 4, 4)]),
    "another run of the first bad commit failed too": ("p A/A A", [("A", 1, 2, 2)]),
    "the failure came and went once before": ("p p p p p p p A p p . A A A", [("A", 10, 12, 13)]),
    "it comes in one of five runs": ("p A p p p A p p A p p p p A A A A A", [("A", 13, 14, 16)]),
    "it failed and passed on one commit": ("p p p/A p p . A . A", [("A", 5, 7, 9)]),
    "an earlier breakage that lasted says nothing about chance": ("p A A A A p . A A", [("A", 6, 8, 8)]),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_each_history_has_its_breakages_and_ranges(name: str) -> None:
    history, expected = HISTORIES[name]
    assert ranges(find_breakages(results(history))) == expected


def test_a_commit_with_another_failure_is_clean_if_as_many_tests_ran() -> None:
    broken = [result(1, "pass"), result(2, "B", tests=400), result(3, "A", tests=410)]
    assert ranges(find_breakages(broken)) == [("A", 2, 3, 3)]
    aborted = [result(1, "pass"), result(2, "B", tests=3), result(3, "A", tests=410)]
    (breakage,) = find_breakages(aborted)
    assert ranges((breakage,)) == [("A", 1, 3, 3)]
    assert breakage.failed_otherwise == (2,)


def test_earlier_breakages_with_the_same_failure_are_listed() -> None:
    (breakage,) = find_breakages(results("p . A A A p p A A A p . A"))
    assert breakage.earlier == (EarlierBreakage(7, 8, 11), EarlierBreakage(1, 3, 6))
    assert [breakage.earlier[0].explains(position) for position in (7, 8, 10, 11)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("history", "number"),
    [
        ("p p a a", 0),
        ("p a? p p", 1),
        ("p a p p", 0),
        ("p a/p p", 1),
        ("p a? a? p p", 0),
        ("p a? a? p p a? a?", 0),
        ("p a? p b? p p a?", 2),
    ],
)
def test_chance_failures_are_single_or_passed_on_the_same_commit(history: str, number: int) -> None:
    """A breakage that was fixed and came back is flaky for the verdict rules, but no chance failure."""
    assert count_chance_failures(results(history)) == number


def test_a_job_has_at_most_five_breakages() -> None:
    one_more_each_time = " ".join("ABCDEFGH"[:count] for count in range(1, 9))
    breakages = find_breakages(results(f"p {one_more_each_time}"))
    assert [mark for mark, *_ in ranges(breakages)] == ["A", "B", "C", "D", "E"]


RESULTS = st.lists(
    st.builds(
        result,
        st.integers(1, 15),
        st.sampled_from(["pass", "sick", "-", "A", "B", "AB", "A?", "ABC", "C"]),
        st.integers(0, 999),
        tests=st.sampled_from([None, 3, 400]),
    ),
    max_size=40,
)


@given(RESULTS)
def test_no_range_contains_a_commit_at_or_before_the_last_pass(history: list[CommitResult]) -> None:
    passed = max((result.position for result in history if result.passed), default=0)
    for breakage in find_breakages(history):
        assert breakage.first_bad.position > passed
        assert not any(breakage.contains(position) for position in range(1, passed + 1) if breakage.good)
        assert breakage.good is None or breakage.good.position >= passed


@given(RESULTS)
def test_the_first_bad_commit_shows_the_failure_and_the_range_ends_there_or_later(
    history: list[CommitResult],
) -> None:
    for breakage in find_breakages(history):
        assert all(breakage.first_bad.shows(mark) for mark in breakage.fingerprints)
        assert breakage.contains(breakage.first_bad.position)
        assert breakage.first_bad.position <= breakage.bad.position <= breakage.newest.position


@given(RESULTS, st.randoms())
def test_the_order_of_the_results_does_not_matter(history: list[CommitResult], random: object) -> None:
    shuffled = history.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert ranges(find_breakages(history)) == ranges(find_breakages(shuffled))
