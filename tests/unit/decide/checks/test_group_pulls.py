"""The pull requests of a merge group, by the queued pull requests that its commits belong to."""

import pytest

from crcr.decide.dispatch.plan import pulls_in_group


@pytest.mark.parametrize(
    ("named_pull", "pulls_by_commit", "numbers"),
    [
        (1, [], (1,)),
        (1, [{1}], (1,)),
        (2, [{1}, {1, 2}], (1, 2)),
        (2, [{2}, set()], ()),
        (None, [{1}], ()),
    ],
    ids=["a squash", "its own commits", "two", "one of no queued pull request", "no name"],
)
def test_a_commit_of_no_queued_pull_request_makes_the_pulls_of_the_group_unknown(
    named_pull: int | None, pulls_by_commit: list[set[int]], numbers: tuple[int, ...]
) -> None:
    assert pulls_in_group(named_pull, map(frozenset, pulls_by_commit)) == numbers
