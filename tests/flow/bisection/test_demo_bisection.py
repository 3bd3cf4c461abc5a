"""The first minutes of the demo in simulated time, with its history: a bisection begins by itself and finds the commit that broke a backend."""

import asyncio
from pathlib import Path

import pytest
from bench.github_budget.relay_in_process import run_simulated_relay
from bench.github_budget.simulated_time import run_simulated

from crcr.cli.run.demo import SEED, SPEED
from crcr.decide.bisection.search import BisectionOutcome, RunResult
from crcr.decide.model import RepoName
from crcr.decide.views.bisections import BisectionDetail
from crcr.demo.opening_failures import CULPRIT
from crcr.demo.run import demo_settings
from crcr.demo.traffic import UPSTREAM, run_traffic
from crcr.record.views.sql_views import SqlViews
from support.github.demo_with_history import make_demo_with_history

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

THREE_MINUTES_S = 180.0


async def run_first_minutes(folder: Path) -> BisectionDetail:
    """Run the demo for three simulated minutes; return its first bisection."""
    async with run_simulated_relay(
        folder,
        seed=SEED,
        make_world=lambda github: make_demo_with_history(github, folder),
        settings_for=demo_settings,
    ) as demo:
        over = asyncio.Event()
        traffic = asyncio.create_task(run_traffic(demo.github, UPSTREAM, seed=SEED, speed=SPEED, stop=over))
        await asyncio.wait([traffic], timeout=THREE_MINUTES_S)
        over.set()
        await traffic
        demo.check()
        services = demo.services
        views = SqlViews(services.database, services.allowlists, services.upstreams)
        return await views.bisection(RepoName(UPSTREAM), 1)


def test_the_demo_finds_the_commit_that_broke_a_backend(tmp_path: Path) -> None:
    detail = run_simulated(run_first_minutes(tmp_path))
    bisection = detail.bisection
    assert (str(bisection.backend), bisection.job) == ("lumen-hpc/xpu-ops", "test")
    assert bisection.outcome is BisectionOutcome.FOUND
    assert bisection.culprit is not None
    assert bisection.culprit.title == CULPRIT
    assert bisection.commits > 1
    assert {run.result for run in detail.runs} == {RunResult.PASSED, RunResult.FAILED}
