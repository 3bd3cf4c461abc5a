"""Ten minutes of the demo in simulated time: nothing waits for GitHub's rate limits, and no effect starves."""

from pathlib import Path

import pytest
from bench.github_budget.demo_hours import run_demo
from bench.github_budget.figures import BUDGET, LATEST_GATE_S, OLDEST_EFFECT_S, Figures
from bench.github_budget.simulated_time import run_simulated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MINUTES = 10
MARGIN = 0.9


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    folder: Path = tmp_path_factory.mktemp("demo")
    return run_simulated(run_demo(folder, 60.0 * MINUTES))


def test_the_demo_stays_within_the_hourly_api_budget_of_an_installation(figures: Figures) -> None:
    assert figures.upstream.calls * 60 / MINUTES <= MARGIN * BUDGET
    assert figures.refused == 0


def test_no_gate_of_the_demo_is_published_late(figures: Figures) -> None:
    assert len(figures.delays) > 40
    assert figures.latest_gate_s <= LATEST_GATE_S
    assert figures.slowest_gate_s <= LATEST_GATE_S  # a late decision is late as well


def test_no_effect_of_the_demo_waits_too_long(figures: Figures) -> None:
    assert figures.oldest_effect_s <= OLDEST_EFFECT_S, figures.old_effects
    assert not figures.parked
    assert figures.merged > 0  # the merge queue moves
