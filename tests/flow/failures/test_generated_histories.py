"""The histories of `make bench-answers`: every scenario is recorded without a refusal, and a seed reproduces them.

One history of each scenario is too few for the thresholds of docs/performance.md; errors that must never occur are asserted here.
"""

from functools import cache

import pytest
from bench.answers.bisections.score import Difficulty, run_bisections
from bench.answers.culprit_score import CulpritScore, run_breakages
from bench.answers.run import run_histories
from bench.answers.scenarios import SCENARIOS
from rich.console import Console

SEED = 18
_ACCURACY = 0.75


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_is_recorded_and_no_verdict_misleads(scenario: str) -> None:
    score = run_histories([0], SEED, scenario)
    assert (score.refused, score.histories) == ([], 1)
    assert (score.wrong_excuses(), score.undecidable_excuses()) == (0, 0)
    assert (score.false_new(), score.regressions_called_otherwise()) == (0, 0)
    assert score.precision_at_high() == 1
    assert score.accuracy() >= _ACCURACY


def test_a_seed_repeats_its_histories() -> None:
    first, second, other = (
        run_histories(range(2), seed, "few-data").judged for seed in (SEED, SEED, SEED + 1)
    )
    assert first == second
    assert first
    assert first != other


@cache
def score_culprits(seed: int, number: int, *, with_in_tree: bool = False) -> CulpritScore:
    return run_breakages(number, seed, Console(quiet=True), with_in_tree=with_in_tree)


def test_culprits_of_landed_breakages_never_include_a_commit_that_passed() -> None:
    score = score_culprits(SEED, 1)
    assert (score.refused, score.blamed_passes) == ([], 0)
    assert score.breakages >= 1


def test_in_tree_checks_change_the_order_of_candidates_and_not_the_range() -> None:
    without, with_checks = score_culprits(SEED, 1), score_culprits(SEED, 1, with_in_tree=True)
    assert (with_checks.refused, with_checks.blamed_passes) == ([], 0)
    assert [
        (question.place, question.culprit, question.candidates) for question in with_checks.questions
    ] == [(question.place, question.culprit, question.candidates) for question in without.questions]
    assert with_checks.red_checks_right == with_checks.red_checks > 0


def test_bisections_of_landed_breakages_never_blame_a_commit_that_passed() -> None:
    score = run_bisections(1, SEED, Console(quiet=True))
    assert (score.refused, score.histories) == ([], 1)
    assert not any(bisection.blames_pass for bisection in score.judged)
    assert score.of(Difficulty.DETERMINISTIC)
    assert score.share_within(Difficulty.DETERMINISTIC, 1) == 1
