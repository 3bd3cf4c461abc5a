"""Silent jobs: GitHub is asked what became of them before they are called timed out, and a late result is taken."""

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


def job(relay: RunningRelay, name: str = "build") -> dict[str, Any]:
    [row] = [row for row in relay.jobs() if row["job_name"] == name]
    return row


def state(relay: RunningRelay, name: str = "build") -> tuple[str, str | None]:
    row = job(relay, name)
    return row["state"], row["conclusion"]


async def silent_job(relay: RunningRelay) -> WorkflowRun:
    """`test` has passed, and `build` has begun and is not heard of any more."""
    run = newest_run(relay)
    await start_jobs(relay, run)
    await finish_jobs(relay, run, test="success")
    return run


async def wait_and_look(relay: RunningRelay, hours: float = 6.0) -> None:
    """So much time passes, the sweeper sees who is silent, and what GitHub says of them is acted on."""
    await sweep_after(relay, hours * HOUR)
    await sweep_after(relay)


# Silent jobs


@pytest.mark.parametrize("github", ["failure", "cancelled", "timed_out", "action_required"])
async def test_a_silent_job_ends_as_github_saw_it_fail(tmp_path: Path, github: str) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), github)
        await wait_and_look(relay)

        assert state(relay) == ("completed", github)
        assert (job(relay)["verification"], job(relay)["github_conclusion"]) == ("confirmed", github)
        assert gate_state(relay, pull) == "failure"


@pytest.mark.parametrize("github", ["success", "skipped", "neutral"])
async def test_fault_35_a_silent_job_that_github_saw_succeed_has_timed_out_unreported(
    tmp_path: Path, github: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), github)
        await wait_and_look(relay)

        assert (state(relay), job(relay)["github_conclusion"]) == (("timed_out", None), github)
        assert shown_check(relay, GATE, pull.head_sha) == (
            "completed",
            "failure",
            f"{GATING} errored (build), missing: it started and never reported its end",
        )


async def test_the_gate_says_that_a_job_succeeded_unreported(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), "success")
        await wait_and_look(relay)

        words = "unreported: it succeeded on GitHub, and no report reached the relay"
        assert words in latest_check(relay, GATE, pull.head_sha).output["summary"]


async def test_a_silent_job_that_still_runs_has_not_timed_out_and_its_silence_counts_anew(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)
        run = await silent_job(relay)
        await wait_and_look(relay, 6)
        await wait_and_look(relay, 5.9)
        assert state(relay) == ("in_progress", None)
        relay.github.ci.complete(run, run.job("build"), "failure")
        await wait_and_look(relay, 0.2)

        assert state(relay) == ("completed", "failure")


async def test_the_silence_of_a_running_job_counts_anew_by_its_downstreams_own_patience(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path, f"L2:\n  - {BACKEND}: {{job_timeout: 2h}}\n") as (relay, run):
        await relay.github.start_job(run, "build")
        await wait_and_look(relay, 2)
        asked = len(relay.github.calls_to("GET", RUNS))
        await wait_and_look(relay, 1.9)
        assert (asked, len(relay.github.calls_to("GET", RUNS))) == (2, 2)
        relay.github.ci.complete(run, run.job("build"), "failure")
        await wait_and_look(relay, 0.2)

        assert state(relay) == ("completed", "failure")


