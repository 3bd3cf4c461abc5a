"""The first minutes of the demo in simulated time, with its history: a bisection starts automatically, finds the commit that broke
a backend, and notices are posted to the simulated GitHub.
"""

import asyncio
from pathlib import Path

import pytest
from bench.github_budget.relay_in_process import run_simulated_relay
from bench.github_budget.simulated_time import run_simulated
from sqlalchemy import text

from crcr.cli.run.demo import SEED, SPEED
from crcr.decide.bisection.search import BisectionOutcome, RunResult
from crcr.decide.model import RepoName
from crcr.decide.views.bisections import BisectionDetail
from crcr.demo.opening_failures import CULPRIT
from crcr.demo.run import demo_settings
from crcr.demo.traffic import UPSTREAM, run_traffic
from crcr.record.store.statement import Statement
from crcr.record.views.sql_views import SqlViews
from support.github.demo_with_history import make_demo_with_history

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

THREE_MINUTES_S = 180.0
_COMMENTS = Statement(text("SELECT message_id FROM notice_messages WHERE channel_kind = 'comment'"))


async def run_first_minutes(folder: Path) -> tuple[BisectionDetail, list[str], int]:
    """Run the demo for three simulated minutes; return its first bisection, the titles of its notice issues, and how many
    messages were for comments on pull requests: a gate that is waived at once has none in the end.
    """
    async with run_simulated_relay(
        folder,
        seed=SEED,
        make_world=lambda github: make_demo_with_history(github, folder),
        settings_for=demo_settings,
    ) as demo:
        stopping = asyncio.Event()
        traffic = asyncio.create_task(
            run_traffic(demo.github, UPSTREAM, seed=SEED, speed=SPEED, stop=stopping)
        )
        await asyncio.wait([traffic], timeout=THREE_MINUTES_S)
        stopping.set()
        await traffic
        demo.check()
        services = demo.services
        views = SqlViews(services.database, services.allowlists, services.upstreams)
        issues = [issue.title for issue in demo.github.issues("lumen-hpc/xpu-ops")]
        rows = await services.database.read(lambda tx: tx.all(_COMMENTS))
        return await views.bisection(RepoName(UPSTREAM), 1), issues, len(rows)


def test_the_demo_finds_the_commit_that_broke_a_backend_and_opens_issues_and_comments(tmp_path: Path) -> None:
    detail, issues, comments = run_simulated(run_first_minutes(tmp_path))
    assert f"lumen-hpc/xpu-ops is red on the base branch of {UPSTREAM}" in issues
    assert comments > 0  # on the pull request whose gate fails
    bisection = detail.bisection
    assert (str(bisection.backend), bisection.job) == ("lumen-hpc/xpu-ops", "test")
    assert bisection.outcome is BisectionOutcome.FOUND
    assert bisection.culprit is not None
    assert bisection.culprit.title == CULPRIT
    assert bisection.commits > 1
    assert {run.result for run in detail.runs} == {RunResult.PASSED, RunResult.FAILED}
