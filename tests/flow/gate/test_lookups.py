"""Silent jobs: the relay looks them up on GitHub before it marks them timed out, and it accepts a late result."""

from pathlib import Path
from typing import Any

import pytest

from github_sim.github import JobSpec, Match, WorkflowJob, WorkflowRun
from support.downstream.callbacks import BACKEND, dispatched_run, job_marks, report_outcome
from support.github.gated_upstream import (
    GATE,
    GATING,
    finish_jobs,
    gate_state,
    gated_upstream,
    latest_check,
    newest_run,
    open_pull,
    shown_check,
    start_jobs,
    sweep_after,
)
from support.running_relay import RunningRelay

MINUTE, HOUR, DAY = 60.0, 3600.0, 24 * 3600.0
RUNS = "*/actions/runs*"


def job_row(relay: RunningRelay, name: str = "build") -> dict[str, Any]:
    [row] = [row for row in relay.jobs() if row["job_name"] == name]
    return row


def job_state(relay: RunningRelay, name: str = "build") -> tuple[str, str | None]:
    row = job_row(relay, name)
    return row["state"], row["conclusion"]


async def start_silent_job(relay: RunningRelay) -> WorkflowRun:
    """`test` has passed; `build` has started and sends no further report."""
    run = newest_run(relay)
    await start_jobs(relay, run)
    await finish_jobs(relay, run, test="success")
    return run


async def wait_and_sweep(relay: RunningRelay, hours: float = 6.0) -> None:
    """Advance the clock, let the sweeper look up silent jobs on GitHub, and process the answers."""
    await sweep_after(relay, hours * HOUR)
    await sweep_after(relay)


# Silent jobs


@pytest.mark.parametrize("github", ["failure", "cancelled", "timed_out", "action_required"])
async def test_a_silent_job_that_failed_on_github_gets_githubs_conclusion(
    tmp_path: Path, github: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await start_silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), github)
        await wait_and_sweep(relay)

        assert job_state(relay) == ("completed", github)
        assert (job_row(relay)["verification"], job_row(relay)["github_conclusion"]) == ("confirmed", github)
        assert gate_state(relay, pull) == "failure"


@pytest.mark.parametrize("github", ["success", "skipped", "neutral"])
async def test_fault_35_a_silent_job_that_succeeded_on_github_times_out_as_unreported(
    tmp_path: Path, github: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await start_silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), github)
        await wait_and_sweep(relay)

        assert (job_state(relay), job_row(relay)["github_conclusion"]) == (("timed_out", None), github)
        assert shown_check(relay, GATE, pull.head_sha) == (
            "completed",
            "failure",
            f"{GATING} errored (build), missing: it started and never reported its end",
        )


async def test_the_gate_summary_says_that_a_job_succeeded_without_a_report(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await start_silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), "success")
        await wait_and_sweep(relay)

        words = "unreported: it succeeded on GitHub, and no report reached the relay"
        assert words in latest_check(relay, GATE, pull.head_sha).output["summary"]


async def test_a_silent_job_still_running_on_github_does_not_time_out_and_restarts_its_timer(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)
        run = await start_silent_job(relay)
        await wait_and_sweep(relay, 6)
        await wait_and_sweep(relay, 5.9)
        assert job_state(relay) == ("in_progress", None)
        relay.github.ci.complete(run, run.job("build"), "failure")
        await wait_and_sweep(relay, 0.2)

        assert job_state(relay) == ("completed", "failure")


async def test_the_timer_of_a_running_job_restarts_with_its_downstreams_job_timeout(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, f"L2:\n  - {BACKEND}: {{job_timeout: 2h}}\n") as (relay, run):
        await relay.github.start_job(run, "build")
        await wait_and_sweep(relay, 2)
        first_lookups = len(relay.github.calls_to("GET", RUNS))
        await wait_and_sweep(relay, 1.9)
        assert (first_lookups, len(relay.github.calls_to("GET", RUNS))) == (2, 2)
        relay.github.ci.complete(run, run.job("build"), "failure")
        await wait_and_sweep(relay, 0.2)

        assert job_state(relay) == ("completed", "failure")


