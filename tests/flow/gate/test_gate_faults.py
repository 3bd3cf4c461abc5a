"""What must never happen to a gate (faults 34 to 40): whatever breaks, nothing merges that nobody has vouched for."""

from pathlib import Path

import pytest

from github_sim.github import Match, MergeBlocked
from support.downstream.callbacks import callbacks_on_outage, post_report, report_outcome
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
    newest_run,
    open_pull,
    run_all,
    shown_check,
    start_jobs,
    sweep_after,
    write_comment,
)
from support.running_relay import UPSTREAM, RunningRelay

MINUTE, HOUR = 60.0, 3600.0
SECOND = "org/second"
TWO = f"""L4:
  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}
  - {SECOND}: {{oncalls: [cat], jobs: [build, test]}}
"""
THEM = (GATING, SECOND)
UNNAMED = f"L4:\n  - {GATING}: [bob]\n"
CREATE = Match("POST", f"/repos/{UPSTREAM}/check-runs")
UPDATE = Match("PATCH", f"/repos/{UPSTREAM}/check-runs/*")
LIST = Match("GET", f"/repos/{UPSTREAM}/commits/*/check-runs")
REFUSED = "Resource not accessible by integration"


def gates(relay: RunningRelay, sha: str) -> list[str | None]:
    return [each.conclusion for each in relay.github.checks(UPSTREAM, sha) if each.name == GATE]


# 34: no check run exists, so the merge goes through


async def test_fault_34_the_gate_stands_on_the_head_before_any_backend_has_answered(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)

        assert relay.jobs() == []
        assert relay.github.merge_state(pull).blocked_by == ("crcr/gate: pending",)


@pytest.mark.parametrize("status", [500, 403, 422])
async def test_fault_34_a_head_whose_check_could_not_be_made_waits_for_it_and_gets_it(
    tmp_path: Path, status: int
) -> None:
    async with gated_upstream(tmp_path) as relay:
        fault = relay.github.faults.answer(status, on=CREATE, message=REFUSED)
        pull = await open_pull(relay)
        with pytest.raises(MergeBlocked, match="crcr/gate: expected"):
            await relay.github.merge_pr(pull)
        relay.github.faults.remove(fault)
        await relay.services.reconciler.run()
        await sweep_after(relay, HOUR)

        assert gates(relay, pull.head_sha) == [None]


async def test_fault_34_a_lost_answer_leaves_one_gate_and_not_two(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.faults.lose_answer(on=CREATE, times=1)
        pull = await open_pull(relay)
        await sweep_after(relay, MINUTE)
        await run_all(relay)

        assert gates(relay, pull.head_sha) == ["success"]


async def test_fault_34_a_webhook_that_never_came_is_recovered_and_its_head_gets_the_gate(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.faults.webhooks.lose(times=1)
        pull = await open_pull(relay)
        assert relay.github.merge_state(pull).blocked_by == ("crcr/gate: expected",)
        relay.clock.advance(10 * MINUTE)
        await relay.services.reconciler.run()
        await relay.drain()

        assert gate_state(relay, pull) == "pending"


# 35: cancelled or timed-out counts as passed


async def test_fault_35_a_cancelled_run_blocks_the_merge(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))
        await relay.github.cancel(newest_run(relay))
        await relay.drain()

        assert shown_check(relay, GATE, pull.head_sha) == (
            "completed",
            "failure",
            f"{GATING} errored (build, test), infrastructure",
        )


async def test_fault_35_a_run_that_is_cancelled_without_a_word_blocks_the_merge(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))
        await relay.github.cancel(newest_run(relay), report=False)
        await sweep_after(relay, 6 * HOUR)
        await sweep_after(relay)

        assert shown_check(relay, GATE, pull.head_sha) == (
            "completed",
            "failure",
            f"{GATING} errored (build, test), infrastructure",
        )
        assert "cancelled" in latest_check(relay, GATE, pull.head_sha).output["summary"]


