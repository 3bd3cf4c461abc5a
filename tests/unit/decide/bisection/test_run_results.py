"""Classification of a bisection's run against the failure that is bisected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.bisection.run_results import BisectedJob, TargetFailure, choose_target, classify_run
from crcr.decide.bisection.search import RunResult
from crcr.decide.model import Conclusion, JobState

OURS, OTHER, THIRD = "ours", "other", "third"
TARGET = TargetFailure(frozenset({OURS}), tests=100, beside=frozenset({OURS, OTHER}))
WITHOUT_DETAILS = TargetFailure(frozenset())
MARKS = st.frozensets(st.sampled_from((OURS, OTHER, THIRD)))


def passed(**more: object) -> BisectedJob:
    return BisectedJob(state=JobState.COMPLETED, conclusion=Conclusion.SUCCESS, **more)  # type: ignore[arg-type]


def failed(*fingerprints: str, tests: int | None = None) -> BisectedJob:
    return BisectedJob(
        state=JobState.COMPLETED,
        conclusion=Conclusion.FAILURE,
        fingerprints=frozenset(fingerprints),
        tests=tests,
    )


@pytest.mark.parametrize(
    ("job", "target", "result"),
    [
        (passed(), TARGET, RunResult.PASSED),
        (passed(), WITHOUT_DETAILS, RunResult.PASSED),
        (failed(OURS), TARGET, RunResult.FAILED),
        (failed(OURS, THIRD), TARGET, RunResult.FAILED),
        (failed(), TARGET, RunResult.FAILED_OTHERWISE),
        (failed(THIRD), TARGET, RunResult.FAILED_OTHERWISE),
        (failed(THIRD, tests=89), TARGET, RunResult.FAILED_OTHERWISE),
        (failed(THIRD, tests=90), TARGET, RunResult.PASSED),
        (failed(OTHER), TARGET, RunResult.PASSED),
        (failed(), WITHOUT_DETAILS, RunResult.FAILED),
        (failed(OTHER), WITHOUT_DETAILS, RunResult.FAILED_OTHERWISE),
        (
            BisectedJob(state=JobState.COMPLETED, conclusion=Conclusion.CANCELLED),
            TARGET,
            RunResult.NO_RESULT,
        ),
    ],
)
def test_a_run_is_classified_against_the_target_failure(
    job: BisectedJob, target: TargetFailure, result: RunResult
) -> None:
    assert classify_run(job, target, is_over=False) is result


@pytest.mark.parametrize("job", [None, BisectedJob(state=JobState.IN_PROGRESS)])
def test_a_run_without_a_result_is_awaited_until_it_is_over(job: BisectedJob | None) -> None:
    assert classify_run(job, TARGET, is_over=False) is None
    assert classify_run(job, TARGET, is_over=True) is RunResult.NO_RESULT


@given(recorded=MARKS, shown=MARKS, run_marks=MARKS, tests=st.none() | st.integers(0, 200))
def test_the_bad_end_always_shows_the_target_failure(
    recorded: frozenset[str], shown: frozenset[str], run_marks: frozenset[str], tests: int | None
) -> None:
    """Otherwise a bad end that fails would be skipped, or called good."""
    bad_end = failed(*shown, tests=tests)
    target = choose_target(recorded, [bad_end])
    assert classify_run(bad_end, target, is_over=True) is RunResult.FAILED
    if run_marks & target.fingerprints:
        assert classify_run(failed(*run_marks), target, is_over=True) is RunResult.FAILED


@given(recorded=MARKS, shown=MARKS)
def test_the_recorded_failure_is_the_target_while_the_bad_end_shows_it(
    recorded: frozenset[str], shown: frozenset[str]
) -> None:
    target = choose_target(recorded, [failed(*shown)])
    assert target.fingerprints == (recorded if recorded & shown else shown)


def test_the_recorded_failure_stays_the_target_until_the_bad_end_fails() -> None:
    recorded = frozenset({OURS})
    for bad_end in ([], [passed()], [BisectedJob(state=JobState.IN_PROGRESS)]):
        assert choose_target(recorded, bad_end).fingerprints == recorded
