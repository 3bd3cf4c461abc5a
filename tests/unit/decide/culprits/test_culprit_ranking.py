"""Candidates for a breakage: their order, scores and reasons."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.culprits.commit_range import BreakageRange, CommitResult, find_breakages
from crcr.decide.culprits.merged_pulls import BaseCommit
from crcr.decide.culprits.ranking import (
    CulpritCandidate,
    CulpritEvidence,
    InTreeEvidence,
    OtherRange,
    rank_candidates,
)
from crcr.decide.in_tree.base_results import TurnedRed

START = datetime(2026, 8, 3, tzinfo=UTC)
LAST_PASS, FIRST_BAD = 10, 15


def result(position: int, *marks: str) -> CommitResult:
    return CommitResult(
        position=position,
        sha=f"{position:040x}",
        at=START + timedelta(hours=position),
        passed=not marks,
        fingerprints=frozenset(marks),
    )


def find(*results: CommitResult) -> BreakageRange:
    (breakage,) = find_breakages(results)
    return breakage


BREAKAGE = find(result(LAST_PASS), result(FIRST_BAD, "A"), result(17, "A"))
COMMITS = tuple(
    BaseCommit(
        sha=f"{position:040x}",
        position=position,
        title=f"Change (#{100 + position})",
        number=100 + position,
        paths=(f"src/{position}.py",),
        path_count=1,
    )
    for position in range(1, 20)
)


def turned_red(*spans: tuple[int, int], failing: int = 2) -> CulpritEvidence:
    """Return evidence of in-tree checks `test 0`, `test 1` and so on that passed and failed at these positions."""
    checks = [TurnedRed((1, f"test {index}"), *span, failing) for index, span in enumerate(spans)]
    return CulpritEvidence(in_tree=InTreeEvidence(turned_red=tuple(checks)))


def rank(evidence: CulpritEvidence, breakage: BreakageRange = BREAKAGE) -> tuple[CulpritCandidate, ...]:
    return rank_candidates(breakage, COMMITS, evidence)


def numbers(candidates: tuple[CulpritCandidate, ...]) -> list[int | None]:
    return [candidate.number for candidate in candidates]


def test_without_evidence_all_changes_since_the_last_pass_are_candidates_the_nearest_first() -> None:
    ranked = rank(CulpritEvidence())
    assert numbers(ranked) == [115, 114, 113, 112, 111]
    assert sum(candidate.score for candidate in ranked) == pytest.approx(1, abs=0.01)
    assert ranked[0].reasons == ("one of 5 changes since the last pass: the first failing commit",)
    assert ranked[1].reasons == ("one of 5 changes since the last pass: 1 before the first failing commit",)


def test_the_only_change_is_the_culprit() -> None:
    (only,) = rank(CulpritEvidence(), find(result(14), result(15, "A")))
    assert (only.number, only.score, only.reasons) == (115, 1, ("the only change since the last pass",))


EVIDENCE: dict[str, tuple[CulpritEvidence, str]] = {
    "failed on it": (CulpritEvidence(failed_on={112: None}), "#112 was merged while this failed on it"),
    "failed alike elsewhere": (
        CulpritEvidence(failed_on={112: "org/x: build"}),
        "#112 was merged while org/x: build failed alike on it",
    ),
    "paths": (
        CulpritEvidence(globs=("src/12.*", "npu/**")),
        "touches src/12.py, one of the backend's paths",
    ),
    "file of the test": (
        CulpritEvidence(test_files=frozenset({"src/12.py"})),
        "touches src/12.py, where the failed test is",
    ),
    "other range": (
        CulpritEvidence(elsewhere=(OtherRange("org/x: build", 11, 12),)),
        "org/x: build began to fail alike around it",
    ),
    "between pull requests": (
        CulpritEvidence(pulls_passed_at=11, pulls_failed_at=12),
        "one of 5 changes since the last pass: 3 before the first failing commit",
    ),
    "landed again": (
        CulpritEvidence(came_with=frozenset({112})),
        "lands #112 again, which was there when this failure first came",
    ),
    "in-tree check turned red": (turned_red((11, 12)), "in-tree check `test 0` began to fail at it"),
    "in-tree check turned red on one commit": (
        turned_red((11, 12), failing=1),
        "in-tree check `test 0` began to fail at it",
    ),
    "in-tree checks turned red together": (
        turned_red((11, 12), (11, 12), (9, 15)),
        "in-tree check `test 0` (+1) began to fail at it",
    ),
    "in-tree check failed on it": (
        CulpritEvidence(in_tree=InTreeEvidence(failed_on={112: ("linux / test", "lint")})),
        "#112 was merged while in-tree check `linux / test` (+1) failed on it",
    ),
    "all others passed": (
        CulpritEvidence(passed_on=frozenset({111, 113, 114, 115})),
        "one of 5 changes since the last pass: 3 before the first failing commit",
    ),
}


@pytest.mark.parametrize("name", EVIDENCE)
def test_evidence_puts_a_change_first(name: str) -> None:
    evidence, reason = EVIDENCE[name]
    first, second, *_ = rank(evidence)
    assert (first.number, first.reasons[0]) == (112, reason)
    assert first.score > second.score


def test_a_failure_on_the_pull_request_outweighs_files() -> None:
    evidence = CulpritEvidence(
        failed_on={111: None},
        globs=("src/13.py",),
        test_files=frozenset({"src/13.py"}),
    )
    assert numbers(rank(evidence))[0] == 111


def test_a_failure_on_the_pull_request_outweighs_in_tree_checks() -> None:
    in_tree = InTreeEvidence(
        turned_red=(TurnedRed((1, "test"), 13, 14, 2),), failed_on={114: ("test",), 113: ("test",)}
    )
    assert numbers(rank(CulpritEvidence(in_tree=in_tree)))[:2] == [114, 113]
    assert numbers(rank(CulpritEvidence(failed_on={111: None}, in_tree=in_tree)))[0] == 111


def test_changes_that_may_have_turned_an_in_tree_check_red_share_its_weight() -> None:
    alone, shared = rank(turned_red((11, 12))), rank(turned_red((11, 14)))
    assert numbers(shared)[:3] == [114, 113, 112]
    assert shared[0].reasons[0] == "in-tree check `test 0` began to fail around it"
    assert shared[0].score < alone[0].score
    wide = rank(turned_red((2, 19)))
    assert numbers(wide) == numbers(rank(CulpritEvidence()))


def test_many_in_tree_checks_weigh_as_much_as_one() -> None:
    many = rank(turned_red(*((11, 12) for _ in range(300))))
    assert many[0].score == rank(turned_red((11, 12)))[0].score


def test_a_change_that_was_reverted_within_the_range_and_its_revert_come_last() -> None:
    reverted = [
        replace(commit, reverts=COMMITS[12].sha, title='Revert "Change (#113)"', number=None)
        if commit.position == 14
        else commit
        for commit in COMMITS
    ]
    ranked = rank_candidates(BREAKAGE, reverted, CulpritEvidence())
    assert set(numbers(ranked)[-2:]) == {113, None}
    assert any(
        "was reverted within the range" in reason for candidate in ranked for reason in candidate.reasons
    )


def test_a_revert_may_be_the_culprit() -> None:
    reverts = [
        replace(commit, title='Revert "Old (#50)" (#114)') if commit.position == 14 else commit
        for commit in COMMITS
    ]
    evidence = CulpritEvidence(failed_on={114: None}, came_with=frozenset({50}))
    assert numbers(rank_candidates(BREAKAGE, reverts, evidence))[0] == 114


def test_contradicting_pull_requests_have_no_effect() -> None:
    assert rank(CulpritEvidence(pulls_passed_at=14, pulls_failed_at=11)) == rank(CulpritEvidence())


def test_changes_after_a_first_failure_that_may_be_chance_are_candidates() -> None:
    history = [result(position) for position in range(1, 6)] + [result(6, "A"), result(7), result(9, "A")]
    breakage = find(*history, result(12, "A"), result(14, "A"))
    ranked = rank(CulpritEvidence(), breakage)
    assert set(numbers(ranked)) == set(range(108, 115))
    assert set(numbers(ranked)[:2]) == {108, 109}
    assert numbers(rank(CulpritEvidence(failed_on={111: None}), breakage))[0] == 111


def test_without_a_recorded_pass_only_changes_with_evidence_are_candidates() -> None:
    breakage = find(result(FIRST_BAD, "A"))
    assert rank(CulpritEvidence(), breakage) == ()
    assert numbers(rank(CulpritEvidence(failed_on={104: None}), breakage)) == [104]


@given(
    st.integers(1, 18),
    st.integers(1, 5),
    st.dictionaries(st.integers(101, 119), st.sampled_from([None, "org/x: build"])),
    st.frozensets(st.integers(101, 119)),
    st.one_of(st.none(), st.integers(1, 19)),
)
def test_no_evidence_makes_a_passed_commit_a_candidate(
    good: int, after: int, failed_on: dict[int, str | None], passed_on: frozenset[int], passed_at: int | None
) -> None:
    bad = min(good + after, 19)
    breakage = find(result(good), result(bad, "A"))
    evidence = CulpritEvidence(failed_on=failed_on, passed_on=passed_on, pulls_passed_at=passed_at)
    ranked = rank(evidence, breakage)
    assert sorted(numbers(ranked), key=str) == list(range(101 + good, 101 + bad))
    assert all(0 <= candidate.score <= 1 for candidate in ranked)
