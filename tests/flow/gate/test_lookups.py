"""Silent jobs: GitHub is asked what became of them before they are called timed out, and a late result is taken."""

from pathlib import Path
from typing import Any

import pytest

from github_sim.github import JobSpec, Match, WorkflowJob, WorkflowRun
from support.downstream.callbacks import BACKEND, dispatched_run, job_marks, report_outcome
from support.github.gated_upstream import (
    GATE,
    GATING,
    Stage,
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

MINUTE, HOUR, DAY = 60.0, 3600.0, 24 * 3600.0
RUNS = "*/actions/runs*"


def job(it: Stage, name: str = "build") -> dict[str, Any]:
    [row] = [row for row in it.jobs() if row["job_name"] == name]
    return row


def state(it: Stage, name: str = "build") -> tuple[str, str | None]:
    row = job(it, name)
    return row["state"], row["conclusion"]


async def silent_job(it: Stage) -> WorkflowRun:
    """`test` has passed, and `build` has begun and is not heard of any more."""
    run = newest_run(it)
    await start_jobs(it, run)
    await finish_jobs(it, run, test="success")
    return run


async def wait_and_look(it: Stage, hours: float = 6.0) -> None:
    """So much time passes, the sweeper sees who is silent, and what GitHub says of them is acted on."""
    await sweep_after(it, hours * HOUR)
    await sweep_after(it)


# Silent jobs


@pytest.mark.parametrize("github", ["failure", "cancelled", "timed_out", "action_required"])
async def test_a_silent_job_ends_as_github_saw_it_fail(tmp_path: Path, github: str) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = await silent_job(it)
        it.github.ci.complete(run, run.job("build"), github)
        await wait_and_look(it)

        assert state(it) == ("completed", github)
        assert (job(it)["verification"], job(it)["github_conclusion"]) == ("confirmed", github)
        assert gate_state(it, pull) == "failure"


@pytest.mark.parametrize("github", ["success", "skipped", "neutral"])
async def test_fault_35_a_silent_job_that_github_saw_succeed_has_timed_out_unreported(
    tmp_path: Path, github: str
) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = await silent_job(it)
        it.github.ci.complete(run, run.job("build"), github)
        await wait_and_look(it)

        assert (state(it), job(it)["github_conclusion"]) == (("timed_out", None), github)
        assert shown_check(it, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} errored (build)")


async def test_the_gate_says_that_a_job_succeeded_unreported(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = await silent_job(it)
        it.github.ci.complete(run, run.job("build"), "success")
        await wait_and_look(it)

        words = "unreported: GitHub saw it succeed, and nobody told the relay"
        assert words in latest_check(it, GATE, pull.head_sha).output["summary"]


async def test_a_silent_job_that_still_runs_has_not_timed_out_and_its_silence_counts_anew(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as it:
        await open_pull(it)
        run = await silent_job(it)
        await wait_and_look(it, 6)
        await wait_and_look(it, 5.9)
        assert state(it) == ("in_progress", None)
        it.github.ci.complete(run, run.job("build"), "failure")
        await wait_and_look(it, 0.2)

        assert state(it) == ("completed", "failure")


async def test_the_silence_of_a_running_job_counts_anew_by_its_downstreams_own_patience(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path, f"L2:\n  - {BACKEND}: {{job_timeout: 2h}}\n") as (it, run):
        await it.github.start_job(run, "build")
        await wait_and_look(it, 2)
        asked = len(it.github.calls_to("GET", RUNS))
        await wait_and_look(it, 1.9)
        assert (asked, len(it.github.calls_to("GET", RUNS))) == (2, 2)
        it.github.ci.complete(run, run.job("build"), "failure")
        await wait_and_look(it, 0.2)

        assert state(it) == ("completed", "failure")


async def test_a_job_that_ran_for_20_hours_is_never_called_timed_out(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (it, run):
        await it.github.start_job(run, "build")
        seen = set()
        for _ in range(20):
            await wait_and_look(it, 1)
            seen.add(state(it))
        assert seen == {("in_progress", None)}

        assert report_outcome(await it.github.complete_job(run, "build")) == "applied"
        assert (state(it), job_marks(job(it))) == (("completed", "success"), set())


async def test_a_silent_job_whose_run_goes_on_ends_and_the_others_go_on(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        it.github.ci.complete(run, run.job("build"), "failure")
        await wait_and_look(it)

        assert (state(it, "build"), state(it, "test")) == (("completed", "failure"), ("in_progress", None))


async def test_a_silent_job_has_timed_out_where_github_does_not_let_us_look(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = await silent_job(it)
        it.github.ci.complete(run, run.job("build"), "success")
        await it.github.change_permissions(GATING, actions=None)
        it.clock.advance(HOUR)
        await wait_and_look(it)

        assert (state(it), job(it)["github_conclusion"]) == (("timed_out", None), None)
        assert gate_state(it, pull) == "failure"


async def test_a_silent_job_has_timed_out_when_github_was_away_for_an_hour(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        await open_pull(it)
        run = await silent_job(it)
        it.github.ci.complete(run, run.job("build"), "failure")
        away = it.github.faults.answer(503, on=Match("GET", RUNS))
        await sweep_after(it, 6 * HOUR)
        await sweep_after(it, 0.9 * HOUR)
        assert state(it) == ("in_progress", None)
        await sweep_after(it, 0.2 * HOUR)
        assert state(it) == ("timed_out", None)
        it.github.faults.remove(away)
        await sweep_after(it, HOUR)

        assert state(it) == ("completed", "failure")


async def test_a_silent_job_of_a_run_that_was_deleted_has_timed_out(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (it, run):
        await it.github.start_job(run, "build")
        del it.github.world.runs[run.id]
        await wait_and_look(it, 6)
        await wait_and_look(it, 1)

        assert state(it) == ("timed_out", None)


async def test_a_silent_job_that_github_does_not_know_has_timed_out(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (it, run):
        await it.github.report(run, "build", job_name="made up")
        await it.github.report(run, "test", job_name="made up too")
        run.attempts[1] = [WorkflowJob(1, "other", JobSpec("other"), 1, it.clock.now())]
        await wait_and_look(it)

        assert {row["state"] for row in it.jobs()} == {"timed_out"}


async def test_nobody_waits_for_hours_for_a_report_out_of_a_run_that_is_over(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        it.github.ci.complete(run, run.job("build"), "success")
        await finish_jobs(it, run, test="success")
        await sweep_after(it, MINUTE)
        assert gate_state(it, pull) == "pending"
        await wait_and_look(it, 11 / 60)

        assert (state(it), gate_state(it, pull)) == (("timed_out", None), "failure")


async def test_a_report_still_on_its_way_when_the_run_ended_is_taken_as_it_is(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        it.github.ci.complete(run, run.job("build"), "success")
        await finish_jobs(it, run, test="success")
        for minutes in (1, 8):
            await wait_and_look(it, minutes / 60)
        await it.github.report(run, "build", status="completed")
        await sweep_after(it, MINUTE)

        assert (state(it), job_marks(job(it))) == (("completed", "success"), set())
        assert gate_state(it, pull) == "success"


async def test_silent_jobs_of_l2_are_looked_up_as_well(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (it, run):
        await it.github.start_job(run, "build")
        it.github.ci.complete(run, run.job("build"), "cancelled")
        await wait_and_look(it)

        assert state(it) == ("completed", "cancelled")


# What is reported after all


async def test_a_real_result_after_the_time_out_counts_and_is_marked_late(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = await silent_job(it)
        it.github.ci.complete(run, run.job("build"), "success")
        await wait_and_look(it)
        assert report_outcome(await it.github.report(run, "build", status="completed")) == "applied"
        await sweep_after(it, MINUTE)

        assert (state(it), job_marks(job(it))) == (("completed", "success"), {"late"})
        assert (job(it)["verification"], gate_state(it, pull)) == ("confirmed", "success")


@pytest.mark.parametrize(
    ("says", "answer", "disputed"),
    [("failure", "repeat", set()), ("success", "conflicting_result", {"disputed"})],
)
async def test_a_report_after_github_said_how_the_job_failed_changes_nothing_for_the_better(
    tmp_path: Path, says: str, answer: str, disputed: set[str]
) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = await silent_job(it)
        it.github.ci.complete(run, run.job("build"), "failure")
        await wait_and_look(it)
        late = await it.github.report(run, "build", status="completed", conclusion=says)
        await it.act()

        assert report_outcome(late) == answer
        assert (state(it), job_marks(job(it))) == (("completed", "failure"), disputed)
        assert gate_state(it, pull) == "failure"


async def test_a_re_run_after_the_time_out_clears_the_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = await silent_job(it)
        it.github.ci.complete(run, run.job("build"), "cancelled")
        await wait_and_look(it)
        await it.github.rerun(run, failed_only=True)
        await start_jobs(it, run, "build")
        await finish_jobs(it, run, build="success")

        assert gate_state(it, pull) == "success"
