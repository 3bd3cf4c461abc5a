"""The histories of `make bench-answers`: every scenario is recorded without a refusal, and a seed repeats them.

One history of each scenario is too few for the bars of docs/performance.md; what must never happen must not happen here.
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
def ask_culprits(seed: int, number: int, *, with_in_tree: bool = False) -> CulpritScore:
    return run_breakages(number, seed, Console(quiet=True), with_in_tree=with_in_tree)


def test_landed_breakages_are_asked_about_and_no_commit_that_passed_is_blamed() -> None:
    score = ask_culprits(SEED, 1)
    assert (score.refused, score.blamed_passes) == ([], 0)
    assert score.breakages >= 1


def test_in_tree_checks_change_the_order_of_candidates_and_not_the_range() -> None:
    without, beside = ask_culprits(SEED, 1), ask_culprits(SEED, 1, with_in_tree=True)
    assert (beside.refused, beside.blamed_passes) == ([], 0)
    assert [(one.place, one.culprit, one.candidates) for one in beside.questions] == [
        (one.place, one.culprit, one.candidates) for one in without.questions
    ]
    assert beside.red_checks_right == beside.red_checks > 0


def test_landed_breakages_are_bisected_and_no_commit_that_passed_is_blamed() -> None:
    score = run_bisections(1, SEED, Console(quiet=True))
    assert (score.refused, score.histories) == ([], 1)
    assert not any(one.blames_pass for one in score.judged)
    assert score.of(Difficulty.DETERMINISTIC)
    assert score.share_within(Difficulty.DETERMINISTIC, 1) == 1
