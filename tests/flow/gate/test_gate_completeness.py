"""When a backend is complete: by the names in its `jobs`, or by the state of its runs on GitHub; and its deadlines."""

from pathlib import Path

import pytest

from github_sim.github import JobSpec, Match, MergeBlocked, Workflow, WorkflowRun
from support.github.gated_upstream import (
    GATE,
    GATING,
    WORKFLOW_WITH_GUID,
    finish_jobs,
    gate_state,
    gate_summary,
    gated_upstream,
    gating_allowlist,
    latest_check,
    live_reasons,
    newest_run,
    open_pull,
    run_all,
    shown_check,
    start_jobs,
    sweep_after,
)
from support.running_relay import UPSTREAM, WORKFLOW, RunningRelay

MINUTE, HOUR = 60.0, 3600.0
L4_WITHOUT_JOBS = f"L4:\n  - {GATING}: [bob]\n"
DOWNSTREAMS = (GATING,)
ACTIONS = Match("GET", f"/repos/{GATING}/actions/*")
LINT = Workflow(
    name="Lint", path=".github/workflows/lint.yml", jobs=(JobSpec("lint"),), run_name="{delivery_id}"
)


async def start_second_run(relay: RunningRelay, run: WorkflowRun, workflow: Workflow) -> WorkflowRun:
    """Start a run of another workflow of the backend for the same delivery."""
    relay.github.repository(GATING).workflows = [workflow]
    event = run.event_type
    return relay.github.start_run(
        GATING, event="repository_dispatch", event_type=event, client_payload=run.client_payload
    )


# (a) with `jobs`


async def test_every_name_and_every_glob_in_jobs_needs_a_result(tmp_path: Path) -> None:
    async with gated_upstream(
        tmp_path, gating_allowlist("jobs: [build, 'test (*)']"), downstreams=DOWNSTREAMS
    ) as relay:
        legs = (JobSpec("build"), JobSpec("test", matrix=("cpu", "npu")))
        relay.github.repository(GATING).workflows = [Workflow(jobs=legs)]
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="success")
        assert gate_state(relay, pull) == "pending"
        assert "test (*) has not reported yet" in await live_reasons(relay, pull.head_sha)
        await start_jobs(relay, run, "test (cpu)")
        await finish_jobs(relay, run, **{"test (cpu)": "success"})
        assert gate_state(relay, pull) == "pending"
        await start_jobs(relay, run, "test (npu)")
        await finish_jobs(relay, run, **{"test (npu)": "success"})
        await sweep_after(relay, 6)

        assert gate_state(relay, pull) == "success"


async def test_a_started_job_that_is_not_in_jobs_must_end_too(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, gating_allowlist("jobs: [build]"), downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await finish_jobs(relay, run, build="success")
        assert gate_state(relay, pull) == "pending"
        await finish_jobs(relay, run, test="failure")

        assert gate_state(relay, pull) == "failure"


async def test_a_job_that_starts_after_the_gate_passed_publishes_a_new_pending_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, gating_allowlist("jobs: [build]"), downstreams=DOWNSTREAMS) as relay:
        relay.github.repository(GATING).workflows = [Workflow(jobs=(JobSpec("build"),))]
        pull = await open_pull(relay)
        run = await run_all(relay)
        green = latest_check(relay, GATE, pull.head_sha)
        await start_jobs(relay, await start_second_run(relay, run, LINT))

        assert latest_check(relay, GATE, pull.head_sha).id != green.id
        assert (green.status, green.conclusion) == ("completed", "success")
        with pytest.raises(MergeBlocked, match="crcr/gate: pending"):
            await relay.github.merge_pr(pull)


# (b) without `jobs`


