"""The histories of `make bench-answers`: every scenario is recorded without a refusal, and a seed repeats them."""

import pytest
from bench.answers.culprit_score import CulpritScore, run_breakages
from bench.answers.run import run_histories
from bench.answers.scenarios import SCENARIOS
from rich.console import Console

SEED = 18


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_is_recorded_without_a_refused_webhook_or_callback(scenario: str) -> None:
    score = run_histories([0], SEED, scenario)
    assert score.refused == []
    assert score.histories == 1


def test_a_seed_repeats_its_histories() -> None:
    first, second, other = (
        run_histories(range(2), seed, "few-data").judged for seed in (SEED, SEED, SEED + 1)
    )
    assert first == second
    assert first
    assert first != other


def ask_culprits(seed: int) -> CulpritScore:
    return run_breakages(3, seed, Console(quiet=True))


def test_landed_breakages_are_asked_about_and_no_commit_that_passed_is_blamed() -> None:
    score = ask_culprits(SEED)
    assert (score.refused, score.blamed_passes) == ([], 0)
    assert score.breakages >= 3
    assert score.questions == ask_culprits(SEED).questions
