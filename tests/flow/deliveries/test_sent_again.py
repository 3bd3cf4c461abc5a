"""The same delivery once more: sent though the old run is known, asked for once, and open to whoever came back."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from github_sim.github import Match, PullRequest, WorkflowRun
from support.github.checks import GATES, check_history, check_names, press_rerun, rerun_calls, sent_deliveries
from support.github.commands import relay_comments, was_obeyed
from support.github.gated_upstream import (
    GATING,
    INFORMING,
    Stage,
    finish_jobs,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
    write_comment,
)
from support.stage import UPSTREAM, repo

BACKEND, BUILD, TEST = check_names(GATING, "build", "test")
SENDS = Match("POST", f"/repos/{GATING}/dispatches")
RERUNS = Match("POST", "*/rerun*")
NOBODY = f"L3:\n  npu:\n    {INFORMING}: [ann]\n"


# A fresh dispatch beside the old run


async def half_failed(it: Stage) -> tuple[PullRequest, WorkflowRun]:
    """`build` has failed and `test` has not begun, in a run that GitHub will not run again."""
    pull = await open_pull(it)
    run = newest_run(it)
    await start_jobs(it, run, "build")
    await finish_jobs(it, run, build="failure")
    del it.github.world.runs[run.id]
    return pull, run


async def pause(it: Stage, *, lift: bool = False) -> None:
    await it.services.acts.pause(repo(UPSTREAM), who="ann", now=it.clock.now(), lift=lift)


async def test_a_fresh_dispatch_that_meets_a_fault_is_sent_again_though_the_old_run_is_known(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        it.clock.advance(60)
        it.github.faults.answer(403, on=RERUNS)
        it.github.faults.answer(502, on=SENDS, times=1)
        await press_rerun(it, pull, BUILD)
        assert len(sent_deliveries(it)) == 1
        await it.pass_time(60)

        assert len(sent_deliveries(it)) == 2
        await run_all(it)
        assert gate_state(it, pull) == "success"


async def test_a_fresh_dispatch_whose_new_run_reports_is_not_sent_a_third_time(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull, _ = await half_failed(it)
        it.clock.advance(60)
        it.github.faults.lose_answer(on=SENDS, times=1)
        await press_rerun(it, pull, BUILD)
        await run_all(it)
        await it.pass_time(60)

        assert (len(sent_deliveries(it)), gate_state(it, pull)) == (2, "success")


async def test_a_late_report_of_the_old_run_is_taken_while_the_fresh_dispatch_waits(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull, old = await half_failed(it)
        await pause(it)
        await press_rerun(it, pull, BUILD)
        late = await it.github.start_job(old, "test")
        await pause(it, lift=True)
        await it.act()

        assert late.status_code == 200
        assert len(sent_deliveries(it)) == 2


async def test_a_late_report_of_the_old_run_does_not_end_the_fresh_dispatch_in_doubt(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull, old = await half_failed(it)
        it.clock.advance(60)
        it.github.faults.answer(502, on=SENDS, times=1)
        await press_rerun(it, pull, BUILD)
        late = await it.github.start_job(old, "test")
        assert (late.status_code, len(sent_deliveries(it))) == (200, 1)
        await it.pass_time(60)

        assert len(sent_deliveries(it)) == 2
        await run_all(it)
        assert gate_state(it, pull) == "success"


# Asked for once


async def test_a_re_run_that_was_heard_and_is_over_before_the_retry_is_not_asked_for_again(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        run = await run_all(it, build="failure")
        it.github.faults.lose_answer(on=RERUNS, times=1)
        await press_rerun(it, pull, BUILD)
        await start_jobs(it, run, "build")
        await finish_jobs(it, run, build="failure")
        await it.pass_time(60)

        assert (run.attempt, len(rerun_calls(it)), len(sent_deliveries(it))) == (2, 1, 1)
        assert check_history(it, BUILD, pull.head_sha) == ["failure", "failure"]
        assert gate_state(it, pull) == "failure"


# Whoever came back


async def leave(it: Stage) -> None:
    it.write_allowlist(NOBODY)
    await it.refresh()


async def come_back(it: Stage) -> None:
    it.write_allowlist(GATES)
    await it.refresh()


async def suspend(it: Stage, *, lift: bool = False) -> None:
    where = repo(UPSTREAM), repo(GATING)
    await it.services.targets.suspend(*where, who="ann", now=it.clock.now(), lift=lift)


async def resume(it: Stage) -> None:
    await suspend(it, lift=True)


@pytest.mark.parametrize(("go", "back"), [(leave, come_back), (suspend, resume)])
async def test_whoever_was_cut_off_before_it_was_told_is_told_by_a_retry_after_it_came_back(
    tmp_path: Path, go: Callable[[Stage], Awaitable[None]], back: Callable[[Stage], Awaitable[None]]
) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        away = it.github.faults.answer(502, on=SENDS)
        pull = await open_pull(it)
        await go(it)
        it.github.faults.remove(away)
        await back(it)
        await it.pass_time(600)
        assert (gate_state(it, pull), sent_deliveries(it)) == ("failure", [])
        await write_comment(it, pull, "/crcr retry")

        assert (gate_state(it, pull), len(sent_deliveries(it))) == ("pending", 1)
        await run_all(it)
        assert gate_state(it, pull) == "success"


async def test_while_it_is_suspended_a_retry_tells_nobody(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        away = it.github.faults.answer(502, on=SENDS)
        pull = await open_pull(it)
        await suspend(it)
        it.github.faults.remove(away)
        said = await write_comment(it, pull, "/crcr retry")
        await it.pass_time(600)

        assert not was_obeyed(said)
        assert ["nothing to run again" in answer for answer in relay_comments(it, pull)] == [True]
        assert (gate_state(it, pull), sent_deliveries(it)) == ("failure", [])
