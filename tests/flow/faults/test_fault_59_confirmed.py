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
    latest_check,
    live_reasons,
    newest_run,
    open_pull,
    start_jobs,
    sweep_after,
)
from support.stage import UPSTREAM, Stage

MINUTE, HOUR = 60.0, 3600.0
ONE = (GATING,)
ACTIONS = Match("GET", f"/repos/{GATING}/actions/*")
LISTS = f"/repos/{GATING}/actions/runs/*/attempts/*/jobs"


def l4(options: str) -> str:
    return f"L4:\n  - {GATING}: {{oncalls: [bob], {options}}}\n"


def summary(it: Stage, sha: str) -> str:
    return str(latest_check(it, GATE, sha).output["summary"])


async def claim(it: Stage, run: WorkflowRun, *jobs: WorkflowJob, conclusion: str = "success") -> None:
    """Jobs report their end from inside, as every report is sent; GitHub still shows them running."""
    for job in jobs or tuple(run.jobs):
        await it.github.report(run, job)
        await it.github.report(run, job, status="completed", conclusion=conclusion)
    await it.act()


def end(it: Stage, run: WorkflowRun, conclusion: str = "success") -> None:
    for job in run.jobs:
        it.github.ci.complete(run, job, conclusion)


@pytest.mark.parametrize("says", ["success", "skipped", "neutral"])
async def test_fault_59_no_reported_result_opens_the_gate_before_github_agrees(
    tmp_path: Path, says: str
) -> None:
    async with gated_upstream(tmp_path, l4("jobs: [build, test], may_skip: true"), downstreams=ONE) as it:
        pull = await open_pull(it)
        run = newest_run(it)
        await claim(it, run, conclusion=says)
        assert gate_state(it, pull) == "pending"
        assert f"build reported {says}, GitHub has not confirmed" in await live_reasons(it, pull.head_sha)
        end(it, run, "failure")
        seen = []
        for _ in range(13):
            await sweep_after(it, 6)
            seen.append(gate_state(it, pull))

        assert (set(seen), seen[-1]) == ({"failure"}, "failure")


async def test_fault_59_the_gate_opens_within_seconds_of_githubs_agreement(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = newest_run(it)
        await claim(it, run)
        await sweep_after(it, 4)
        assert gate_state(it, pull) == "pending"
        end(it, run)
        await sweep_after(it, 2)

        assert gate_state(it, pull) == "success"
        assert not it.github.merge_state(pull).blocked_by


async def test_fault_59_an_expected_failure_counts_only_where_github_saw_it_fail(tmp_path: Path) -> None:
    async with gated_upstream(
        tmp_path, l4("jobs: [build, test], expect: {test: failure}"), downstreams=ONE
    ) as it:
        pull = await open_pull(it)
        run = newest_run(it)
        build, test = run.jobs
        await claim(it, run, build)
        await claim(it, run, test, conclusion="failure")
        assert gate_state(it, pull) == "pending"
        end(it, run)
        await sweep_after(it, MINUTE)

        assert gate_state(it, pull) == "failure"


@pytest.mark.parametrize("fault", ["limit", "outage", "refusal", "permission taken away"])
async def test_fault_59_github_that_does_not_answer_confirms_nothing(tmp_path: Path, fault: str) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = newest_run(it)
        faults = it.github.faults
        if fault == "limit":
            faults.secondary_limit(on=ACTIONS, times=None)
        elif fault == "permission taken away":
            await it.github.change_permissions(GATING, actions=None)
        else:
            faults.answer(502 if fault == "outage" else 403, on=ACTIONS)
        await start_jobs(it, run)
        await claim(it, run)
        end(it, run, "failure")
        for _ in range(9):
            await sweep_after(it, HOUR)

        assert "success" not in {each.conclusion for each in it.github.checks(UPSTREAM) if each.name == GATE}
        assert gate_state(it, pull) == "failure"


async def test_fault_59_many_results_within_a_minute_are_looked_up_together(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, l4("jobs: ['test*']"), downstreams=ONE) as it:
        names = [f"test-{number}" for number in range(10)]
        jobs = tuple(JobSpec(name) for name in names)
        it.github.repository(GATING).workflows = [Workflow(jobs=jobs, run_name="CI {delivery_id}")]
        pull = await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        for name in names:
            await finish_jobs(it, run, **{name: "success"})
            await it.pass_time(6)

        assert gate_state(it, pull) == "success"
        assert len(it.github.calls_to("GET", LISTS)) <= 7
