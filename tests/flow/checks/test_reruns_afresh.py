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
    Stage,
    finish_jobs,
    gate_state,
    gated_upstream,
    latest_check,
    open_pull,
    run_all,
    start_jobs,
)
from support.stage import UPSTREAM

Fate = Callable[[Stage, WorkflowRun], Awaitable[None]]
DAY = 86_400.0
BACKEND, BUILD, TEST = check_names(GATING, "build", "test")


# Where only a fresh dispatch helps


async def age(it: Stage, _: WorkflowRun) -> None:
    it.clock.advance(31 * DAY)


async def wear_out(_: Stage, run: WorkflowRun) -> None:
    run.attempts[51] = run.jobs
    run.attempt = 51


async def delete(it: Stage, run: WorkflowRun) -> None:
    del it.github.world.runs[run.id]


async def withdraw_writing(it: Stage, _: WorkflowRun) -> None:
    it.github.installation(GATING).permissions["actions"] = "read"


async def withdraw_all(it: Stage, _: WorkflowRun) -> None:
    del it.github.installation(GATING).permissions["actions"]


async def move_elsewhere(it: Stage, _: WorkflowRun) -> None:
    """As if the reports had come from a CI of another kind: none takes part yet."""
    it.rows("UPDATE runs SET issuer = 'buildkite'")


@pytest.mark.parametrize("fate", [age, wear_out, delete, withdraw_writing, withdraw_all, move_elsewhere])
async def test_what_github_runs_no_more_is_dispatched_afresh(tmp_path: Path, fate: Fate) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        run = await run_all(it, build="failure")
        await fate(it, run)
        await press_rerun(it, pull, BUILD)
        assert len(set(sent_deliveries(it))) == 1
        assert len(sent_deliveries(it)) == 2
        assert gate_state(it, pull) == "pending"
        await run_all(it)

        assert gate_state(it, pull) == "success"
        assert check_states(it, pull.head_sha, [BUILD, TEST, BACKEND]) == ["success"] * 3


async def test_a_run_of_another_ci_is_not_looked_for_at_github(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        run = await run_all(it, build="failure")
        await move_elsewhere(it, run)
        await press_rerun(it, pull, BUILD)

        assert rerun_calls(it) == []


async def test_a_dispatch_that_never_started_is_sent_afresh(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        it.github.repository(GATING).workflows = []
        pull = await open_pull(it)
        it.github.repository(GATING).workflows = [named_workflow("build", "test")]
        await press_rerun(it, pull, BACKEND)
        assert len(sent_deliveries(it)) == 2
        await run_all(it)

        assert gate_state(it, pull) == "success"


async def test_a_parked_dispatch_is_sent_afresh(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        it.github.faults.answer(422, on=Match("POST", f"/repos/{GATING}/dispatches"), times=1)
        pull = await open_pull(it)
        assert gate_state(it, pull) == "failure"
        await press_rerun(it, pull, GATE)
        assert (len(sent_deliveries(it)), gate_state(it, pull)) == (1, "pending")
        await run_all(it)

        assert gate_state(it, pull) == "success"
        assert it.rows("SELECT * FROM effects WHERE state = 'parked'") == []


async def test_a_month_old_delivery_of_an_open_head_can_still_be_dispatched(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        it.clock.advance(31 * DAY)
        await it.services.sweeper.forget()
        await press_rerun(it, pull, BUILD)
        assert len(sent_deliveries(it)) == 2
        await it.github.close_pr(pull)
        await it.act()
        await it.services.sweeper.forget()

        assert it.rows("SELECT action FROM deliveries WHERE body IS NOT NULL") == [{"action": "closed"}]


async def test_what_cannot_run_again_at_all_keeps_its_failure(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        run = await run_all(it, build="failure")
        await delete(it, run)
        it.rows("UPDATE deliveries SET body = NULL")
        await press_rerun(it, pull, BUILD)

        assert len(sent_deliveries(it)) == 1
        assert check_states(it, pull.head_sha, [BUILD, GATE]) == ["failure", "failure"]


# Who may ask


async def test_a_redelivered_request_runs_nothing_twice(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        run = await run_all(it, build="failure")
        request = await it.github.rerequest_check(latest_check(it, BUILD, pull.head_sha))
        await it.act()
        await start_jobs(it, run, "build")
        await finish_jobs(it, run, build="failure")
        assert request is not None
        repeated = await it.github.redeliver(request.guid)
        await it.act()

        assert '"repeat":true' in repeated.answer_body
        assert (run.attempt, gate_state(it, pull)) == (2, "failure")


@pytest.mark.parametrize("given", [None, "1", "999999", "gate", "-1", "9" * 30])
async def test_a_check_that_is_not_ours_runs_nothing_again(tmp_path: Path, given: str | None) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        run = await run_all(it, build="failure")
        repository = it.github.repository(UPSTREAM)
        theirs = CheckRun(1, repository.id, pull.head_sha, BACKEND, "completed", "failure", external_id=given)
        request = await it.github.rerequest_check(theirs)
        await it.act()

        assert request is not None
        assert '"ignored":"not a check of this relay"' in request.answer_body
        assert (run.attempt, gate_state(it, pull)) == (1, "failure")


async def test_re_running_all_checks_leaves_l2_backends_alone(tmp_path: Path) -> None:
    quiet = f"L2:\n  - {INFORMING}\n" + GATES
    async with gated_upstream(tmp_path, quiet) as it:
        pull = await open_pull(it, labels=[LABEL])
        two, four = await run_all(it, INFORMING, build="failure"), await run_all(it, GATING)
        await it.github.rerequest_suite(UPSTREAM, pull.head_sha)
        await it.act()

        assert (two.attempt, four.attempt) == (1, 2)
        assert rerun_calls(it, INFORMING) == []


async def test_a_backend_demoted_to_l2_since_is_not_run_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATED) as it:
        pull = await open_pull(it, labels=[LABEL])
        run = await run_all(it, INFORMING, build="failure")
        it.write_allowlist(GATES + f"L2:\n  - {INFORMING}\n")
        await it.refresh()
        await it.act()
        await it.github.rerequest_suite(UPSTREAM, pull.head_sha)
        await it.act()

        assert run.attempt == 1


async def test_a_superseded_commit_or_closed_pull_request_runs_nothing_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        old, run = pull.head_sha, await run_all(it, build="failure")
        it.clock.advance(60)
        await it.github.push_to_pr(pull)
        await it.act()
        await it.github.rerequest_check(it.github.latest_checks(UPSTREAM, old)[BUILD])
        await it.github.rerequest_suite(UPSTREAM, old)
        await it.act()

        assert run.attempt == 1
        assert check_history(it, BUILD, old) == ["failure"]
        assert check_history(it, GATE, old) == ["failure"]
