"""Runs by their names: a name with two delivery ids binds to neither, and a deleted run cannot be verified."""

import asyncio
from pathlib import Path
from typing import Any

from github_sim.github import JobSpec, Match, PullRequest, Workflow, WorkflowRun
from support.github.gated_upstream import (
    GATE,
    GATING,
    finish_jobs,
    gate_state,
    gated_upstream,
    latest_check,
    live_reasons,
    newest_run,
    open_pull,
    start_jobs,
    sweep_after,
)
from support.running_relay import RunningRelay

MINUTE, HOUR = 60.0, 3600.0
L4_WITHOUT_JOBS = f"L4:\n  - {GATING}: [bob]\n"
DOWNSTREAMS = (GATING,)
RUNS = Match("GET", f"/repos/{GATING}/actions/runs")


def workflow(name: str, *jobs: str, run_name: str | None = "{delivery_id}") -> Workflow:
    path = f".github/workflows/{name}.yml"
    return Workflow(name=name, path=path, jobs=tuple(JobSpec(job) for job in jobs), run_name=run_name)


def set_workflows(relay: RunningRelay, *workflows: Workflow) -> None:
    relay.github.repository(GATING).workflows = list(workflows)


def bound_runs(relay: RunningRelay) -> list[tuple[int, str]]:
    """The runs that are bound to a delivery, with its id."""
    rows = relay.rows("SELECT run_id, delivery FROM runs ORDER BY first_seen_at, run_id")
    return [(int(row["run_id"]), row["delivery"]) for row in rows]


def verification_by_job(relay: RunningRelay) -> dict[str, str]:
    return {row["job_name"]: row["verification"] for row in relay.jobs(GATING)}


async def settle(relay: RunningRelay, minutes: int = 20) -> None:
    for _ in range(minutes):
        await sweep_after(relay, MINUTE)


# Names with two delivery ids


async def open_pulls_with_an_ambiguous_run(
    relay: RunningRelay,
) -> tuple[PullRequest, PullRequest, WorkflowRun]:
    """Open two pull requests; the name of one waiting run, from the second one's title, contains both delivery ids."""
    set_workflows(relay, workflow("build", "build"))
    first = await open_pull(relay)
    assert first.last_delivery is not None
    first_guid = first.last_delivery.guid
    set_workflows(
        relay, workflow("build", "build"), workflow("test", "test", run_name=f"{first_guid} {{delivery_id}}")
    )
    relay.clock.advance(MINUTE / 2)
    second = await open_pull(relay, title=first_guid)
    *built, ambiguous = relay.github.runs(GATING)
    for run in built:
        await start_jobs(relay, run)
        await finish_jobs(relay, run)
    return first, second, ambiguous


async def test_a_run_name_with_two_delivery_ids_is_bound_to_neither_by_github_webhooks(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        *_, ambiguous = await open_pulls_with_an_ambiguous_run(relay)
        bound_before = bound_runs(relay)
        for action in ("requested", "in_progress"):
            await relay.github.send_run_webhook(ambiguous, action)
        await relay.drain()

        assert bound_runs(relay) == bound_before
        assert ambiguous.id not in dict(bound_before)


async def test_the_gate_of_a_backend_without_jobs_waits_for_a_run_that_may_be_its_own(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        first, second, ambiguous = await open_pulls_with_an_ambiguous_run(relay)
        await settle(relay)
        assert (gate_state(relay, first), gate_state(relay, second)) == ("pending", "pending")
        assert ambiguous.id not in dict(bound_runs(relay))
        relay.github.ci.complete(ambiguous, ambiguous.job("test"), "success")
        await settle(relay)

        assert (gate_state(relay, first), gate_state(relay, second)) == ("success", "success")


async def test_a_report_binds_its_run_to_a_delivery_whatever_the_run_name_contains(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        first, second, ambiguous = await open_pulls_with_an_ambiguous_run(relay)
        await start_jobs(relay, ambiguous)
        await settle(relay)
        assert (gate_state(relay, first), gate_state(relay, second)) == ("success", "pending")
        await finish_jobs(relay, ambiguous, test="failure")

        assert (gate_state(relay, first), gate_state(relay, second)) == ("success", "failure")


# Deleted runs


async def open_pull_with_two_runs(
    relay: RunningRelay, run_name: str | None = "{delivery_id}"
) -> tuple[PullRequest, Any, Any]:
    set_workflows(
        relay, *(workflow(name, name, f"more {name}", run_name=run_name) for name in ("one", "two"))
    )
    pull = await open_pull(relay)
    one, two = relay.github.runs(GATING)
    return pull, one, two


async def test_results_of_a_deleted_run_are_not_verifiable_and_fail_the_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        set_workflows(relay, workflow("one", "build"))
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await relay.github.report(run, "build", status="completed", conclusion="success")
        del relay.github.world.runs[run.id]
        await settle(relay)

        assert verification_by_job(relay) == {"build": "not verifiable"}
        assert gate_state(relay, pull) == "failure"
        assert "its run was deleted" in latest_check(relay, GATE, pull.head_sha).output["summary"]
        assert relay.rows("SELECT * FROM effects WHERE kind = 'look_up' AND state = 'waiting'") == []


async def test_a_deleted_run_does_not_end_another_run_of_the_backend(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        pull, one, two = await open_pull_with_two_runs(relay)
        for run, name in ((one, "one"), (two, "two")):
            await start_jobs(relay, run, name)
            await finish_jobs(relay, run, **{name: "success"})
        del relay.github.world.runs[one.id]
        await settle(relay)

        assert verification_by_job(relay) == {"one": "confirmed", "two": "confirmed"}
        assert gate_state(relay, pull) == "pending"
        assert await live_reasons(relay, pull.head_sha) == [
            "GitHub has not confirmed yet that its runs are over"
        ]


async def test_a_run_whose_first_report_arrives_during_the_github_query_is_not_deleted(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        pull, one, two = await open_pull_with_two_runs(relay, run_name=None)
        await start_jobs(relay, one)
        await finish_jobs(relay, one)
        hang = relay.github.faults.hang(on=RUNS, times=1)
        sweeping = asyncio.create_task(sweep_after(relay, HOUR))
        await hang.reached.wait()
        await relay.github.start_job(two, "two")
        await relay.github.complete_job(two, "two")
        hang.release()
        await sweeping

        assert verification_by_job(relay) == {"one": "confirmed", "more one": "confirmed", "two": "unchecked"}
        assert gate_state(relay, pull) == "pending"
