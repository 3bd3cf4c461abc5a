"""Fault 59: a reported success opened the gate while GitHub still showed the job running, or after it had failed."""

from pathlib import Path

import pytest

from github_sim.github import JobSpec, Match, Workflow, WorkflowJob, WorkflowRun
from support.github.gated_upstream import (
    GATE,
    GATING,
    finish_jobs,
    gate_state,
    gated_upstream,
    gating_allowlist,
    live_reasons,
    newest_run,
    open_pull,
    start_jobs,
    sweep_after,
)
from support.running_relay import UPSTREAM, RunningRelay

MINUTE, HOUR = 60.0, 3600.0
ONE = (GATING,)
ACTIONS = Match("GET", f"/repos/{GATING}/actions/*")
LISTS = f"/repos/{GATING}/actions/runs/*/attempts/*/jobs"


async def report_end(
    relay: RunningRelay, run: WorkflowRun, *jobs: WorkflowJob, conclusion: str = "success"
) -> None:
    """Jobs report their end from inside the run; GitHub still shows them running."""
    for job in jobs or tuple(run.jobs):
        await relay.github.report(run, job)
        await relay.github.report(run, job, status="completed", conclusion=conclusion)
    await relay.drain()


def complete_on_github(relay: RunningRelay, run: WorkflowRun, conclusion: str = "success") -> None:
    for job in run.jobs:
        relay.github.ci.complete(run, job, conclusion)


@pytest.mark.parametrize("reported", ["success", "skipped", "neutral"])
async def test_fault_59_no_reported_result_opens_the_gate_before_github_confirms_it(
    tmp_path: Path, reported: str
) -> None:
    async with gated_upstream(
        tmp_path, gating_allowlist("jobs: [build, test], may_skip: true"), downstreams=ONE
    ) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await report_end(relay, run, conclusion=reported)
        assert gate_state(relay, pull) == "pending"
        assert f"build reported {reported}, GitHub has not confirmed" in await live_reasons(
            relay, pull.head_sha
        )
        complete_on_github(relay, run, "failure")
        gate_states = []
        for _ in range(13):
            await sweep_after(relay, 6)
            gate_states.append(gate_state(relay, pull))

        assert (set(gate_states), gate_states[-1]) == ({"failure"}, "failure")


async def test_fault_59_the_gate_opens_within_seconds_of_githubs_confirmation(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await report_end(relay, run)
        await sweep_after(relay, 4)
        assert gate_state(relay, pull) == "pending"
        complete_on_github(relay, run)
        await sweep_after(relay, 2)

        assert gate_state(relay, pull) == "success"
        assert not relay.github.merge_state(pull).blocked_by


async def test_fault_59_an_expected_failure_counts_only_when_github_shows_the_failure(tmp_path: Path) -> None:
    async with gated_upstream(
        tmp_path, gating_allowlist("jobs: [build, test], expect: {test: failure}"), downstreams=ONE
    ) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        build, test = run.jobs
        await report_end(relay, run, build)
        await report_end(relay, run, test, conclusion="failure")
        assert gate_state(relay, pull) == "pending"
        complete_on_github(relay, run)
        await sweep_after(relay, MINUTE)

        assert gate_state(relay, pull) == "failure"


@pytest.mark.parametrize("fault", ["limit", "outage", "refusal", "permission taken away"])
async def test_fault_59_while_github_does_not_answer_no_result_is_confirmed(
    tmp_path: Path, fault: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        faults = relay.github.faults
        if fault == "limit":
            faults.secondary_limit(on=ACTIONS, times=None)
        elif fault == "permission taken away":
            await relay.github.change_permissions(GATING, actions=None)
        else:
            faults.answer(502 if fault == "outage" else 403, on=ACTIONS)
        await start_jobs(relay, run)
        await report_end(relay, run)
        complete_on_github(relay, run, "failure")
        for _ in range(9):
            await sweep_after(relay, HOUR)

        assert "success" not in {
            check.conclusion for check in relay.github.checks(UPSTREAM) if check.name == GATE
        }
        assert gate_state(relay, pull) == "failure"


async def test_fault_59_many_results_within_a_minute_share_their_lookups(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, gating_allowlist("jobs: ['test*']"), downstreams=ONE) as relay:
        names = [f"test-{number}" for number in range(10)]
        jobs = tuple(JobSpec(name) for name in names)
        relay.github.repository(GATING).workflows = [Workflow(jobs=jobs, run_name="CI {delivery_id}")]
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        for name in names:
            await finish_jobs(relay, run, **{name: "success"})
            await relay.pass_time(6)

        assert gate_state(relay, pull) == "success"
        assert len(relay.github.calls_to("GET", LISTS)) <= 7