async def test_a_job_that_ran_for_20_hours_is_never_called_timed_out(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        seen = set()
        for _ in range(20):
            await wait_and_look(relay, 1)
            seen.add(state(relay))
        assert seen == {("in_progress", None)}

        assert report_outcome(await relay.github.complete_job(run, "build")) == "applied"
        assert (state(relay), job_marks(job(relay))) == (("completed", "success"), set())


async def test_a_silent_job_whose_run_goes_on_ends_and_the_others_go_on(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        relay.github.ci.complete(run, run.job("build"), "failure")
        await wait_and_look(relay)

        assert (state(relay, "build"), state(relay, "test")) == (
            ("completed", "failure"),
            ("in_progress", None),
        )


async def test_a_silent_job_has_timed_out_where_github_does_not_let_us_look(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), "success")
        await relay.github.change_permissions(GATING, actions=None)
        relay.clock.advance(HOUR)
        await wait_and_look(relay)

        assert (state(relay), job(relay)["github_conclusion"]) == (("timed_out", None), None)
        assert gate_state(relay, pull) == "failure"


async def test_a_silent_job_has_timed_out_when_github_was_away_for_an_hour(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)
        run = await silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), "failure")
        away = relay.github.faults.answer(503, on=Match("GET", RUNS))
        await sweep_after(relay, 6 * HOUR)
        await sweep_after(relay, 0.9 * HOUR)
        assert state(relay) == ("in_progress", None)
        await sweep_after(relay, 0.2 * HOUR)
        assert state(relay) == ("timed_out", None)
        relay.github.faults.remove(away)
        await sweep_after(relay, HOUR)

        assert state(relay) == ("completed", "failure")


async def test_a_silent_job_of_a_run_that_was_deleted_has_timed_out(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        del relay.github.world.runs[run.id]
        await wait_and_look(relay, 6)
        await wait_and_look(relay, 1)

        assert state(relay) == ("timed_out", None)


async def test_a_silent_job_that_github_does_not_know_has_timed_out(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.report(run, "build", job_name="made up")
        await relay.github.report(run, "test", job_name="made up too")
        run.attempts[1] = [WorkflowJob(1, "other", JobSpec("other"), 1, relay.clock.now())]
        await wait_and_look(relay)

        assert {row["state"] for row in relay.jobs()} == {"timed_out"}


async def test_nobody_waits_for_hours_for_a_report_out_of_a_run_that_is_over(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        relay.github.ci.complete(run, run.job("build"), "success")
        await finish_jobs(relay, run, test="success")
        await sweep_after(relay, MINUTE)
        assert gate_state(relay, pull) == "pending"
        await wait_and_look(relay, 11 / 60)

        assert (state(relay), gate_state(relay, pull)) == (("timed_out", None), "failure")


async def test_a_report_still_on_its_way_when_the_run_ended_is_taken_as_it_is(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        relay.github.ci.complete(run, run.job("build"), "success")
        await finish_jobs(relay, run, test="success")
        for minutes in (1, 8):
            await wait_and_look(relay, minutes / 60)
        await relay.github.report(run, "build", status="completed")
        await sweep_after(relay, MINUTE)

        assert (state(relay), job_marks(job(relay))) == (("completed", "success"), set())
        assert gate_state(relay, pull) == "success"


async def test_silent_jobs_of_l2_are_looked_up_as_well(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        relay.github.ci.complete(run, run.job("build"), "cancelled")
        await wait_and_look(relay)

        assert state(relay) == ("completed", "cancelled")


# What is reported after all


async def test_a_real_result_after_the_time_out_counts_and_is_marked_late(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), "success")
        await wait_and_look(relay)
        assert report_outcome(await relay.github.report(run, "build", status="completed")) == "applied"
        await sweep_after(relay, MINUTE)

        assert (state(relay), job_marks(job(relay))) == (("completed", "success"), {"late"})
        assert (job(relay)["verification"], gate_state(relay, pull)) == ("confirmed", "success")


@pytest.mark.parametrize(
    ("says", "answer", "disputed"),
    [("failure", "repeat", set()), ("success", "conflicting_result", {"disputed"})],
)
async def test_a_report_after_github_said_how_the_job_failed_changes_nothing_for_the_better(
    tmp_path: Path, says: str, answer: str, disputed: set[str]
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), "failure")
        await wait_and_look(relay)
        late = await relay.github.report(run, "build", status="completed", conclusion=says)
        await relay.drain()

        assert report_outcome(late) == answer
        assert (state(relay), job_marks(job(relay))) == (("completed", "failure"), disputed)
        assert gate_state(relay, pull) == "failure"


async def test_a_re_run_after_the_time_out_clears_the_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await silent_job(relay)
        relay.github.ci.complete(run, run.job("build"), "cancelled")
        await wait_and_look(relay)
        await relay.github.rerun(run, failed_only=True)
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="success")

        assert gate_state(relay, pull) == "success"
