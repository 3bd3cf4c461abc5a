"""Fault 55: a job that reports under another job's name was confirmed against itself."""

from pathlib import Path

import pytest

from support.github.checks import named_workflow
from support.github.gated_upstream import (
    GATING,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    sweep_after,
)
from support.running_relay import RunningRelay

MINUTE = 60.0


def verifications(relay: RunningRelay) -> dict[str, tuple[str, str]]:
    """The counted conclusion of each job, and how it was verified."""
    return {row["job_name"]: (row["conclusion"], row["verification"]) for row in relay.jobs(GATING)}


@pytest.mark.parametrize("sends_run_webhooks", [False, True], ids=["polled", "by webhook"])
async def test_fault_55_results_that_one_job_reports_for_two_failed_jobs_are_disputed(
    tmp_path: Path, *, sends_run_webhooks: bool
) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).workflows = [named_workflow("build", "test", "report")]
        relay.github.repository(GATING).sends_run_webhooks = sends_run_webhooks
        pull = await open_pull(relay)
        run = newest_run(relay)
        for status in ("in_progress", "completed"):
            for name in ("build", "test"):
                await relay.github.report(run, "report", status=status, job_name=name, conclusion="success")
        for job in run.jobs:
            relay.github.ci.complete(run, job, "success" if job.name == "report" else "failure")
        await relay.github.send_queued_webhooks()
        await relay.drain()

        assert verifications(relay) == {"build": ("failure", "disputed"), "test": ("failure", "disputed")}
        assert gate_state(relay, pull) == "failure"
        assert relay.github.merge_state(pull).blocked_by


async def test_fault_55_a_second_job_of_the_same_name_without_a_report_counts_as_well(tmp_path: Path) -> None:
    """Two legs of a matrix share a display name: the one that passed must not vouch for the one without a report."""
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).workflows = [named_workflow("build", "build", "test")]
        pull = await open_pull(relay)
        run = newest_run(relay)
        passed, silent, test = run.jobs
        for job in (passed, test):
            await relay.github.report(run, job)
            relay.github.ci.complete(run, job, "success")
            await relay.github.report(run, job, status="completed")
        await relay.drain()
        assert gate_state(relay, pull) == "pending"
        relay.github.ci.complete(run, silent, "failure")
        await sweep_after(relay, MINUTE)

        assert verifications(relay) == {"build": ("failure", "disputed"), "test": ("success", "confirmed")}
        assert gate_state(relay, pull) == "failure"


@pytest.mark.parametrize(("conclusion", "gate"), [("success", "success"), ("failure", "failure")])
async def test_fault_55_a_job_name_unknown_to_github_is_confirmed_by_its_run_only(
    tmp_path: Path, conclusion: str, gate: str
) -> None:
    """By default a job reports under its id, which is not its display name."""
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).workflows = [named_workflow("Build (npu)", "Unit tests")]
        pull = await open_pull(relay)
        run = newest_run(relay)
        for job, name in zip(run.jobs, ("build", "test"), strict=True):
            await relay.github.report(run, job, job_name=name)
            await relay.github.report(run, job, status="completed", job_name=name, conclusion="success")
        relay.github.ci.complete(run, run.jobs[0], "success")
        await sweep_after(relay, MINUTE)
        assert gate_state(relay, pull) == "pending"
        relay.github.ci.complete(run, run.jobs[1], conclusion)
        await sweep_after(relay, MINUTE)

        assert verifications(relay) == dict.fromkeys(("build", "test"), ("success", "not verifiable"))
        assert gate_state(relay, pull) == gate
