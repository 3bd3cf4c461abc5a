"""A run fails on GitHub, and its failed job never reports: the reports of the other jobs opened the gate."""

from pathlib import Path

import pytest

from github_sim.github import JobSpec, Workflow, WorkflowRun
from support.github.checks import press_rerun
from support.github.gated_upstream import (
    GATE,
    GATING,
    finish_jobs,
    gate_state,
    gated_upstream,
    gating_allowlist,
    latest_check,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
    sweep_after,
)
from support.running_relay import RunningRelay

ONE = (GATING,)
SHARDS = Workflow(jobs=tuple(JobSpec(f"test-{number}") for number in (1, 2, 3)), run_name="CI {delivery_id}")
LITERAL, GLOB, NO_NAMES = "jobs: [test-1, test-2, test-3]", "jobs: ['test*']", "hardware: npu"


async def fail_on_github(relay: RunningRelay, run: WorkflowRun, *names: str) -> None:
    """These jobs fail on GitHub before they can report."""
    for name in names:
        relay.github.ci.start(run, run.job(name))
        relay.github.ci.complete(run, run.job(name), "failure")
    await relay.github.send_queued_webhooks()
    for _ in range(5):
        await sweep_after(relay, 60)


@pytest.mark.parametrize("options", [GLOB, NO_NAMES], ids=["a glob", "no jobs"])
async def test_attack_a_shard_that_fails_without_a_report_does_not_open_the_gate(
    tmp_path: Path, options: str
) -> None:
    async with gated_upstream(tmp_path, gating_allowlist(options), downstreams=ONE) as relay:
        relay.github.repository(GATING).workflows = [SHARDS]
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run, "test-1", "test-2")
        await finish_jobs(relay, run, **{"test-1": "success", "test-2": "success"})
        await fail_on_github(relay, run, "test-3")

        assert (run.conclusion, gate_state(relay, pull)) == ("failure", "failure")
        assert not relay.github.merge_state(pull).mergeable
        reason = f"attempt 1 of run {run.id} ended as failure on GitHub, and no job has reported a failure"
        assert reason in latest_check(relay, GATE, pull.head_sha).output["summary"]
        # Somebody requests a rerun, and this time the job reports.
        await press_rerun(relay, pull, GATE)
        assert gate_state(relay, pull) == "pending"
        await run_all(relay)
        for _ in range(3):
            await sweep_after(relay, 60)
        assert gate_state(relay, pull) == "success"


@pytest.mark.parametrize("options", [LITERAL, GLOB, NO_NAMES], ids=["literal", "a glob", "no jobs"])
async def test_attack_a_rerun_that_fails_without_a_report_turns_the_gate_red(
    tmp_path: Path, options: str
) -> None:
    async with gated_upstream(tmp_path, gating_allowlist(options), downstreams=ONE) as relay:
        repository = relay.github.repository(GATING)
        repository.workflows, repository.sends_run_webhooks = [SHARDS], True
        pull = await open_pull(relay)
        run = await run_all(relay)
        for _ in range(3):
            await sweep_after(relay, 60)
        assert gate_state(relay, pull) == "success"
        await relay.github.rerun(run)
        await fail_on_github(relay, run, "test-1", "test-2", "test-3")

        assert gate_state(relay, pull) == "failure"
        assert not relay.github.merge_state(pull).mergeable


async def test_attack_a_job_that_is_not_listed_literally_does_not_block_the_gate(tmp_path: Path) -> None:
    """An entry that lists its jobs literally decides which ones count."""
    async with gated_upstream(tmp_path, gating_allowlist("jobs: [test-1, test-2]"), downstreams=ONE) as relay:
        relay.github.repository(GATING).workflows = [SHARDS]
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run, "test-1", "test-2")
        await finish_jobs(relay, run, **{"test-1": "success", "test-2": "success"})
        await fail_on_github(relay, run, "test-3")

        assert gate_state(relay, pull) == "success"
