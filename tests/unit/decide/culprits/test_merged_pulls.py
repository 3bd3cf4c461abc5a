"""The pull requests of the base's commits."""

import pytest

from crcr.decide.culprits.merged_pulls import BaseCommit, assign_pulls, group_by_pull


def commit(sha: str, title: str = "Update", number: int | None = None, pushed_on: str = "z") -> BaseCommit:
    return BaseCommit(sha=sha, position=ord(sha), title=title, number=number, pushed_on=pushed_on)


def numbers(*commits: BaseCommit, merged_as: dict[str, int] | None = None) -> list[int | None]:
    return [assigned.number for assigned in assign_pulls(commits, merged_as or {})]


MERGE = "Merge pull request #7 from ada/fuse"


@pytest.mark.parametrize(
    ("commits", "merged_as", "expected"),
    [
        ((commit("a", number=1), commit("b"), commit("c", number=2)), {}, [1, None, 2]),
        ((commit("a"), commit("b"), commit("c", MERGE, 7)), {}, [7, 7, 7]),
        ((commit("a"), commit("b"), commit("c")), {"c": 7}, [7, 7, 7]),
        ((commit("a", pushed_on="y"), commit("b"), commit("c")), {"c": 7}, [None, 7, 7]),
        ((commit("a"), commit("b", number=3), commit("c")), {"c": 7}, [None, 3, 7]),
        ((commit("a", number=3),), {"a": 7}, [7]),
    ],
    ids=[
        "squashed",
        "merge commit",
        "rebased",
        "other push",
        "not across another change",
        "recorded merge wins",
    ],
)
def test_commits_are_assigned_to_their_pull_requests(
    commits: tuple[BaseCommit, ...], merged_as: dict[str, int], expected: list[int | None]
) -> None:
    assert numbers(*commits, merged_as=merged_as) == expected
    assert numbers(*reversed(commits), merged_as=merged_as) == expected


def test_the_commits_of_a_pull_request_are_one_change() -> None:
    changes = group_by_pull(assign_pulls([commit("a"), commit("b", MERGE, 7), commit("c"), commit("d")], {}))
    assert ["".join(one.sha for one in change) for change in changes] == ["ab", "c", "d"]
