"""Fault 55: a job that reports under another job's name was confirmed against itself."""

from pathlib import Path

import pytest

from github_sim.github import JobSpec, Workflow
from support.github.gated_upstream import (
    GATING,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    sweep_after,
)
from support.stage import Stage

MINUTE = 60.0


def named(*names: str) -> Workflow:
    return Workflow(jobs=tuple(JobSpec(name) for name in names), run_name="CI {delivery_id}")


def verified(it: Stage) -> dict[str, tuple[str, str]]:
    """What counts for each job, and how it was verified."""
    return {row["job_name"]: (row["conclusion"], row["verification"]) for row in it.jobs(GATING)}


@pytest.mark.parametrize("sends_run_webhooks", [False, True], ids=["asked", "told by webhook"])
async def test_fault_55_one_job_that_reports_for_two_failed_jobs_is_held_against_those(
    tmp_path: Path, *, sends_run_webhooks: bool
) -> None:
    async with gated_upstream(tmp_path) as it:
        it.github.repository(GATING).workflows = [named("build", "test", "report")]
        it.github.repository(GATING).sends_run_webhooks = sends_run_webhooks
        pull = await open_pull(it)
        run = newest_run(it)
        for status in ("in_progress", "completed"):
            for name in ("build", "test"):
                await it.github.report(run, "report", status=status, job_name=name, conclusion="success")
        for job in run.jobs:
            it.github.ci.complete(run, job, "success" if job.name == "report" else "failure")
        await it.github.send_queued_webhooks()
        await it.act()

        assert verified(it) == {"build": ("failure", "disputed"), "test": ("failure", "disputed")}
        assert gate_state(it, pull) == "failure"
        assert it.github.merge_state(pull).blocked_by


async def test_fault_55_a_job_of_the_same_name_that_nobody_speaks_for_counts_as_well(tmp_path: Path) -> None:
    """Two legs of a matrix share a display name: the one that passed must not vouch for the one that is silent."""
    async with gated_upstream(tmp_path) as it:
        it.github.repository(GATING).workflows = [named("build", "build", "test")]
        pull = await open_pull(it)
        run = newest_run(it)
        passed, silent, test = run.jobs
        for job in (passed, test):
            await it.github.report(run, job)
            it.github.ci.complete(run, job, "success")
            await it.github.report(run, job, status="completed")
        await it.act()
        assert gate_state(it, pull) == "pending"
        it.github.ci.complete(run, silent, "failure")
        await sweep_after(it, MINUTE)

        assert verified(it) == {"build": ("failure", "disputed"), "test": ("success", "confirmed")}
        assert gate_state(it, pull) == "failure"


@pytest.mark.parametrize(("unit", "shown"), [("success", "success"), ("failure", "failure")])
async def test_fault_55_a_name_that_github_does_not_show_is_confirmed_by_its_run_alone(
    tmp_path: Path, unit: str, shown: str
) -> None:
    """By default a job reports under its id, which is not its display name."""
    async with gated_upstream(tmp_path) as it:
        it.github.repository(GATING).workflows = [named("Build (npu)", "Unit tests")]
        pull = await open_pull(it)
        run = newest_run(it)
        for job, name in zip(run.jobs, ("build", "test"), strict=True):
            await it.github.report(run, job, job_name=name)
            await it.github.report(run, job, status="completed", job_name=name, conclusion="success")
        it.github.ci.complete(run, run.jobs[0], "success")
        await sweep_after(it, MINUTE)
        assert gate_state(it, pull) == "pending"
        it.github.ci.complete(run, run.jobs[1], unit)
        await sweep_after(it, MINUTE)

        assert verified(it) == dict.fromkeys(("build", "test"), ("success", "not verifiable"))
        assert gate_state(it, pull) == shown
