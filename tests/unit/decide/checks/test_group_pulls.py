"""The pull requests of a merge group, by the queued pull requests that its commits belong to."""

import pytest

from crcr.decide.dispatch.plan import pulls_in_group


@pytest.mark.parametrize(
    ("named", "brought", "numbers"),
    [
        (1, [], (1,)),
        (1, [{1}], (1,)),
        (2, [{1}, {1, 2}], (1, 2)),
        (2, [{2}, set()], ()),
        (None, [{1}], ()),
    ],
    ids=["a squash", "its own commits", "two", "nobody queued has brought one", "no name"],
)
def test_a_commit_that_nobody_queued_has_brought_makes_the_group_unknown(
    named: int | None, brought: list[set[int]], numbers: tuple[int, ...]
) -> None:
    assert pulls_in_group(named, map(frozenset, brought)) == numbers
