"""Which job a report belongs to, with real tokens: matrix legs, separate reporting jobs, servers that sign fewer claims."""

from pathlib import Path
from typing import Any

import httpx

from github_sim.github import WorkflowJob, WorkflowRun
from support.downstream.callbacks import (
    dispatched_run,
    refusal_code,
    report_outcome,
    sweep,
    workflow_with_jobs,
)
from support.running_relay import RunningRelay

LEGS = workflow_with_jobs("build", "build", "report")


def results_by_name(relay: RunningRelay) -> dict[str, str]:
    return {job["job_name"]: job["conclusion"] or job["state"] for job in relay.jobs()}


async def finish(
    relay: RunningRelay, run: WorkflowRun, job: WorkflowJob, conclusion: str = "success", **more: Any
) -> str:
    return report_outcome(
        await relay.github.report(run, job, status="completed", conclusion=conclusion, **more)
    )


async def start(relay: RunningRelay, run: WorkflowRun, job: WorkflowJob, **more: Any) -> httpx.Response:
    return await relay.github.report(run, job, **more)


async def test_a_second_matrix_leg_of_the_same_name_gets_its_own_row_with_a_warning(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, workflows=LEGS) as (relay, run):
        first, second, _ = run.jobs
        plain, warned = await start(relay, run, first), await start(relay, run, second)

        assert "warning" not in plain.json()
        assert warned.status_code == 200
        assert warned.json()["job_name"] == "build (2)"
        assert "job_name" in warned.json()["warning"]
        assert results_by_name(relay) == {"build": "in_progress", "build (2)": "in_progress"}


async def test_each_matrix_leg_closes_and_repeats_only_its_own_row(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, workflows=LEGS) as (relay, run):
        first, second, _ = run.jobs
        await start(relay, run, first)
        await start(relay, run, second)
        assert await finish(relay, run, second, "failure") == "applied"
        assert await finish(relay, run, first, "success") == "applied"

        assert results_by_name(relay) == {"build": "success", "build (2)": "failure"}
        assert report_outcome(await start(relay, run, second)) == "repeat"
        assert await finish(relay, run, second, "failure") == "repeat"
        assert await finish(relay, run, second, "success") == "conflicting_result"
        assert results_by_name(relay) == {"build": "success", "build (2)": "failure"}


async def test_a_numbered_leg_name_skips_a_job_that_already_has_this_name(tmp_path: Path) -> None:
    workflows = workflow_with_jobs("build", "build (2)", "build")
    async with dispatched_run(tmp_path, workflows=workflows) as (relay, run):
        first, named_so, leg = run.jobs
        for job in (first, named_so, leg):
            await start(relay, run, job)
        await finish(relay, run, leg, "failure")

        assert results_by_name(relay) == {
            "build": "in_progress",
            "build (2)": "in_progress",
            "build (3)": "failure",
        }


async def test_a_separate_reporting_job_closes_the_only_open_row(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, workflows=LEGS) as (relay, run):
        build, _, reporter = run.jobs
        await start(relay, run, build)
        assert await finish(relay, run, reporter, "failure", job_name="build") == "applied"

        assert results_by_name(relay) == {"build": "failure"}
        assert await finish(relay, run, reporter, "failure", job_name="build") == "repeat"
        assert await finish(relay, run, build, "failure") == "repeat"
        assert await finish(relay, run, reporter, "success", job_name="build") == "conflicting_result"


async def test_a_separate_reporting_job_closes_the_last_open_leg(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, workflows=LEGS) as (relay, run):
        first, second, reporter = run.jobs
        await start(relay, run, first)
        await start(relay, run, second)
        await finish(relay, run, first)
        assert await finish(relay, run, reporter, job_name="build") == "applied"

        assert results_by_name(relay) == {"build": "success", "build (2)": "success"}
        assert await finish(relay, run, reporter, job_name="build") == "repeat"


async def test_a_result_that_matches_two_open_legs_is_ambiguous_and_changes_nothing(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, workflows=LEGS) as (relay, run):
        first, second, reporter = run.jobs
        await start(relay, run, first)
        await start(relay, run, second)
        answer = await relay.github.report(
            run, reporter, status="completed", conclusion="success", job_name="build"
        )

        assert refusal_code(answer) == (409, "ambiguous_job")
        assert "names of their own" in answer.json()["error"]["hint"]
        assert results_by_name(relay) == {"build": "in_progress", "build (2)": "in_progress"}


async def test_a_job_that_opened_its_own_row_may_not_close_the_row_of_another_job(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, workflows=LEGS) as (relay, run):
        build, _, other = run.jobs
        await start(relay, run, build)
        await start(relay, run, other)

        assert await finish(relay, run, other, job_name="build") == "claim_mismatch"
        assert results_by_name(relay) == {"build": "in_progress", "report": "in_progress"}


async def test_a_job_named_like_a_matrix_leg_may_not_close_the_row_of_the_plain_name(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, workflows=workflow_with_jobs("build", "build (cuda)")) as (
        relay,
        run,
    ):
        build, cuda = run.jobs
        await start(relay, run, build)
        await start(relay, run, cuda)

        assert await finish(relay, run, cuda, job_name="build") == "claim_mismatch"
        assert await finish(relay, run, cuda) == "applied"


async def test_one_reporting_job_may_open_and_close_several_names(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, workflows=LEGS) as (relay, run):
        reporter = run.job("report")
        for name in ("unit", "integration", "lint"):
            assert report_outcome(await start(relay, run, reporter, job_name=name)) == "applied"
            assert report_outcome(await start(relay, run, reporter, job_name=name)) == "repeat"
        for name in ("lint", "unit", "integration"):
            assert await finish(relay, run, reporter, job_name=name) == "applied"
            assert await finish(relay, run, reporter, job_name=name) == "repeat"

        assert results_by_name(relay) == {"unit": "success", "integration": "success", "lint": "success"}


async def test_without_a_signed_check_run_id_each_name_has_one_job(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, workflows=LEGS) as (relay, run):
        relay.github.issuer.signs_check_run_id = False
        first, second, reporter = run.jobs
        assert report_outcome(await start(relay, run, first)) == "applied"
        assert report_outcome(await start(relay, run, second)) == "repeat"
        assert await finish(relay, run, reporter, job_name="build") == "applied"
        assert await finish(relay, run, first) == "repeat"
        assert await finish(relay, run, second, "failure") == "conflicting_result"

        [job] = relay.jobs()
        assert (job["job_name"], job["opened_by"], job["conclusion"]) == ("build", None, "failure")


async def test_the_unsigned_check_run_id_of_the_body_is_not_used_to_match_jobs(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, workflows=LEGS) as (relay, run):
        first, second, _ = run.jobs
        await start(relay, run, first)
        await start(relay, run, second, check_run_id=str(first.id))
        await finish(relay, run, second, "failure", check_run_id=f"{run.id}-1")

        assert results_by_name(relay) == {"build": "in_progress", "build (2)": "failure"}


async def test_a_timed_out_leg_is_still_closed_by_its_own_check_run_id(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, workflows=LEGS) as (relay, run):
        first, second, _ = run.jobs
        await start(relay, run, first)
        relay.clock.advance(3600)
        await start(relay, run, second)
        relay.clock.advance(5.5 * 3600)
        relay.github.ci.complete(run, first, "success")
        await sweep(relay)

        assert results_by_name(relay) == {"build": "timed_out", "build (2)": "in_progress"}
        assert await finish(relay, run, first) == "applied"
        assert results_by_name(relay) == {"build": "success", "build (2)": "in_progress"}
