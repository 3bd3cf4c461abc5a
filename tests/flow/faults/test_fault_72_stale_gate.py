"""Fault 72 at the gate: a worker that loses its lease during a publication leaves no stale gate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crcr.decide.checks.check_run import Tier
from crcr.decide.model import RepoName
from crcr.wiring.core import open_core
from crcr.wiring.services import Services, build
from github_sim.github import Match, PullRequest
from support.github.checks import UPDATES, check_history
from support.github.gated_upstream import (
    GATE,
    GATING,
    finish_jobs,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    start_jobs,
)
from support.running_relay import UPSTREAM, RunningRelay

OVER_A_LEASE_S = 30


@asynccontextmanager
async def another_worker(relay: RunningRelay) -> AsyncIterator[Services]:
    services = build(relay.services.settings, relay.seams)
    yield services
    await services.close()


async def open_twin(relay: RunningRelay, pull: PullRequest) -> None:
    """A second pull request with the same head: its gate is pending again."""

    def same_head(twin: PullRequest) -> None:
        twin.head_sha = pull.head_sha

    await relay.github.open_pr(UPSTREAM, before_webhook=same_head)


def gate_update(relay: RunningRelay, pull: PullRequest) -> Match:
    check = relay.github.latest_checks(UPSTREAM, pull.head_sha)[GATE]
    return Match("PATCH", f"/repos/{UPSTREAM}/check-runs/{check.id}")


@pytest.mark.parametrize("after_acting", [False, True], ids=["request late", "answer late"])
async def test_a_success_that_arrives_after_the_takeover_is_replaced(
    tmp_path: Path, *, after_acting: bool
) -> None:
    async with gated_upstream(tmp_path) as relay, another_worker(relay) as successor:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        late = relay.github.faults.hang(on=gate_update(relay, pull), times=1, after_acting=after_acting)
        work = asyncio.create_task(finish_jobs(relay, run))
        await late.reached.wait()
        await open_twin(relay, pull)
        relay.clock.advance(OVER_A_LEASE_S)
        await successor.worker.drain()
        late.release()
        await work
        await successor.worker.drain()

        assert gate_state(relay, pull) == "pending"
        assert relay.rows("SELECT state FROM gates") == [{"state": "pending"}]


async def test_a_late_duplicate_of_an_earlier_request_is_corrected_a_minute_later(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        relay.github.faults.lose_answer(on=UPDATES, times=1)
        await relay.github.complete_job(run, "build", "failure")
        await relay.drain()
        await relay.pass_time(5)
        assert gate_state(relay, pull) == "failure"
        check = relay.github.latest_checks(UPSTREAM, pull.head_sha)[GATE]
        check.conclusion = "success"  # the first request arrives again, long after

        relay.clock.advance(61)
        await relay.services.sweeper.sweep()
        await relay.drain()
        assert gate_state(relay, pull) == "failure"


async def test_a_worker_that_lost_its_lease_does_not_overwrite_its_successors_record(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay, another_worker(relay) as successor:
        pull = await open_pull(relay)
        relay.clock.advance(120)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await relay.github.complete_job(run, "build", "failure")
        await relay.github.complete_job(run, "test", "success")
        core = open_core(relay.services.settings, relay.seams)
        checks = core.checks
        [publication] = await checks.plan_publication(
            RepoName(UPSTREAM), pull.head_sha, Tier.GATE, relay.clock.now()
        )
        await relay.github.comment_pr(pull, f"/crcr waive {GATING} because flaky lab", author="maintainer")
        for _ in range(3):
            relay.clock.advance(2)
            await successor.worker.drain()
        assert gate_state(relay, pull) == "success"

        await checks.record_published(publication, publication.check_run_id, relay.clock.now())
        recorded = relay.rows(f"SELECT conclusion FROM checks WHERE name = '{GATE}'")  # noqa: S608  our own name
        assert recorded == [{"conclusion": "success"}]
        await relay.github.comment_pr(pull, f"/crcr unwaive {GATING}", author="maintainer")
        await relay.pass_time(2)
        assert gate_state(relay, pull) == check_history(relay, GATE, pull.head_sha)[-1] == "failure"
        await core.database.close()
        for client in (core.api_http, core.keys_http, core.forward_http):
            await client.aclose()