async def test_without_jobs_the_gate_passes_once_github_says_that_the_runs_have_ended(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        assert gate_state(relay, pull) == "pending"
        [reason] = await live_reasons(relay, pull.head_sha)
        assert reason == "its runs are over; another may still appear within 2 minutes"
        await sweep_after(relay, 10 * MINUTE)
        await sweep_after(relay, 10 * MINUTE)

        assert gate_state(relay, pull) == "success"


async def test_without_jobs_the_gate_passes_two_minutes_after_the_last_run_ended(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        states = []
        for _ in range(14):
            await sweep_after(relay, 10)
            states.append(gate_state(relay, pull))

        assert states[:11] == ["pending"] * 11
        assert states[-1] == "success"


async def test_a_run_that_has_not_ended_on_github_keeps_the_gate_pending(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="success")
        await sweep_after(relay, HOUR)
        await sweep_after(relay, HOUR)

        assert gate_state(relay, pull) == "pending"


async def test_a_run_bound_by_its_reports_needs_no_delivery_id_in_its_name(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        relay.github.repository(GATING).workflows = [WORKFLOW]
        pull = await open_pull(relay)
        await run_all(relay)
        await sweep_after(relay, MINUTE)
        await sweep_after(relay, 3 * MINUTE)

        assert gate_state(relay, pull) == "success"


async def test_the_gate_waits_for_an_unreported_run_with_the_delivery_id_in_its_name(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        relay.github.repository(GATING).workflows = [WORKFLOW_WITH_GUID, LINT]
        pull = await open_pull(relay)
        first, lint = relay.github.runs(GATING)
        await start_jobs(relay, first)
        await finish_jobs(relay, first)
        await sweep_after(relay, 10 * MINUTE)
        await sweep_after(relay, 10 * MINUTE)
        assert gate_state(relay, pull) == "pending"
        relay.github.ci.complete(lint, lint.job("lint"), "success")
        await sweep_after(relay, 10 * MINUTE)
        await sweep_after(relay, 10 * MINUTE)

        assert gate_state(relay, pull) == "success"


async def test_the_gate_ignores_a_run_without_the_delivery_id(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay)
        relay.github.start_run(GATING, event="repository_dispatch", event_type="pull_request")
        await start_jobs(relay, relay.github.runs(GATING)[0])
        await finish_jobs(relay, relay.github.runs(GATING)[0])
        await sweep_after(relay, 10 * MINUTE)
        await sweep_after(relay, 10 * MINUTE)

        assert gate_state(relay, pull) == "success"


async def test_a_run_seen_later_publishes_a_new_pending_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay)
        await sweep_after(relay, MINUTE)
        await sweep_after(relay, 3 * MINUTE)
        green = latest_check(relay, GATE, pull.head_sha)
        assert green.conclusion == "success"
        await start_jobs(relay, await start_second_run(relay, run, LINT))

        assert gate_state(relay, pull) == "pending"
        assert latest_check(relay, GATE, pull.head_sha).id != green.id
        assert relay.github.merge_state(pull).blocked_by == ("crcr/gate: pending",)


async def test_a_run_announced_later_by_webhook_publishes_a_new_pending_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay)
        await sweep_after(relay, MINUTE)
        await sweep_after(relay, 3 * MINUTE)
        assert gate_state(relay, pull) == "success"
        lint = await start_second_run(relay, run, LINT)
        await relay.github.send_run_webhook(lint, "requested")
        await relay.drain()
        assert gate_state(relay, pull) == "pending"
        await start_jobs(relay, lint)
        await finish_jobs(relay, lint)
        await sweep_after(relay, MINUTE)
        await sweep_after(relay, 3 * MINUTE)

        assert gate_state(relay, pull) == "success"


async def test_without_jobs_and_without_actions_read_the_gate_fails_and_says_what_to_change(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        await relay.github.change_permissions(GATING, actions=None)
        pull = await open_pull(relay)
        await run_all(relay)
        await sweep_after(relay, MINUTE)

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} errored")
        assert "name its `jobs` literally in the allowlist, or grant Actions: read" in gate_summary(
            relay, pull.head_sha
        )


async def test_without_actions_read_the_gate_still_waits_for_a_running_job(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        await relay.github.change_permissions(GATING, actions=None)
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))
        await finish_jobs(relay, newest_run(relay), build="success")
        await sweep_after(relay, MINUTE)
        assert gate_state(relay, pull) == "pending"
        await finish_jobs(relay, newest_run(relay), test="success")

        assert gate_state(relay, pull) == "failure"


async def test_granting_actions_read_later_lets_the_gate_pass(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        await relay.github.change_permissions(GATING, actions=None)
        pull = await open_pull(relay)
        run = await run_all(relay)
        await sweep_after(relay, MINUTE)
        await relay.github.change_permissions(GATING, actions="read")
        await relay.github.send_run_webhook(run, "completed")
        await sweep_after(relay, MINUTE)
        await sweep_after(relay, 3 * MINUTE)

        assert gate_state(relay, pull) == "success"


async def test_a_backend_whose_runs_ended_without_any_report_is_missing_at_the_deadline(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, L4_WITHOUT_JOBS, downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay)
        for job in newest_run(relay).jobs:
            relay.github.ci.complete(newest_run(relay), job, "success")
        await sweep_after(relay, 7 * HOUR)
        await relay.services.reconciler.run()
        await sweep_after(relay, 10 * MINUTE)
        assert gate_state(relay, pull) == "pending"
        await sweep_after(relay, HOUR)

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} is missing")


# Deadlines


@pytest.mark.parametrize(
    ("options", "hours"),
    [
        ("jobs: [build]", 8),
        ("jobs: [build], gate_timeout: 7h", 7),
        ("jobs: [build], gate_timeout: 20h", 20),
        ("jobs: [build], gate_timeout: 1h", 6),
        ("jobs: [build], gate_timeout: 2h, job_timeout: 2h", 2),
        ("jobs: [build], job_timeout: 24h", 24),
    ],
)
async def test_the_gate_waits_for_gate_timeout_of_the_entry_but_never_less_than_job_timeout(
    tmp_path: Path, options: str, hours: int
) -> None:
    async with gated_upstream(tmp_path, gating_allowlist(options), downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay)
        await sweep_after(relay, hours * HOUR - 1)
        assert gate_state(relay, pull) == "pending"
        await sweep_after(relay, 1)

        assert gate_state(relay, pull) == "failure"


async def test_the_time_out_counts_from_the_dispatch_and_not_from_the_webhook(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, gating_allowlist("jobs: [build]"), downstreams=DOWNSTREAMS) as relay:
        relay.github.faults.answer(503, on=Match("POST", f"/repos/{GATING}/dispatches"), times=1)
        pull = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.pass_time(5 * HOUR)
        assert len(relay.github.dispatches(GATING)) == 1
        await sweep_after(relay, 8 * HOUR - 1)
        assert gate_state(relay, pull) == "pending"
        await sweep_after(relay, 1)

        assert gate_state(relay, pull) == "failure"


async def test_an_unsent_dispatch_has_no_deadline_and_never_lets_the_gate_pass(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, gating_allowlist("jobs: [build]"), downstreams=DOWNSTREAMS) as relay:
        relay.github.faults.answer(503, on=Match("POST", f"/repos/{GATING}/dispatches"))
        pull = await open_pull(relay)
        await sweep_after(relay, 20 * HOUR)
        assert gate_state(relay, pull) == "pending"
        assert "the dispatch waits to be sent" in gate_summary(relay, pull.head_sha)
        for _ in range(3):
            await sweep_after(relay, 5 * HOUR)

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} is missing")


async def test_the_sweeper_fails_a_gate_past_its_deadline_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, gating_allowlist("jobs: [build]"), downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay)
        await relay.pass_time(9 * HOUR)
        assert gate_state(relay, pull) == "pending"
        await relay.services.sweeper.sweep()
        await relay.drain()
        assert gate_state(relay, pull) == "failure"
        writes = len(relay.github.calls_to("PATCH", "*/check-runs/*"))
        await sweep_after(relay, HOUR)

        assert len(relay.github.calls_to("PATCH", "*/check-runs/*")) == writes