async def test_a_job_that_runs_for_20_hours_never_times_out(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        states = set()
        for _ in range(20):
            await wait_and_sweep(relay, 1)
            states.add(job_state(relay))
        assert states == {("in_progress", None)}

        assert report_outcome(await relay.github.complete_job(run, "build")) == "applied"
        assert (job_state(relay), job_marks(job_row(relay))) == (("completed", "success"), set())


async def test_a_silent_job_that_failed_ends_while_the_other_jobs_of_its_run_go_on(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        relay.github.ci.complete(run, run.job("build"), "failure")
        await wait_and_sweep(relay)

        assert (job_state(relay, "build"), job_state(relay, "test")) == (
            ("completed", "failure"),
            ("in_progress", None),
        )


async def test_a_silent_job_times_out_without_permission_to_read_actions(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await start_silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), "success")
        await relay.github.change_permissions(GATING, actions=None)
        relay.clock.advance(HOUR)
        await wait_and_sweep(relay)

        assert (job_state(relay), job_row(relay)["github_conclusion"]) == (("timed_out", None), None)
        assert gate_state(relay, pull) == "failure"


async def test_a_silent_job_times_out_after_a_github_outage_of_an_hour(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)
        run = await start_silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), "failure")
        fault = relay.github.faults.answer(503, on=Match("GET", RUNS))
        await sweep_after(relay, 6 * HOUR)
        await sweep_after(relay, 0.9 * HOUR)
        assert job_state(relay) == ("in_progress", None)
        await sweep_after(relay, 0.2 * HOUR)
        assert job_state(relay) == ("timed_out", None)
        relay.github.faults.remove(fault)
        await sweep_after(relay, HOUR)

        assert job_state(relay) == ("completed", "failure")


async def test_a_silent_job_of_a_deleted_run_times_out(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        del relay.github.world.runs[run.id]
        await wait_and_sweep(relay, 6)
        await wait_and_sweep(relay, 1)

        assert job_state(relay) == ("timed_out", None)


async def test_a_silent_job_that_github_does_not_know_times_out(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.report(run, "build", job_name="made up")
        await relay.github.report(run, "test", job_name="made up too")
        run.attempts[1] = [WorkflowJob(1, "other", JobSpec("other"), 1, relay.clock.now())]
        await wait_and_sweep(relay)

        assert {row["state"] for row in relay.jobs()} == {"timed_out"}


async def test_a_job_without_a_report_times_out_soon_after_its_run_has_ended(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        relay.github.ci.complete(run, run.job("build"), "success")
        await finish_jobs(relay, run, test="success")
        await sweep_after(relay, MINUTE)
        assert gate_state(relay, pull) == "pending"
        await wait_and_sweep(relay, 11 / 60)

        assert (job_state(relay), gate_state(relay, pull)) == (("timed_out", None), "failure")


async def test_a_report_that_arrives_shortly_after_the_run_ended_is_not_late(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        relay.github.ci.complete(run, run.job("build"), "success")
        await finish_jobs(relay, run, test="success")
        for minutes in (1, 8):
            await wait_and_sweep(relay, minutes / 60)
        await relay.github.report(run, "build", status="completed")
        await sweep_after(relay, MINUTE)

        assert (job_state(relay), job_marks(job_row(relay))) == (("completed", "success"), set())
        assert gate_state(relay, pull) == "success"


async def test_silent_jobs_of_l2_backends_are_looked_up_as_well(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        relay.github.ci.complete(run, run.job("build"), "cancelled")
        await wait_and_sweep(relay)

        assert job_state(relay) == ("completed", "cancelled")


# Late reports


async def test_a_result_after_the_time_out_counts_and_is_marked_late(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await start_silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), "success")
        await wait_and_sweep(relay)
        assert report_outcome(await relay.github.report(run, "build", status="completed")) == "applied"
        await sweep_after(relay, MINUTE)

        assert (job_state(relay), job_marks(job_row(relay))) == (("completed", "success"), {"late"})
        assert (job_row(relay)["verification"], gate_state(relay, pull)) == ("confirmed", "success")


@pytest.mark.parametrize(
    ("reported", "answer", "disputed"),
    [("failure", "repeat", set()), ("success", "conflicting_result", {"disputed"})],
)
async def test_a_report_after_the_lookup_of_a_failed_job_does_not_improve_its_conclusion(
    tmp_path: Path, reported: str, answer: str, disputed: set[str]
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await start_silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), "failure")
        await wait_and_sweep(relay)
        late = await relay.github.report(run, "build", status="completed", conclusion=reported)
        await relay.drain()

        assert report_outcome(late) == answer
        assert (job_state(relay), job_marks(job_row(relay))) == (("completed", "failure"), disputed)
        assert gate_state(relay, pull) == "failure"


async def test_a_rerun_after_the_time_out_lets_the_gate_pass(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await start_silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), "cancelled")
        await wait_and_sweep(relay)
        await relay.github.rerun(run, failed_only=True)
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="success")

        assert gate_state(relay, pull) == "success"