async def test_fault_35_a_job_that_went_silent_has_not_passed_even_where_github_saw_success(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await finish_jobs(relay, run, build="success")
        relay.github.ci.complete(run, run.job("test"), "success")
        for _ in range(3):
            await sweep_after(relay, 3 * HOUR)

        title = f"{GATING} errored (test), missing: it started and never reported its end"
        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", title)


async def test_fault_35_a_reported_success_that_github_saw_cancelled_does_not_pass(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await finish_jobs(relay, run, build="success")
        relay.github.ci.complete(run, run.job("test"), "cancelled")
        await relay.github.report(run, "test", status="completed", conclusion="success")
        await relay.drain()
        await sweep_after(relay, MINUTE)

        assert gate_state(relay, pull) == "failure"
        assert "disputed" in latest_check(relay, GATE, pull.head_sha).output["summary"]


# 36: the allowlist or the checks cannot be read, so the gate opens


async def test_fault_36_without_any_allowlist_ever_read_nothing_is_taken_and_nothing_is_green(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, "}{") as relay:
        pull = await open_pull(relay)
        assert relay.github.deliveries()[-1].status_code == 503
        with pytest.raises(MergeBlocked, match="crcr/gate: expected"):
            await relay.github.merge_pr(pull)
        relay.write_allowlist(GATED)
        await relay.refresh()
        relay.clock.advance(10 * MINUTE)
        await relay.services.reconciler.run()
        await relay.drain()

        assert gate_state(relay, pull) == "pending"


@pytest.mark.parametrize("broken", ["}{", "L5:\n  - org/x\n", f"L4:\n  - {GATING}\n", "L4: ["])
async def test_fault_36_a_broken_allowlist_keeps_the_last_good_ones_gate(tmp_path: Path, broken: str) -> None:
    async with gated_upstream(tmp_path) as relay:
        before = await open_pull(relay)
        relay.write_allowlist(broken)
        await relay.refresh()
        after = await open_pull(relay)

        assert (gate_state(relay, before), gate_state(relay, after)) == ("pending", "pending")
        assert len(relay.github.dispatches(GATING)) == 2


async def test_fault_36_an_allowlist_that_is_gone_keeps_the_last_good_ones_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        (tmp_path / "allowlist.yml").unlink()
        await relay.refresh()
        await relay.services.reconciler.run()
        await sweep_after(relay, HOUR)

        assert gate_state(relay, pull) == "pending"


@pytest.mark.parametrize("away", [UPDATE, LIST, CREATE])
async def test_fault_36_while_the_checks_api_is_away_no_gate_turns_green(tmp_path: Path, away: Match) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.faults.lose_answer(on=CREATE, times=1)
        fault = relay.github.faults.answer(502, on=away)
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await sweep_after(relay, MINUTE)
        assert gate_state(relay, pull) != "success"
        relay.github.faults.remove(fault)
        await sweep_after(relay, HOUR)

        assert gate_state(relay, pull) == "failure"


async def test_fault_36_while_actions_cannot_be_read_an_unnamed_backend_is_waited_for(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, UNNAMED, downstreams=(GATING,)) as relay:
        fault = relay.github.faults.answer(503, on=Match("GET", f"/repos/{GATING}/actions/*"))
        pull = await open_pull(relay)
        await run_all(relay)
        await sweep_after(relay, HOUR)
        assert gate_state(relay, pull) == "pending"
        relay.github.faults.remove(fault)
        await sweep_after(relay, HOUR)
        await sweep_after(relay, HOUR)

        assert gate_state(relay, pull) == "success"


async def test_fault_36_a_store_that_is_away_leaves_the_gate_pending_until_the_report_is_taken(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await finish_jobs(relay, run, test="success")
        relay.github.ci.complete(run, run.job("build"), "success")
        async with callbacks_on_outage(relay) as (store, http):
            store.writes_to_fail = 1
            answer = await post_report(relay, run, "build", "completed", http=http, conclusion="success")
            await sweep_after(relay)
            assert (answer.status_code, gate_state(relay, pull)) == (503, "pending")
            assert report_outcome(await post_report(relay, run, "build", "completed", http=http)) == "applied"
        await relay.drain()

        assert gate_state(relay, pull) == "success"


# 37: an informational check blocks, or holds a merge loop for hours


@pytest.mark.parametrize("conclusion", ["failure", "cancelled", "timed_out", "action_required"])
async def test_fault_37_an_informational_backend_that_fails_blocks_nothing(
    tmp_path: Path, conclusion: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.require_checks(UPSTREAM, [GATE, f"crcr/{INFORMING}"])
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, GATING)
        await run_all(relay, INFORMING, build=conclusion)
        await sweep_after(relay, MINUTE)
        await sweep_after(relay, 3 * MINUTE)

        ends = {each.conclusion for each in relay.github.checks(UPSTREAM)}
        assert ends == {"success", "neutral"}
        await relay.github.merge_pr(pull)


async def test_fault_37_an_informational_backend_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, GATING)

        assert shown_check(relay, f"crcr/{INFORMING}", pull.head_sha) is not None
        await relay.github.merge_pr(pull)


async def test_fault_37_a_merge_loop_that_waits_for_every_check_is_not_held_up(tmp_path: Path) -> None:
    (tmp_path / "crcr.toml").write_text('[[upstream]]\nl3_pending = "neutral"\n')
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await start_jobs(relay, newest_run(relay, INFORMING))
        await run_all(relay, GATING)

        open_ones = [each.name for each in relay.github.checks(UPSTREAM) if each.status != "completed"]
        assert open_ones == []
        assert gate_state(relay, pull) == "success"


# 38: a failure of an older commit blocks the new one


async def test_fault_38_a_failure_of_an_older_commit_does_not_block_the_new_one(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        relay.clock.advance(1)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        assert gate_state(relay, pull) == "pending"
        await run_all(relay)

        await relay.github.merge_pr(pull)


async def test_fault_38_an_older_commits_late_failure_does_not_reach_the_new_one(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        old = newest_run(relay)
        await start_jobs(relay, old)
        relay.clock.advance(1)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        await run_all(relay)
        await finish_jobs(relay, old, build="failure")

        assert gate_state(relay, pull) == "success"


# 39: a merge queue hangs because the check ignores merge_group


async def test_fault_39_a_merge_group_gets_the_gate_and_is_merged_by_it(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await relay.github.push(UPSTREAM, files={"moved": "on"})
        group = await relay.github.enqueue(pull)
        await relay.drain()
        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")
        await run_all(relay)
        await relay.github.settle_queue(UPSTREAM)

        assert pull.merged


async def test_fault_39_a_queue_without_any_gating_backend_does_not_hang(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.write_allowlist("L2:\n  - org/other\n")
        await relay.refresh()
        pull = await open_pull(relay)
        await relay.github.push(UPSTREAM, files={"moved": "on"})
        group = await relay.github.enqueue(pull)
        await relay.drain()
        assert shown_check(relay, GATE, group.head_sha) == ("completed", "success", "no gating backend")
        await relay.github.settle_queue(UPSTREAM)

        assert pull.merged


# 40: the only override skips all other CI as well


async def test_fault_40_a_waiver_of_one_backend_leaves_the_other_gating(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=THEM) as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING, build="failure")
        await run_all(relay, SECOND, build="failure")
        await write_comment(relay, pull, f"/crcr waive {GATING} because known")

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{SECOND} failed (build)")
        with pytest.raises(MergeBlocked, match="crcr/gate: failure"):
            await relay.github.merge_pr(pull)


async def test_fault_40_a_waiver_leaves_every_other_required_check_required(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.require_checks(UPSTREAM, [GATE, "lint"])
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await write_comment(relay, pull, f"/crcr waive {GATING} because known")

        assert relay.github.merge_state(pull).blocked_by == ("lint: expected",)
