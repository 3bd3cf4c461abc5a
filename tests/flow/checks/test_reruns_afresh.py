"""Running again where GitHub runs nothing again: a fresh dispatch of the same delivery; and who is not obeyed."""

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

Fate = Callable[[RunningRelay, WorkflowRun], Awaitable[None]]
DAY = 86_400.0
BACKEND, BUILD, TEST = check_names(GATING, "build", "test")


# Where only a fresh dispatch helps


async def age(relay: RunningRelay, _: WorkflowRun) -> None:
    relay.clock.advance(31 * DAY)


async def wear_out(_: RunningRelay, run: WorkflowRun) -> None:
    run.attempts[51] = run.jobs
    run.attempt = 51


async def delete(relay: RunningRelay, run: WorkflowRun) -> None:
    del relay.github.world.runs[run.id]


async def withdraw_writing(relay: RunningRelay, _: WorkflowRun) -> None:
    relay.github.installation(GATING).permissions["actions"] = "read"


async def withdraw_all(relay: RunningRelay, _: WorkflowRun) -> None:
    del relay.github.installation(GATING).permissions["actions"]


async def move_elsewhere(relay: RunningRelay, _: WorkflowRun) -> None:
    """As if the reports had come from a CI of another kind: none takes part yet."""
    relay.rows("UPDATE runs SET issuer = 'buildkite'")


@pytest.mark.parametrize("fate", [age, wear_out, delete, withdraw_writing, withdraw_all, move_elsewhere])
async def test_what_github_runs_no_more_is_dispatched_afresh(tmp_path: Path, fate: Fate) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        await fate(relay, run)
        await press_rerun(relay, pull, BUILD)
        assert len(set(sent_deliveries(relay))) == 1
        assert len(sent_deliveries(relay)) == 2
        assert gate_state(relay, pull) == "pending"
        await run_all(relay)

        assert gate_state(relay, pull) == "success"
        assert check_states(relay, pull.head_sha, [BUILD, TEST, BACKEND]) == ["success"] * 3


async def test_a_run_of_another_ci_is_not_looked_for_at_github(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        await move_elsewhere(relay, run)
        await press_rerun(relay, pull, BUILD)

        assert rerun_calls(relay) == []


async def test_a_dispatch_that_never_started_is_sent_afresh(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        relay.github.repository(GATING).workflows = []
        pull = await open_pull(relay)
        relay.github.repository(GATING).workflows = [named_workflow("build", "test")]
        await press_rerun(relay, pull, BACKEND)
        assert len(sent_deliveries(relay)) == 2
        await run_all(relay)

        assert gate_state(relay, pull) == "success"


async def test_a_parked_dispatch_is_sent_afresh(tmp_path: Path) -> None:
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


async def test_what_cannot_run_again_at_all_keeps_its_failure(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        await delete(relay, run)
        relay.rows("UPDATE deliveries SET body = NULL")
        await press_rerun(relay, pull, BUILD)

        assert len(sent_deliveries(relay)) == 1
        assert check_states(relay, pull.head_sha, [BUILD, GATE]) == ["failure", "failure"]


# Who may ask


async def test_a_redelivered_request_runs_nothing_twice(tmp_path: Path) -> None:
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
async def test_a_check_that_is_not_ours_runs_nothing_again(tmp_path: Path, given: str | None) -> None:
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


async def test_re_running_all_checks_leaves_l2_backends_alone(tmp_path: Path) -> None:
    quiet = f"L2:\n  - {INFORMING}\n" + GATES
    async with gated_upstream(tmp_path, quiet) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        two, four = await run_all(relay, INFORMING, build="failure"), await run_all(relay, GATING)
        await relay.github.rerequest_suite(UPSTREAM, pull.head_sha)
        await relay.drain()

        assert (two.attempt, four.attempt) == (1, 2)
        assert rerun_calls(relay, INFORMING) == []


async def test_a_backend_demoted_to_l2_since_is_not_run_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATED) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        run = await run_all(relay, INFORMING, build="failure")
        relay.write_allowlist(GATES + f"L2:\n  - {INFORMING}\n")
        await relay.refresh()
        await relay.drain()
        await relay.github.rerequest_suite(UPSTREAM, pull.head_sha)
        await relay.drain()

        assert run.attempt == 1


async def test_a_superseded_commit_or_closed_pull_request_runs_nothing_again(tmp_path: Path) -> None:
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
