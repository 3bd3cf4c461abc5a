"""In-tree checks: in any order and with any repeats, the newest check of each App and name counts."""

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crcr.decide.in_tree.checks import (
    Counts,
    InTreeCheck,
    Outcome,
    change_counts,
    shorten_name,
)
from crcr.decide.in_tree.packing import find_packed, pack_checks, unpack_checks
from support.github.simulated_ci import OUTCOMES, SimulatedCi


def a_check(
    check_id: int = 1, conclusion: str | None = None, *, ended_at: int | None = None, url: str | None = None
) -> InTreeCheck:
    return InTreeCheck(7, "build", check_id, ended_at, conclusion, url)


@pytest.mark.parametrize("conclusion", OUTCOMES)
def test_a_check_has_passed_only_if_github_accepts_its_conclusion(conclusion: str | None) -> None:
    assert a_check(conclusion=conclusion).outcome is OUTCOMES[conclusion]


NEWER = {
    "another run of the name": (a_check(1, "failure", ended_at=9), a_check(2)),
    "it has ended": (a_check(1), a_check(1, "success", ended_at=9)),
    "it ended once more": (a_check(1, "failure", ended_at=9), a_check(1, "success", ended_at=10)),
    "the same second: the worse one": (a_check(1, "success", ended_at=9), a_check(1, "failure", ended_at=9)),
}


@pytest.mark.parametrize("case", NEWER)
def test_the_newer_check_replaces_the_older_one_and_never_vice_versa(case: str) -> None:
    older, newer = NEWER[case]
    assert newer.is_newer_than(older)
    assert not older.is_newer_than(newer)
    assert change_counts(newer, older) is None
    assert change_counts(newer, newer) is None


def test_a_rerun_replaces_the_failure_with_a_running_check() -> None:
    assert change_counts(None, a_check(1, "failure")) == Counts(failed=1)
    assert change_counts(a_check(1, "failure"), a_check(2)) == Counts(failed=-1, running=1)
    assert change_counts(a_check(1), a_check(1, "success")) == Counts(passed=1, running=-1)


def test_a_commit_has_the_outcome_of_its_worst_check() -> None:
    assert Counts(5, 1, 2).outcome is Outcome.FAILED
    assert Counts(5, 0, 2).outcome is Outcome.RUNNING
    assert Counts(5).outcome is Outcome.PASSED
    assert Counts().outcome is None


def test_long_names_are_shortened_and_stay_distinct() -> None:
    assert shorten_name("x" * 250) == "x" * 250
    cut = {shorten_name("x" * 400 + end) for end in ("a", "b")}
    assert len(cut) == 2
    assert {len(name) for name in cut} == {250}


def count_in_order(checks: Iterable[InTreeCheck]) -> tuple[dict[tuple[int, str], InTreeCheck], Counts]:
    """Count checks as the relay does: one by one, against the known check of their key."""
    known: dict[tuple[int, str], InTreeCheck] = {}
    counts = Counts()
    for check in checks:
        change = change_counts(known.get(check.key), check)
        if change is not None:
            known[check.key] = check
            counts = counts.add(change)
    return known, counts


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), actions=st.integers(0, 120))
def test_any_order_with_repeats_gives_the_final_state_of_the_ci(seed: int, actions: int) -> None:
    ci = SimulatedCi(Random(seed), names=7)
    ci.act(actions)
    assert count_in_order(ci.shuffled()) == (ci.last, ci.count())


def test_a_hundred_thousand_webhooks_in_any_order_give_the_counts_of_the_ci() -> None:
    ci = SimulatedCi(Random(19), names=500)
    ci.act(67_000)
    arriving = ci.shuffled()
    assert len(arriving) > 100_000
    assert count_in_order(arriving) == (ci.last, ci.count())


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_packed_checks_can_be_unpacked_found_and_compared_with_later_ones(seed: int) -> None:
    ci = SimulatedCi(Random(seed), names=7)
    ci.act(60)
    known, _ = count_in_order(ci.sent)
    packed = pack_checks(known.values())
    kept = {
        key: check if check.outcome is Outcome.FAILED else check._replace(url=None)
        for key, check in known.items()
    }
    assert {check.key: check for check in unpack_checks(packed)} == kept
    assert all(find_packed(packed, key) == check for key, check in kept.items())
    assert find_packed(packed, (9, "build")) is None
    assert all(change_counts(find_packed(packed, check.key), check) is None for check in ci.sent)


def test_an_empty_set_of_checks_can_be_packed_and_unpacked() -> None:
    assert list(unpack_checks(pack_checks([]))) == []
    assert list(unpack_checks(None)) == []


def test_five_hundred_packed_checks_need_a_few_kilobytes() -> None:
    random = Random(1)
    names = [
        f"linux-jammy-py3.{minor} / test (default, {shard}, 50)" for minor in range(10) for shard in range(50)
    ]
    checks = [
        InTreeCheck(
            15368,
            name,
            48_000_000_000 + 37 * number,
            1_780_000_000 + random.randint(0, 9_000),
            "success",
            "u" * 90,
        )
        for number, name in enumerate(names)
    ]
    assert len(pack_checks(checks)) < 6_000
