"""In-tree checks that are red on the base branch, each with the range of commits that broke it."""

import pytest

from crcr.decide.culprits.red_checks import find_red_checks
from unit.decide.in_tree.test_base_results import KEY, commits


def ranges(*courses: str) -> dict[str, tuple[int | None, int, int]]:
    return {
        name: (one.good.position if one.good else None, one.first_bad.position, one.bad.position)
        for (_, name), one in find_red_checks(commits(*courses)).items()
    }


@pytest.mark.parametrize(
    ("course", "expected"),
    [
        ("++xxx", (2, 3, 3)),
        ("+..x", (1, 4, 4)),
        ("++x..", (2, 3, 3)),
        ("xxxxx", (None, 1, 1)),
        ("+xx+x", (4, 5, 5)),
        ("+++x+", None),
        ("+++++", None),
        (".....", None),
        ("+x+x+++x", None),  # comes and goes
        ("+x+x+++xxx", (7, 8, 10)),  # and now lasts
    ],
)
def test_a_red_check_has_a_range_from_its_last_pass_to_its_first_failure(
    course: str, expected: tuple[int | None, int, int] | None
) -> None:
    assert ranges(course).get(KEY[1]) == expected


def test_a_check_that_no_longer_runs_is_not_red() -> None:
    assert ranges("+xx" + 20 * ".", 23 * "+") == {}
    assert ranges("+xx" + 17 * ".", 20 * "+") == {KEY[1]: (1, 2, 2)}


def test_red_checks_are_listed_by_name() -> None:
    assert list(ranges("+x", "xx", "+.")) == ["linux / test", "other 1"]
