"""Verdicts on failures: each rule with histories that just satisfy it, and with histories that must not."""

from datetime import timedelta

import pytest

from crcr.decide.failures.history import BackendHour, BaseResult, FailedAs, PullPass, RecordedFailure
from crcr.decide.failures.verdict import Confidence, VerdictKind
from support.failures.judged_failures import NOON, OTHER, OWN, base, flip, judge, kind, other, own


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("..........", ("new", "medium")),
        ("........FF", ("pre-existing", "high")),
        (".........F", ("pre-existing", "medium")),
        (".........FF", ("pre-existing", "high")),
        (".......FF.", ("flaky", "low")),
        ("..........FF", ("new", "medium")),
        (".........  F", ("pre-existing", "medium")),
        (".F.F.F....", ("flaky", "medium")),
        (".F..F.....", ("flaky", "medium")),
        (".F.F.F...F", ("flaky", "medium")),
        (".F....FFFF", ("pre-existing", "medium")),
        ("FFFFFFFFFF", ("pre-existing", "high")),
        ("..", ("unknown", "low")),
        ("", ("unknown", "low")),
    ],
)
def test_the_base_at_the_merge_base_decides(states: str, expected: tuple[str, str]) -> None:
    assert kind(judge(None, states)) == expected


def test_a_failure_that_landed_after_the_head_branched_off_does_not_explain_it() -> None:
    assert kind(judge(own(position=5), "......FFFF")) == ("new", "medium")
    assert kind(judge(own(position=8), "......FFFF")) == ("pre-existing", "high")


def test_another_failure_of_the_base_does_not_explain_this_one() -> None:
    assert kind(judge(own(), base("......") + base("FFFF", 7, OTHER))) == ("new", "medium")


def test_without_the_merge_base_no_verdict_has_high_confidence() -> None:
    assert kind(judge(own(exact=False), "........FF")) == ("pre-existing", "medium")


def test_base_failures_after_the_change_has_landed_do_not_explain_it() -> None:
    later = tuple(
        BaseResult(
            sha="x",
            position=11 + n,
            at=NOON + timedelta(hours=n + 1),
            passed=False,
            fingerprints=frozenset({OWN}),
        )
        for n in range(4)
    )
    assert kind(judge(own(landed=True), base("..........") + later)) == ("new", "medium")


def test_a_passed_rerun_makes_a_failure_flaky_but_not_with_high_confidence_by_itself() -> None:
    failure = own(passed_at=NOON + timedelta(hours=1))
    assert kind(judge(failure, "..........")) == ("flaky", "medium")
    assert kind(judge(failure, ".F..F.....")) == ("flaky", "medium")
    assert kind(judge(failure, ".F........", flip(4))) == ("flaky", "high")


def test_a_rerun_that_failed_again_gives_a_new_failure_high_confidence() -> None:
    rerun = own(failure_id=2, attempt=2)
    assert kind(judge(own(), "..........", rerun)) == ("new", "high")


def test_passed_reruns_elsewhere_make_a_failure_flaky() -> None:
    on_pulls = [other(number, passed_at=NOON) for number in (3, 4)]
    assert kind(judge(own(), "..........", *on_pulls)) == ("flaky", "medium")
    assert kind(judge(own(), "..........", flip(3), flip(4))) == ("flaky", "high")


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([other(1), other(2), other(3)], ("pre-existing", "medium")),
        ([other(1, exact=False), other(2, exact=False), other(3, exact=False)], ("pre-existing", "medium")),
        ([other(1, exact=False, trusted=False), other(2, exact=False, trusted=False), other(3, None)], ("unknown", "low")),
        ([other(1, author="ada"), other(2, author="ada"), other(3, author="ada")], ("new", "medium")),
        ([other(1, stacked_on=frozenset({7})), other(2, stacked_on=frozenset({7})), other(3, stacked_on=frozenset({7}))], ("new", "medium")),
        ([other(1, head_sha="head-7"), other(2, head_sha="head-7")], ("new", "medium")),
        ([other(1, base_ref="release"), other(2, base_ref="release")], ("new", "medium")),
    ],
)  # fmt: skip
def test_a_backend_without_pushes_is_judged_by_unrelated_pull_requests(
    others: list[RecordedFailure], expected: tuple[str, str]
) -> None:
    assert kind(judge(own(), "", *others, pulls_passed=5)) == expected


