"""Adversarial histories: no regression is explained with high confidence, and no failure that may be on the base is new.

A verdict of high confidence may open a gate. Each history is one that a pull request's author, a backend with faulty
reports, or chance can produce, and in which the change of pull request 7 is to blame.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from crcr.decide.failures.fingerprint import MOST_FINGERPRINTS, fingerprint_failure
from crcr.decide.failures.history import BaseResult, RecordedFailure
from crcr.decide.failures.verdict import Confidence
from crcr.decide.jobs.report import FailedTest
from crcr.decide.statistics.window import ResultKind
from crcr.receive.callback.report_details import MAX_FAILED_TESTS
from support.failures.judged_failures import NOON, OTHER, OWN, base, flip, judge, kind, other, own

CI, NIGHTLY = ".github/workflows/ci.yml", ".github/workflows/nightly.yml"
BOTH = frozenset({OWN, OTHER})
MANY = frozenset(f"failure-{number}" for number in range(MOST_FINGERPRINTS))


def own_again(**facts: Any) -> RecordedFailure:
    """Return another failure of pull request 7."""
    return own(failure_id=2, run_id="2", **facts)


def failing(position: int | None, *, hours: float = -48, **facts: Any) -> BaseResult:
    values: dict[str, Any] = {
        "sha": f"base-{position}",
        "passed": False,
        "fingerprints": frozenset({OWN}),
    }
    return BaseResult(position=position, at=NOON + timedelta(hours=hours), **(values | facts))


def nights(
    positions: list[int | None], workflow: str = NIGHTLY, *, hours: float = -40
) -> tuple[BaseResult, ...]:
    return tuple(
        failing(at, nightly=True, workflow=workflow, hours=hours + index)
        for index, at in enumerate(positions)
    )


def as_ci(results: tuple[BaseResult, ...]) -> tuple[BaseResult, ...]:
    return tuple(replace(result, workflow=CI) for result in results)


REGRESSIONS: dict[str, tuple[RecordedFailure, Any, tuple[RecordedFailure, ...]]] = {
    "a reverted change lands again before the revert is tested": (own(), ".......FF ", ()),
    "the base was fixed in a gap before the head's commit": (own(), "...FF     .", ()),
    "the base was fixed and broken again around the head's commit": (own(), "......FF   FF", ()),
    "the head's commit failed once and passed once": (own(), base(".......FFFF") + base(".", 10), ()),
    "the merge base is older than the recorded order": (own(position=None), "........FF", ()),
    "a change landed and was reverted three times": (own(), "..F..F..F..", ()),
    "other pull requests fail and pass at will": (
        own(), "..........", tuple(other(number, passed_at=NOON) for number in range(1, 6))),
    "pull requests above it fail and pass": (
        own(), ".F........", tuple(other(number, passed_at=NOON, stacked_on=frozenset({7})) for number in (1, 2))),
    "pushes to another branch fail and pass": (own(), "..........", (flip(3, base_ref="mine"), flip(4, base_ref="mine"))),
    "merge groups that contain it fail and pass": (
        own(), "..........", (flip(3, on_branch=False), flip(4, on_branch=False))),
    "the flake came to the base after the head": (own(position=3), "....      ", (flip(4), flip(5), flip(6))),
    "a flake, and where the head was built is not known": (own(exact=False), "..........", (flip(3), flip(4))),
    "a known flake that fails in every run of this head": (own(), "..........", (flip(3), flip(4), own_again(attempt=2))),
    "a known flake that fails on every head": (own(), "..........", (flip(3), flip(4), own_again(head_sha="head-before"))),
    "one test is surely explained and another hardly": (
        own(fingerprints=BOTH), [*base(".F......", fingerprint=OTHER), failing(9), failing(10)], ()),
    "one test is on the base and another flaky": (
        own(fingerprints=BOTH), "........FF",
        (flip(3, fingerprints=frozenset({OTHER})), flip(4, fingerprints=frozenset({OTHER})))),
    "more ways to fail than are recorded": (
        own(fingerprints=MANY), [failing(at, fingerprints=MANY) for at in (9, 10)], ()),
    "the nights run it in another way": (
        own(workflow=CI), as_ci(base(".....     .")) + nights([6, 7, 8, 9, 10]), ()),
    "the nights come and go between passes": (own(workflow=CI), as_ci(base("..........")) + nights([3, 5, 7]), ()),
    "only the nights test the base": (own(workflow=CI), nights([9, 10]), ()),
    "later nights of commits that nobody named": (own(), nights([None, None], "", hours=1), ()),
}  # fmt: skip


@pytest.mark.parametrize(("failure", "states", "others"), REGRESSIONS.values(), ids=REGRESSIONS)
def test_no_history_explains_a_regression_with_high_confidence(
    failure: RecordedFailure, states: Any, others: tuple[RecordedFailure, ...]
) -> None:
    assert judge(failure, states, *others).verdict.confidence is not Confidence.HIGH


@pytest.mark.parametrize(
    ("failure", "states", "others", "expected"),
    [
        (own(), "........FF", (), "pre-existing"),
        (own(), "........ F F", (), "pre-existing"),
        (own(workflow=CI), as_ci(base("........FF")) + nights([6]), (), "pre-existing"),
        (own(), nights([9, 10], ""), (), "pre-existing"),
        (own(fingerprints=BOTH), [failing(9, fingerprints=BOTH), failing(10, fingerprints=BOTH)], (), "pre-existing"),
        (own(kind=ResultKind.PUSH, number=None, author=None), "........FF", (), "pre-existing"),
        (own(), ".F........", (flip(4),), "flaky"),
        (own(passed_at=NOON), ".F........", (flip(4), own_again(passed_at=NOON)), "flaky"),
    ],
)  # fmt: skip
def test_an_explanation_that_the_base_shows_has_high_confidence(
    failure: RecordedFailure, states: Any, others: tuple[RecordedFailure, ...], expected: str
) -> None:
    assert kind(judge(failure, states, *others)) == (expected, "high")


def late(*positions: int) -> list[BaseResult]:
    return [failing(position, hours=1) for position in positions]


NOT_NEW: dict[str, tuple[RecordedFailure, Any, tuple[RecordedFailure, ...], str]] = {
    "the base was fixed, and where the head was built is not known": (
        own(exact=False), "..FFFF....", (), "unknown"),
    "the base tells how it fails at the head's commit, and this job does not": (
        own(fingerprints=frozenset()), base(".........F"), (), "unknown"),
    "the base fails in more ways than are recorded": (
        own(), base("...") + tuple(failing(at, fingerprints=MANY) for at in (8, 9, 10)), (), "unknown"),
    "the base failed before the results that are read": (
        own(position=3), base("......", first=20),
        (flip(2, passed_at=None, at=NOON - timedelta(days=9)), flip(3, passed_at=None, at=NOON - timedelta(days=9))), "unknown"),
    "the result of the commit below a merge group comes after the group's": (
        own(kind=ResultKind.PUSH, number=None, author=None, head_sha="group"),
        [*base("......"), *late(10)], (), "pre-existing"),
}  # fmt: skip


@pytest.mark.parametrize(("failure", "states", "others", "expected"), NOT_NEW.values(), ids=NOT_NEW)
def test_a_failure_that_may_be_on_the_base_is_not_new(
    failure: RecordedFailure, states: Any, others: tuple[RecordedFailure, ...], expected: str
) -> None:
    assert kind(judge(failure, states, *others, pulls_passed=9))[0] == expected


def test_a_base_that_always_fails_in_another_way_leaves_a_failure_new() -> None:
    assert kind(judge(own(), base("FFFFFFFFFF", fingerprint=OTHER)))[0] == "new"


@pytest.mark.parametrize("name", ["test_hidden", " ", "\u2003"])
def test_no_failed_test_of_a_report_is_left_out(name: str) -> None:
    tests = [
        FailedTest(f"test_{number}", None, "kernel is missing") for number in range(MAX_FAILED_TESTS - 1)
    ]
    fingerprints = fingerprint_failure([*tests, FailedTest(name, None, "weights are lost")])
    assert len(fingerprints.distinct) == 2


def test_a_long_line_is_truncated_without_the_parts_that_differ_between_runs() -> None:
    def fingerprint(folder: str, count: int) -> str | None:
        words = " ".join(f"operand {number * count} of kernel" for number in range(40))
        return fingerprint_failure([FailedTest("test_a", None, f"{folder}/kernel.py: {words}")]).fingerprint

    assert fingerprint("/opt/a/b", 1) == fingerprint("/home/runner/work/_temp/2026-11-10", 10**6)
