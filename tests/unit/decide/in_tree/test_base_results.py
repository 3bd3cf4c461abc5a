"""In-tree checks along the commits of a branch: which turned red, and when a failure on a pull request is evidence."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.in_tree.base_results import (
    CheckedCommit,
    OnBase,
    TurnedRed,
    clear_results,
    compare_with_base,
    find_turned_red,
    find_unexplained_failures,
    red_since,
)
from crcr.decide.in_tree.checks import CheckKey, describe_names

START = datetime(2026, 8, 3, tzinfo=UTC)
KEY: CheckKey = (15_368, "linux / test")
COURSES = st.text(alphabet="+x.", max_size=14)
"""For each commit in turn: the check passed (+), failed (x), or has no result (.)."""


def commits(*courses: str) -> tuple[CheckedCommit, ...]:
    """Commits from position 1 on, with the courses of check 0, 1 and so on."""
    keys = [KEY, *((15_368, f"other {number}") for number in range(1, len(courses)))]
    return tuple(
        CheckedCommit(
            position,
            f"{position:040x}",
            START + timedelta(hours=position),
            {
                key: course[position - 1] == "+"
                for key, course in zip(keys, courses, strict=True)
                if course[position - 1] != "."
            },
        )
        for position in range(1, len(courses[0]) + 1)
    )


@pytest.mark.parametrize(
    ("conclusion", "is_pass"),
    [
        *(("success", True), ("failure", False), ("timed_out", False), ("error", False)),
        *((word, None) for word in ("skipped", "neutral", "cancelled", "stale", "action_required")),
        *((word, None) for word in ("startup_failure", "a later word of GitHub", None)),
    ],
)
def test_only_a_result_of_the_tested_code_is_clear(conclusion: str | None, is_pass: bool | None) -> None:
    assert clear_results([(KEY, conclusion)]).get(KEY) is is_pass


@pytest.mark.parametrize(
    ("course", "turned_red"),
    [
        ("++xx", (2, 3, 2)),
        ("++.x.x", (2, 4, 2)),
        ("+x", (1, 2, 1)),
        ("++xxx+", (2, 3, 3)),
        ("++x+", None),
        ("++x+xxx", None),
        ("xxxx", None),
        ("x++xx", None),
        ("....", None),
        ("++++", None),
        ("..xx", None),
        ("", None),
    ],
)
def test_a_check_turned_red_if_it_passed_and_then_fails_and_never_failed_before(
    course: str, turned_red: tuple[int, int, int] | None
) -> None:
    expected = (TurnedRed(KEY, *turned_red),) if turned_red else ()
    assert find_turned_red(commits(course)) == expected


def test_a_check_that_is_red_on_most_commits_hides_no_other() -> None:
    turned_red = find_turned_red(commits("xxx+xxx", "++++xxx", "+.+.+.x"))
    assert [(check.name, check.good, check.bad, check.is_lasting) for check in turned_red] == [
        ("other 1", 4, 5, True),
        ("other 2", 5, 7, False),
    ]


@given(COURSES)
def test_a_check_that_turned_red_passed_at_its_good_commit_and_failed_at_its_bad_one(course: str) -> None:
    for check in find_turned_red(commits(course)):
        assert course[check.good - 1] + course[check.bad - 1] == "+x"
        assert set(course[check.good : check.bad - 1]) <= {"."}
        assert "x" not in course[: check.good]


@pytest.mark.parametrize(
    ("newest_first", "on_base"),
    [
        ("+++++", OnBase.PASSED),
        ("x++++", OnBase.FAILED),
        ("+x+++", OnBase.PASSED),
        ("+xx++", OnBase.PASSED),
        ("+xx+", OnBase.FAILED),
        (".x...", OnBase.FAILED),
        (".....", None),
        ("", None),
    ],
)
def test_a_check_is_red_on_the_base_if_its_newest_result_or_half_of_all_failed(
    newest_first: str, on_base: OnBase | None
) -> None:
    assert compare_with_base(KEY, commits(newest_first)) is on_base


@pytest.mark.parametrize(
    ("course", "is_evidence"),
    [
        ("++..xx", True),
        ("++....", True),
        ("++..++", False),  # the base passed with the change
        ("x+..xx", False),  # it was red before
        ("xx..xx", False),
        ("......", False),  # it runs on pull requests only
        ("....xx", False),
    ],
)
def test_a_failure_on_a_pull_request_counts_if_the_base_had_it_green_and_does_not_contradict(
    course: str, is_evidence: bool
) -> None:
    names = find_unexplained_failures({KEY: False, (1, "passes"): True}, commits(course), position=4)
    assert names == (("linux / test",) if is_evidence else ())


@pytest.mark.parametrize(
    ("course", "first", "good"),
    [("+xxx", 2, 1), ("+x.x", 2, 1), ("+..x", 4, 1), ("xxxx", 1, None), ("x+xx", 3, 2)],
)
def test_a_check_is_red_since_the_first_failure_of_its_row(course: str, first: int, good: int | None) -> None:
    began, passed = red_since(KEY, commits(course))
    assert (began.position, passed.position if passed else None) == (first, good)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["linux / test"], "`linux / test`"),
        (["a", "b", "c"], "`a` (+2)"),
        (["a\n`<b>`\tc"], "`a '<b>' c`"),
        (["x" * 250], f"`{'x' * 79}…`"),
        ([" "], "``"),
    ],
)
def test_names_in_a_sentence_are_short_and_on_one_line(names: list[str], words: str) -> None:
    assert describe_names(names, "`") == words
