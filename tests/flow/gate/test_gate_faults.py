"""Faults 34 to 40 of the gate: whatever breaks, nothing merges without a passed or waived result."""

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
BOTH = (GATING, SECOND)
L4_WITHOUT_JOBS = f"L4:\n  - {GATING}: [bob]\n"
CREATE = Match("POST", f"/repos/{UPSTREAM}/check-runs")
UPDATE = Match("PATCH", f"/repos/{UPSTREAM}/check-runs/*")
LIST = Match("GET", f"/repos/{UPSTREAM}/commits/*/check-runs")
REFUSED = "Resource not accessible by integration"


def gate_conclusions(relay: RunningRelay, sha: str) -> list[str | None]:
    return [check.conclusion for check in relay.github.checks(UPSTREAM, sha) if check.name == GATE]


# 34: no check run exists, so the merge goes through


async def test_fault_34_the_head_has_a_pending_gate_before_any_backend_reports(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)

        assert relay.jobs() == []
        assert relay.github.merge_state(pull).blocked_by == ("crcr/gate: pending",)


@pytest.mark.parametrize("status", [500, 403, 422])
async def test_fault_34_a_head_whose_gate_could_not_be_created_is_blocked_and_gets_it_later(
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

        assert gate_conclusions(relay, pull.head_sha) == [None]


async def test_fault_34_a_lost_response_to_the_creation_leaves_one_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.faults.lose_answer(on=CREATE, times=1)
        pull = await open_pull(relay)
        await sweep_after(relay, MINUTE)
        await run_all(relay)

        assert gate_conclusions(relay, pull.head_sha) == ["success"]


async def test_fault_34_a_lost_webhook_is_recovered_and_its_head_gets_the_gate(tmp_path: Path) -> None:
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


async def test_fault_35_a_run_cancelled_without_a_report_blocks_the_merge(tmp_path: Path) -> None:
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


async def test_fault_35_a_job_that_never_reports_its_end_does_not_pass_even_with_success_on_github(
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


async def test_fault_35_a_reported_success_of_a_job_cancelled_on_github_does_not_pass(tmp_path: Path) -> None:
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


async def test_fault_36_without_a_valid_allowlist_webhooks_get_503_and_no_gate_passes(tmp_path: Path) -> None:
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
async def test_fault_36_with_a_broken_allowlist_the_last_valid_one_still_gates(
    tmp_path: Path, broken: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        before = await open_pull(relay)
        relay.write_allowlist(broken)
        await relay.refresh()
        after = await open_pull(relay)

        assert (gate_state(relay, before), gate_state(relay, after)) == ("pending", "pending")
        assert len(relay.github.dispatches(GATING)) == 2


async def test_fault_36_with_a_deleted_allowlist_the_last_valid_one_still_gates(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        (tmp_path / "allowlist.yml").unlink()
        await relay.refresh()
        await relay.services.reconciler.run()
        await sweep_after(relay, HOUR)

        assert gate_state(relay, pull) == "pending"


@pytest.mark.parametrize("failing_route", [UPDATE, LIST, CREATE])
async def test_fault_36_no_gate_passes_during_an_outage_of_the_checks_api(
    tmp_path: Path, failing_route: Match
) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.faults.lose_answer(on=CREATE, times=1)
        fault = relay.github.faults.answer(502, on=failing_route)
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await sweep_after(relay, MINUTE)
        assert gate_state(relay, pull) != "success"
        relay.github.faults.remove(fault)
        await sweep_after(relay, HOUR)

        assert gate_state(relay, pull) == "failure"


async def test_fault_36_a_gate_without_jobs_waits_while_actions_cannot_be_read(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=(GATING,)) as relay:
        fault = relay.github.faults.answer(503, on=Match("GET", f"/repos/{GATING}/actions/*"))
        pull = await open_pull(relay)
        await run_all(relay)
        await sweep_after(relay, HOUR)
        assert gate_state(relay, pull) == "pending"
        relay.github.faults.remove(fault)
        await sweep_after(relay, HOUR)
        await sweep_after(relay, HOUR)

        assert gate_state(relay, pull) == "success"


async def test_fault_36_a_store_outage_leaves_the_gate_pending_until_the_report_is_accepted(
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
async def test_fault_37_a_failing_informational_backend_does_not_block_the_merge(
    tmp_path: Path, conclusion: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.require_checks(UPSTREAM, [GATE, f"crcr/{INFORMING}"])
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, GATING)
        await run_all(relay, INFORMING, build=conclusion)
        await sweep_after(relay, MINUTE)
        await sweep_after(relay, 3 * MINUTE)

        conclusions = {check.conclusion for check in relay.github.checks(UPSTREAM)}
        assert conclusions == {"success", "neutral"}
        await relay.github.merge_pr(pull)


async def test_fault_37_the_gate_does_not_wait_for_an_informational_backend(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, GATING)

        assert shown_check(relay, f"crcr/{INFORMING}", pull.head_sha) is not None
        await relay.github.merge_pr(pull)


async def test_fault_37_neutral_l3_checks_do_not_block_a_merge_loop_that_waits_for_every_check(
    tmp_path: Path,
) -> None:
    (tmp_path / "crcr.toml").write_text('[[upstream]]\nl3_pending = "neutral"\n')
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await start_jobs(relay, newest_run(relay, INFORMING))
        await run_all(relay, GATING)

        open_checks = [check.name for check in relay.github.checks(UPSTREAM) if check.status != "completed"]
        assert open_checks == []
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


async def test_fault_38_a_late_failure_of_an_older_commit_does_not_block_the_new_one(tmp_path: Path) -> None:
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


async def test_fault_39_a_merge_group_gets_a_gate_and_is_merged_when_it_passes(tmp_path: Path) -> None:
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


async def test_fault_40_a_waiver_of_one_backend_does_not_waive_the_other(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=BOTH) as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING, build="failure")
        await run_all(relay, SECOND, build="failure")
        await write_comment(relay, pull, f"/crcr waive {GATING} because known")

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{SECOND} failed (build)")
        with pytest.raises(MergeBlocked, match="crcr/gate: failure"):
            await relay.github.merge_pr(pull)


async def test_fault_40_a_waiver_does_not_waive_other_required_checks(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.require_checks(UPSTREAM, [GATE, "lint"])
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await write_comment(relay, pull, f"/crcr waive {GATING} because known")

        assert relay.github.merge_state(pull).blocked_by == ("lint: expected",)
