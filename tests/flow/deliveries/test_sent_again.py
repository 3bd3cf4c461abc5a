"""The same delivery sent again: although the old run is known, only once, and to a backend that was relisted."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from github_sim.github import Match, PullRequest, WorkflowRun
from support.github.checks import GATES, check_history, check_names, press_rerun, rerun_calls, sent_deliveries
from support.github.commands import relay_comments, was_obeyed
from support.github.gated_upstream import (
    GATING,
    INFORMING,
    finish_jobs,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
    write_comment,
)
from support.running_relay import UPSTREAM, RunningRelay, repo

BACKEND, BUILD, TEST = check_names(GATING, "build", "test")
SENDS = Match("POST", f"/repos/{GATING}/dispatches")
RERUNS = Match("POST", "*/rerun*")
WITHOUT_GATING = f"L3:\n  npu:\n    {INFORMING}: [ann]\n"


# A fresh dispatch beside the old run


async def open_with_half_failed_run(relay: RunningRelay) -> tuple[PullRequest, WorkflowRun]:
    """`build` has failed and `test` has not begun, in a run that GitHub will not run again."""
    pull = await open_pull(relay)
    run = newest_run(relay)
    await start_jobs(relay, run, "build")
    await finish_jobs(relay, run, build="failure")
    del relay.github.world.runs[run.id]
    return pull, run


async def pause(relay: RunningRelay, *, lift: bool = False) -> None:
    await relay.services.acts.pause(repo(UPSTREAM), who="ann", now=relay.clock.now(), lift=lift)


async def test_a_failed_fresh_dispatch_is_retried_although_the_old_run_has_reported(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        relay.clock.advance(60)
        relay.github.faults.answer(403, on=RERUNS)
        relay.github.faults.answer(502, on=SENDS, times=1)
        await press_rerun(relay, pull, BUILD)
        assert len(sent_deliveries(relay)) == 1
        await relay.pass_time(60)

        assert len(sent_deliveries(relay)) == 2
        await run_all(relay)
        assert gate_state(relay, pull) == "success"


async def test_a_fresh_dispatch_whose_new_run_reports_is_not_sent_a_third_time(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull, _ = await open_with_half_failed_run(relay)
        relay.clock.advance(60)
        relay.github.faults.lose_answer(on=SENDS, times=1)
        await press_rerun(relay, pull, BUILD)
        await run_all(relay)
        await relay.pass_time(60)

        assert (len(sent_deliveries(relay)), gate_state(relay, pull)) == (2, "success")


async def test_a_late_report_of_the_old_run_is_accepted_while_the_fresh_dispatch_waits(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull, old = await open_with_half_failed_run(relay)
        await pause(relay)
        await press_rerun(relay, pull, BUILD)
        late = await relay.github.start_job(old, "test")
        await pause(relay, lift=True)
        await relay.drain()

        assert late.status_code == 200
        assert len(sent_deliveries(relay)) == 2


async def test_a_late_report_of_the_old_run_does_not_complete_the_unsure_fresh_dispatch(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull, old = await open_with_half_failed_run(relay)
        relay.clock.advance(60)
        relay.github.faults.answer(502, on=SENDS, times=1)
        await press_rerun(relay, pull, BUILD)
        late = await relay.github.start_job(old, "test")
        assert (late.status_code, len(sent_deliveries(relay))) == (200, 1)
        await relay.pass_time(60)

        assert len(sent_deliveries(relay)) == 2
        await run_all(relay)
        assert gate_state(relay, pull) == "success"


# A rerun is requested once


async def test_a_rerun_that_finished_before_its_request_is_retried_is_not_requested_again(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        relay.github.faults.lose_answer(on=RERUNS, times=1)
        await press_rerun(relay, pull, BUILD)
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="failure")
        await relay.pass_time(60)

        assert (run.attempt, len(rerun_calls(relay)), len(sent_deliveries(relay))) == (2, 1, 1)
        assert check_history(relay, BUILD, pull.head_sha) == ["failure", "failure"]
        assert gate_state(relay, pull) == "failure"


# Backends that were cut off and returned


async def delist(relay: RunningRelay) -> None:
    relay.write_allowlist(WITHOUT_GATING)
    await relay.refresh()


async def relist(relay: RunningRelay) -> None:
    relay.write_allowlist(GATES)
    await relay.refresh()


async def suspend(relay: RunningRelay, *, lift: bool = False) -> None:
    target = repo(UPSTREAM), repo(GATING)
    await relay.services.targets.suspend(*target, who="ann", now=relay.clock.now(), lift=lift)


async def resume(relay: RunningRelay) -> None:
    await suspend(relay, lift=True)


@pytest.mark.parametrize(("cut_off", "restore"), [(delist, relist), (suspend, resume)])
async def test_a_retry_dispatches_to_a_backend_that_was_cut_off_before_its_dispatch_and_returned(
    tmp_path: Path,
    cut_off: Callable[[RunningRelay], Awaitable[None]],
    restore: Callable[[RunningRelay], Awaitable[None]],
) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        outage = relay.github.faults.answer(502, on=SENDS)
        pull = await open_pull(relay)
        await cut_off(relay)
        relay.github.faults.remove(outage)
        await restore(relay)
        await relay.pass_time(600)
        assert (gate_state(relay, pull), sent_deliveries(relay)) == ("failure", [])
        await write_comment(relay, pull, "/crcr retry")

        assert (gate_state(relay, pull), len(sent_deliveries(relay))) == ("pending", 1)
        await run_all(relay)
        assert gate_state(relay, pull) == "success"


async def test_a_retry_sends_nothing_to_a_suspended_backend(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        outage = relay.github.faults.answer(502, on=SENDS)
        pull = await open_pull(relay)
        await suspend(relay)
        relay.github.faults.remove(outage)
        comment = await write_comment(relay, pull, "/crcr retry")
        await relay.pass_time(600)

        assert not was_obeyed(comment)
        assert ["nothing to run again" in answer for answer in relay_comments(relay, pull)] == [True]
        assert (gate_state(relay, pull), sent_deliveries(relay)) == ("failure", [])
