"""Fault 58: a glob that one shard satisfies, or a name that two workflows share, opened the gate during a run."""

from pathlib import Path

import pytest

from github_sim.github import JobSpec, Workflow
from support.github.gated_upstream import (
    GATE,
    GATING,
    finish_jobs,
    gate_state,
    gate_summary,
    gated_upstream,
    gating_allowlist,
    latest_check,
    live_reasons,
    newest_run,
    open_pull,
    start_jobs,
    sweep_after,
)

MINUTE, HOUR = 60.0, 3600.0
ONE = (GATING,)
SHARDS = Workflow(jobs=tuple(JobSpec(f"test-{number}") for number in (1, 2, 3)), run_name="CI {delivery_id}")


def workflow(name: str, *, run_name: str | None = "{delivery_id}") -> Workflow:
    path = f".github/workflows/{name}.yml"
    return Workflow(name=name, path=path, jobs=(JobSpec("build"),), run_name=run_name)


async def test_fault_58_the_gate_waits_for_all_three_shards_of_a_run(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, gating_allowlist("jobs: ['test*']"), downstreams=ONE) as relay:
        relay.github.repository(GATING).workflows = [SHARDS]
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run, "test-1")
        await finish_jobs(relay, run, **{"test-1": "success"})
        await sweep_after(relay, HOUR)
        assert gate_state(relay, pull) == "pending"
        assert await live_reasons(relay, pull.head_sha) == [
            "GitHub has not confirmed yet that its runs are over"
        ]
        for name in ("test-2", "test-3"):
            await start_jobs(relay, run, name)
            await finish_jobs(relay, run, **{name: "success"})
            await sweep_after(relay, 6)

        assert gate_state(relay, pull) == "success"


async def test_fault_58_a_second_workflow_with_the_same_job_name_is_waited_for(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, gating_allowlist("jobs: [build]"), downstreams=ONE) as relay:
        relay.github.repository(GATING).workflows = [workflow("first"), workflow("second")]
        pull = await open_pull(relay)
        first, second = relay.github.runs(GATING)
        await start_jobs(relay, first)
        await finish_jobs(relay, first)
        assert gate_state(relay, pull) == "pending"
        assert relay.github.merge_state(pull).blocked_by
        await start_jobs(relay, second)
        await finish_jobs(relay, second, build="failure")

        assert gate_state(relay, pull) == "failure"


async def test_fault_58_a_later_run_publishes_a_new_pending_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, gating_allowlist("jobs: [build]"), downstreams=ONE) as relay:
        relay.github.repository(GATING).workflows = [workflow("first")]
        relay.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await finish_jobs(relay, run)
        green = latest_check(relay, GATE, pull.head_sha)
        assert green.conclusion == "success"
        relay.github.repository(GATING).workflows = [workflow("second")]
        relay.github.start_run(
            GATING,
            event="repository_dispatch",
            event_type=run.event_type,
            client_payload=run.client_payload,
        )
        await relay.github.send_queued_webhooks()
        await relay.drain()

        assert (gate_state(relay, pull), latest_check(relay, GATE, pull.head_sha).id != green.id) == (
            "pending",
            True,
        )


@pytest.mark.parametrize(
    ("options", "gate"),
    [("jobs: ['test*']", "failure"), ("hardware: npu", "failure"), ("jobs: [test-1]", "success")],
    ids=["a glob", "no jobs", "literal"],
)
async def test_fault_58_where_actions_cannot_be_read_jobs_must_be_named_literally(
    tmp_path: Path, options: str, gate: str
) -> None:
    async with gated_upstream(tmp_path, gating_allowlist(options), downstreams=ONE) as relay:
        relay.github.repository(GATING).workflows = [SHARDS]
        await relay.github.change_permissions(GATING, actions=None)
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run, "test-1")
        await finish_jobs(relay, run, **{"test-1": "success"})
        await sweep_after(relay, MINUTE)

        assert gate_state(relay, pull) == gate
        expected_text = (
            "as reported" if gate == "success" else "name its `jobs` literally, or grant Actions: read"
        )
        assert expected_text in gate_summary(relay, pull.head_sha)