def test_pull_requests_that_pass_between_failing_ones_make_a_failure_flaky() -> None:
    passes = tuple(
        PullPass(20 + n, f"head-{20 + n}", n, NOON - timedelta(hours=30 - n)) for n in range(4, 13)
    )
    others = [other(1, 4), other(2, 6), other(3, 8)]
    assert kind(judge(own(), "", *others, pull_passes=passes, pulls_passed=9))[0] == "flaky"


def test_a_job_has_the_verdict_of_its_worst_test() -> None:
    judgement = judge(own(fingerprints=frozenset({OWN, OTHER})), base("........FF", fingerprint=OTHER))
    assert judgement.verdict.kind is VerdictKind.NEW
    assert {fingerprint: kind.value for fingerprint, kind, _ in judgement.by_fingerprint} == {
        OWN: "new",
        OTHER: "pre-existing",
    }


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (FailedAs.TIMED_OUT, "infrastructure"),
        (FailedAs.CANCELLED, "infrastructure"),
        (FailedAs.SILENT, "missing"),
    ],
)
def test_a_job_without_a_result_of_its_own_says_nothing_about_the_change(
    ended: FailedAs, expected: str
) -> None:
    assert kind(judge(own(ended=ended), "FFFFFFFFFF")) == (expected, "medium")


def sick(*heads: int, fingerprint: str = OWN) -> tuple[RecordedFailure, ...]:
    """Return two failures on each head at the same time."""
    return tuple(
        other(number, failure_id=1_000 + 2 * number + job, at=NOON, fingerprints=frozenset({fingerprint}))
        for number in heads
        for job in range(2)
    )


@pytest.mark.parametrize(
    ("failed", "passed", "expected"),
    [
        (sick(1, 2, 3), 0, "infrastructure"),
        (sick(1, 2, 3), 9, "new"),
        (sick(1), 0, "new"),
        (sick(7), 0, "new"),
        (sick(1, 2, 3, fingerprint=OTHER), 0, "new"),
    ],
)
def test_a_fleet_is_sick_when_most_of_its_jobs_fail_alike_on_unrelated_commits(
    failed: tuple[RecordedFailure, ...], passed: int, expected: str
) -> None:
    hour = BackendHour(failed=(own(), *failed), passed=passed)
    assert kind(judge(own(), "............", hour=hour))[0] == expected


def test_a_base_that_fails_at_other_times_too_is_broken_and_not_sick() -> None:
    hour = BackendHour(failed=(own(), *sick(1, 2, 3)), passed=0)
    assert kind(judge(own(), "......FFFF", hour=hour))[0] == "pre-existing"


def test_a_failure_without_details_never_has_high_confidence() -> None:
    """The same job may fail for another reason: nothing in the report distinguishes the two."""
    plain = own(fingerprints=frozenset())
    for states in (".F.F.F....", "......FFFF", "FFFFFFFFFF", ".F.F.F...F"):
        results = [
            BaseResult(sha=result.sha, position=result.position, at=result.at, passed=result.passed)
            for result in base(states)
        ]
        assert judge(plain, results).verdict.confidence is not Confidence.HIGH


def test_every_verdict_has_a_sentence_and_links_to_its_evidence() -> None:
    verdict = judge(own(), "........FF").verdict
    assert (
        verdict.sentence
        == "The base failed alike 2 times in a row, last at the commit that this was built on."
    )
    assert [one.sha for one in verdict.evidence] == ["base-10", "base-9"]
