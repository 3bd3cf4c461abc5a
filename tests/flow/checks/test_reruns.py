"""Re-runs, from the button of a check to the new attempt's result."""

from pathlib import Path

import pytest

from github_sim.github import Match, PullRequest, WorkflowRun
from support.github.checks import (
    GATES,
    LISTED,
    check_history,
    check_names,
    check_state,
    check_states,
    check_title,
    named_workflow,
    open_twin,
    press_rerun,
    rerun_calls,
    run_all_for,
    sent_deliveries,
)
from support.github.gated_upstream import (
    GATE,
    GATING,
    INFORMING,
    LABEL,
    finish_jobs,
    gate_state,
    gated_upstream,
    latest_check,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
)
from support.running_relay import UPSTREAM, RunningRelay

DAY = 86_400.0
BACKEND, BUILD, TEST = check_names(GATING, "build", "test")
OTHER = "org/other"
TWO_GATE = GATES + f"  - {OTHER}: {{oncalls: [eve], jobs: [build, test]}}\n"


# The failed jobs of the run


@pytest.mark.parametrize("name", [BUILD, BACKEND, GATE])
async def test_a_rerun_requests_only_the_failed_jobs_of_the_run(tmp_path: Path, name: str) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        await press_rerun(relay, pull, name)

        assert rerun_calls(relay) == [("rerun-failed-jobs", 201)]
        assert (run.attempt, [job.attempt for job in run.jobs]) == (2, [2, 1])
        assert len(sent_deliveries(relay)) == 1


