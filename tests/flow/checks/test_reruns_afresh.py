"""Re-runs that GitHub cannot do, as a new dispatch of the same delivery; and re-run requests that are refused."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from github_sim.github import CheckRun, Match, WorkflowRun
from support.github.checks import (
    GATES,
    check_history,
    check_names,
    check_states,
    named_workflow,
    press_rerun,
    rerun_calls,
    sent_deliveries,
)
from support.github.gated_upstream import (
    GATE,
    GATED,
    GATING,
    INFORMING,
    LABEL,
    finish_jobs,
    gate_state,
    gated_upstream,
    latest_check,
    open_pull,
    run_all,
    start_jobs,
)
from support.running_relay import UPSTREAM, RunningRelay

PreventRerun = Callable[[RunningRelay, WorkflowRun], Awaitable[None]]
DAY = 86_400.0
BACKEND, BUILD, TEST = check_names(GATING, "build", "test")


# A new dispatch instead of a re-run


async def age_run(relay: RunningRelay, _: WorkflowRun) -> None:
    relay.clock.advance(31 * DAY)


async def use_up_attempts(_: RunningRelay, run: WorkflowRun) -> None:
    run.attempts[51] = run.jobs
    run.attempt = 51


async def delete_run(relay: RunningRelay, run: WorkflowRun) -> None:
    del relay.github.world.runs[run.id]


async def revoke_actions_write(relay: RunningRelay, _: WorkflowRun) -> None:
    relay.github.installation(GATING).permissions["actions"] = "read"


async def revoke_actions(relay: RunningRelay, _: WorkflowRun) -> None:
    del relay.github.installation(GATING).permissions["actions"]


async def mark_as_other_ci(relay: RunningRelay, _: WorkflowRun) -> None:
    """Record the run as one of another CI."""
    relay.rows("UPDATE runs SET issuer = 'buildkite'")


@pytest.mark.parametrize(
    "prevent_rerun",
    [age_run, use_up_attempts, delete_run, revoke_actions_write, revoke_actions, mark_as_other_ci],
)
async def test_a_run_that_github_cannot_rerun_is_dispatched_again(
    tmp_path: Path, prevent_rerun: PreventRerun
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        await prevent_rerun(relay, run)
        await press_rerun(relay, pull, BUILD)
        assert len(set(sent_deliveries(relay))) == 1
        assert len(sent_deliveries(relay)) == 2
        assert gate_state(relay, pull) == "pending"
        await run_all(relay)

        assert gate_state(relay, pull) == "success"
        assert check_states(relay, pull.head_sha, [BUILD, TEST, BACKEND]) == ["success"] * 3


async def test_a_run_of_another_ci_is_not_rerun_on_github(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        await mark_as_other_ci(relay, run)
        await press_rerun(relay, pull, BUILD)

        assert rerun_calls(relay) == []


async def test_a_dispatch_that_started_no_run_is_sent_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        relay.github.repository(GATING).workflows = []
        pull = await open_pull(relay)
        relay.github.repository(GATING).workflows = [named_workflow("build", "test")]
        await press_rerun(relay, pull, BACKEND)
        assert len(sent_deliveries(relay)) == 2
        await run_all(relay)

        assert gate_state(relay, pull) == "success"


async def test_a_parked_dispatch_is_sent_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        relay.github.faults.answer(422, on=Match("POST", f"/repos/{GATING}/dispatches"), times=1)
        pull = await open_pull(relay)
        assert gate_state(relay, pull) == "failure"
        await press_rerun(relay, pull, GATE)
        assert (len(sent_deliveries(relay)), gate_state(relay, pull)) == (1, "pending")
        await run_all(relay)

        assert gate_state(relay, pull) == "success"
        assert relay.rows("SELECT * FROM effects WHERE state = 'parked'") == []


async def test_a_month_old_delivery_of_an_open_head_can_still_be_dispatched(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        relay.clock.advance(31 * DAY)
        await relay.services.sweeper.forget()
        await press_rerun(relay, pull, BUILD)
        assert len(sent_deliveries(relay)) == 2
        await relay.github.close_pr(pull)
        await relay.drain()
        await relay.services.sweeper.forget()

        assert relay.rows("SELECT action FROM deliveries WHERE body IS NOT NULL") == [{"action": "closed"}]


async def test_a_failure_that_cannot_be_rerun_or_dispatched_again_stays(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        await delete_run(relay, run)
        relay.rows("UPDATE deliveries SET body = NULL")
        await press_rerun(relay, pull, BUILD)

        assert len(sent_deliveries(relay)) == 1
        assert check_states(relay, pull.head_sha, [BUILD, GATE]) == ["failure", "failure"]


# Refused requests


async def test_a_redelivered_rerun_request_reruns_nothing_twice(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        request = await relay.github.rerequest_check(latest_check(relay, BUILD, pull.head_sha))
        await relay.drain()
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="failure")
        assert request is not None
        repeated = await relay.github.redeliver(request.guid)
        await relay.drain()

        assert '"repeat":true' in repeated.answer_body
        assert (run.attempt, gate_state(relay, pull)) == (2, "failure")


@pytest.mark.parametrize("given", [None, "1", "999999", "gate", "-1", "9" * 30])
async def test_a_rerun_request_for_a_foreign_check_reruns_nothing(tmp_path: Path, given: str | None) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        repository = relay.github.repository(UPSTREAM)
        theirs = CheckRun(1, repository.id, pull.head_sha, BACKEND, "completed", "failure", external_id=given)
        request = await relay.github.rerequest_check(theirs)
        await relay.drain()

        assert request is not None
        assert '"ignored":"not a check of this relay"' in request.answer_body
        assert (run.attempt, gate_state(relay, pull)) == (1, "failure")


async def test_a_rerun_of_all_checks_does_not_rerun_l2_backends(tmp_path: Path) -> None:
    quiet = f"L2:\n  - {INFORMING}\n" + GATES
    async with gated_upstream(tmp_path, quiet) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        two, four = await run_all(relay, INFORMING, build="failure"), await run_all(relay, GATING)
        await relay.github.rerequest_suite(UPSTREAM, pull.head_sha)
        await relay.drain()

        assert (two.attempt, four.attempt) == (1, 2)
        assert rerun_calls(relay, INFORMING) == []


async def test_a_backend_demoted_to_l2_is_not_rerun(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATED) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        run = await run_all(relay, INFORMING, build="failure")
        relay.write_allowlist(GATES + f"L2:\n  - {INFORMING}\n")
        await relay.refresh()
        await relay.drain()
        await relay.github.rerequest_suite(UPSTREAM, pull.head_sha)
        await relay.drain()

        assert run.attempt == 1


async def test_a_rerun_request_for_a_superseded_commit_reruns_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        old, run = pull.head_sha, await run_all(relay, build="failure")
        relay.clock.advance(60)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        await relay.github.rerequest_check(relay.github.latest_checks(UPSTREAM, old)[BUILD])
        await relay.github.rerequest_suite(UPSTREAM, old)
        await relay.drain()

        assert run.attempt == 1
        assert check_history(relay, BUILD, old) == ["failure"]
        assert check_history(relay, GATE, old) == ["failure"]


async def test_a_rerun_request_for_a_closed_pull_request_reruns_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        relay.clock.advance(60)
        await relay.github.close_pr(pull)
        await relay.drain()
        before = len(sent_deliveries(relay))
        await press_rerun(relay, pull, BUILD)
        await relay.github.rerequest_suite(UPSTREAM, pull.head_sha)
        await relay.drain()

        assert (run.attempt, rerun_calls(relay), len(sent_deliveries(relay))) == (1, [], before)
        assert check_history(relay, BUILD, pull.head_sha) == ["failure"]
        assert check_history(relay, GATE, pull.head_sha) == ["failure"]
