"""Commits of a branch keep the order of its pushes, whatever the order of the webhooks."""

from itertools import permutations

import pytest

from crcr.decide.failures.history import Push, order_pushes

PUSHES = (Push("a", ("b",)), Push("b", ("c", "d")), Push("d", ("e",)), Push("e", ("f",)))


def ordered(*pushes: Push) -> str:
    return "".join(sha for push in order_pushes(pushes) for sha in push.commits)


@pytest.mark.parametrize("arrived", list(permutations(PUSHES)))
def test_webhooks_in_any_order_give_the_order_of_the_pushes(arrived: tuple[Push, ...]) -> None:
    assert ordered(*arrived) == "bcdef"


def test_pushes_with_a_gap_between_them_keep_their_order_of_arrival() -> None:
    assert ordered(Push("a", ("b",)), Push("x", ("y",)), Push("b", ("c",))) == "bcy"


def test_a_force_push_back_to_an_old_commit_loses_no_push() -> None:
    assert sorted(ordered(Push("a", ("b",)), Push("b", ("a",)), Push("a", ("c",)))) == ["a", "b", "c"]