async def test_failed_jobs_are_queued_from_the_rerun_request_on_and_passed_jobs_stay(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        relay.github.faults.answer(503, on=Match("POST", "*/rerun-failed-jobs"))
        await press_rerun(relay, pull, BUILD)

        assert check_history(relay, BUILD, pull.head_sha) == ["failure", "queued"]
        assert check_title(relay, BUILD, pull.head_sha) == "runs again after: failure"
        assert check_history(relay, TEST, pull.head_sha) == ["success"]
        assert check_state(relay, BACKEND, pull.head_sha) == "in_progress"
        assert check_history(relay, GATE, pull.head_sha) == ["failure", "in_progress"]


async def test_a_new_attempt_publishes_new_checks_of_the_same_names(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        await press_rerun(relay, pull, BUILD)
        await start_jobs(relay, run, "build")
        assert check_states(relay, pull.head_sha, [BUILD, BACKEND, GATE]) == ["in_progress"] * 3
        await finish_jobs(relay, run, build="success")

        for name in (BUILD, BACKEND, GATE):
            assert check_history(relay, name, pull.head_sha) == ["failure", "success"]
        assert [(job["job_name"], job["attempt"]) for job in relay.jobs()] == [
            ("build", 1),
            ("test", 1),
            ("build", 2),
        ]


async def test_a_second_failure_fails_the_checks_again_and_can_be_rerun_a_third_time(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        for conclusion in ("failure", "success"):
            await press_rerun(relay, pull, GATE)
            await start_jobs(relay, run, "build")
            await finish_jobs(relay, run, build=conclusion)

        assert check_history(relay, BUILD, pull.head_sha) == ["failure", "failure", "success"]
        assert (run.attempt, gate_state(relay, pull)) == (3, "success")


async def test_an_attempt_started_outside_the_relay_publishes_new_checks_too(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure", test="failure")
        await relay.github.rerun(run, failed_only=True)
        await start_jobs(relay, run, "build")

        assert check_history(relay, BUILD, pull.head_sha) == ["failure", "in_progress"]
        assert check_history(relay, TEST, pull.head_sha) == ["failure", "queued"]
        assert gate_state(relay, pull) == "pending"


# Which runs


async def run_two_workflows(
    relay: RunningRelay, **conclusions: str
) -> tuple[PullRequest, WorkflowRun, WorkflowRun]:
    relay.github.repository(GATING).workflows = [
        named_workflow("build", "test"),
        named_workflow("lint", workflow="Lint", file="lint.yml"),
    ]
    pull = await open_pull(relay)
    first, second = relay.github.runs(GATING)
    for run in (first, second):
        await start_jobs(relay, run)
        await finish_jobs(relay, run, **{job.name: conclusions.get(job.name, "success") for job in run.jobs})
    return pull, first, second


async def test_a_rerun_of_a_job_check_reruns_only_its_own_run(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull, first, second = await run_two_workflows(relay, build="failure", lint="failure")
        await press_rerun(relay, pull, f"crcr/{GATING}/Lint/lint")

        assert (first.attempt, second.attempt) == (1, 2)
        assert check_history(relay, BUILD, pull.head_sha) == ["failure"]


async def test_a_rerun_of_a_backend_check_reruns_all_its_runs(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull, first, second = await run_two_workflows(relay, build="failure", lint="failure")
        await press_rerun(relay, pull, BACKEND)

        assert (first.attempt, second.attempt) == (2, 2)


async def test_a_rerun_of_the_gate_reruns_only_failed_runs_of_failed_backends(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO_GATE, downstreams=(GATING, OTHER)) as relay:
        pull, first, second = await run_two_workflows(relay, lint="failure")
        other = await run_all(relay, OTHER)
        await press_rerun(relay, pull, GATE)

        assert (first.attempt, second.attempt, other.attempt) == (1, 2, 1)
        assert gate_state(relay, pull) == "pending"


async def test_a_rerun_of_all_checks_reruns_every_run_of_the_commit(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        run, informing = await run_all(relay, GATING, build="failure"), await run_all(relay, INFORMING)
        await relay.github.rerequest_suite(UPSTREAM, pull.head_sha)
        await relay.drain()

        assert (run.attempt, informing.attempt) == (2, 2)
        assert rerun_calls(relay, INFORMING) == [("rerun-failed-jobs", 403), ("rerun", 201)]


async def test_a_rerun_of_an_l3_backend_does_not_affect_the_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, GATING)
        run = await run_all(relay, INFORMING, build="failure")
        name = check_names(INFORMING, "build")[1]
        await press_rerun(relay, pull, name)

        assert (run.attempt, check_history(relay, name, pull.head_sha)) == (2, ["neutral", "queued"])
        assert check_history(relay, GATE, pull.head_sha) == ["success"]


async def test_with_two_pull_requests_on_one_head_only_the_jobs_own_run_is_rerun(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        first = await run_all(relay, build="failure")
        relay.clock.advance(60)
        twin = await open_twin(relay, pull)
        second = await run_all_for(relay, twin, build="failure", test="success")
        await press_rerun(relay, pull, BUILD)

        assert (first.attempt, second.attempt) == (1, 2)
        assert len(sent_deliveries(relay)) == 2


# Nothing failed, or nothing to do


async def test_without_a_failed_job_the_whole_run_is_rerun(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        run = await run_all(relay)
        await press_rerun(relay, pull, BUILD)
        assert rerun_calls(relay) == [("rerun-failed-jobs", 403), ("rerun", 201)]
        await start_jobs(relay, run)
        assert check_states(relay, pull.head_sha, [BUILD, TEST, BACKEND, GATE]) == ["in_progress"] * 4
        await finish_jobs(relay, run)

        assert check_history(relay, GATE, pull.head_sha) == ["success", "success"]


async def test_a_rerun_request_for_a_run_that_was_rerun_already_succeeds(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        await relay.github.rerun(run, failed_only=True)
        await press_rerun(relay, pull, BUILD)

        assert (run.attempt, len(sent_deliveries(relay))) == (2, 1)
        assert check_history(relay, BUILD, pull.head_sha) == ["failure", "queued"]
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="success")
        assert gate_state(relay, pull) == "success"


async def test_repeated_rerun_requests_rerun_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        for name in (BUILD, BACKEND, GATE):
            await relay.github.rerequest_check(latest_check(relay, name, pull.head_sha))
        await relay.drain()
        await press_rerun(relay, pull, BUILD)

        assert (run.attempt, len(sent_deliveries(relay))) == (2, 1)
        assert [status for _, status in rerun_calls(relay)].count(201) == 1


async def test_a_rerun_requested_during_the_first_attempt_waits_for_its_end(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await finish_jobs(relay, run, build="failure")
        await press_rerun(relay, pull, BUILD)
        assert (run.attempt, check_state(relay, BUILD, pull.head_sha)) == (1, "queued")
        await finish_jobs(relay, run, test="success")
        await relay.pass_time(70)

        assert (run.attempt, len(sent_deliveries(relay)), gate_state(relay, pull)) == (2, 1, "pending")
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="success")
        assert gate_state(relay, pull) == "success"


async def test_a_lost_response_to_the_rerun_starts_no_third_attempt(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        relay.github.faults.lose_answer(on=Match("POST", "*/rerun-failed-jobs"), times=1)
        await press_rerun(relay, pull, BUILD)
        await relay.pass_time(60)

        assert (run.attempt, len(sent_deliveries(relay))) == (2, 1)
        assert check_history(relay, BUILD, pull.head_sha) == ["failure", "queued"]


# Times


def queue_times(relay: RunningRelay) -> list[tuple[int, float | None]]:
    return [(job["attempt"], job["queue_s"]) for job in relay.jobs() if job["job_name"] == "build"]


async def test_fault_19_the_queue_time_of_a_rerun_counts_from_the_request(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        relay.clock.advance(2 * DAY)
        await press_rerun(relay, pull, BUILD)
        relay.clock.advance(40)
        await start_jobs(relay, run, "build")

        assert queue_times(relay) == [(1, 0.0), (2, 40.0)]


async def test_fault_19_a_rerun_started_outside_the_relay_has_no_queue_time(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        await press_rerun(relay, pull, BUILD)
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="failure")
        await relay.github.rerun(run)
        relay.clock.advance(60)
        await start_jobs(relay, run, "build")

        assert queue_times(relay) == [(1, 0.0), (2, 0.0), (3, None)]


async def test_the_gate_timeout_restarts_with_the_rerun_request(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        relay.clock.advance(7 * 3600)
        await press_rerun(relay, pull, BUILD)
        relay.clock.advance(7 * 3600)
        await relay.services.sweeper.sweep()
        await relay.drain()
        assert gate_state(relay, pull) == "pending"
        relay.clock.advance(3600)
        await relay.services.sweeper.sweep()
        await relay.drain()

        assert gate_state(relay, pull) == "failure"
        assert "was to run again" in latest_check(relay, GATE, pull.head_sha).output["summary"]
