"""Dispatches without a run: expected runs are looked up on GitHub, and the result is recorded."""

from pathlib import Path

from github_sim.github import Workflow, WorkflowRun
from support.downstream.callbacks import BACKEND, LISTED, report_outcome
from support.github.gated_upstream import (
    GATE,
    GATING,
    WORKFLOW_WITH_GUID,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    shown_check,
    sweep_after,
)
from support.running_relay import UPSTREAM, WORKFLOW, RunningRelay, running_relay

MINUTE, HOUR, DAY = 60.0, 3600.0, 24 * 3600.0
RUNS = "*/actions/runs*"


def dispatch_answers(relay: RunningRelay) -> list[str | None]:
    """The recorded lookup results of the dispatches, oldest first."""
    rows = relay.rows("SELECT answer FROM dispatches WHERE state = 'sent' ORDER BY created_at, delivery")
    return [row["answer"] for row in rows]


async def reconcile(relay: RunningRelay, hours: float = 6.1) -> None:
    relay.clock.advance(hours * HOUR)
    await relay.services.reconciler.run()
    await relay.drain()


async def report_once(relay: RunningRelay, name: str = BACKEND) -> None:
    """Let the backend report for a pull request, so that reports are expected of it from now on."""
    await open_pull(relay)
    run = relay.github.runs(name)[-1]
    for job in run.jobs:
        await relay.github.start_job(run, job.name)
        await relay.github.complete_job(run, job.name)
    relay.clock.advance(MINUTE)


async def open_unreported_pull(
    relay: RunningRelay, *workflows: Workflow, name: str = BACKEND
) -> list[WorkflowRun]:
    """Open a pull request that starts the given workflows (without any: no run), and return the unreported runs."""
    before = len(relay.github.runs(name))
    relay.github.repository(name).workflows = list(workflows)
    await open_pull(relay)
    return relay.github.runs(name)[before:]


async def test_fault_23_a_dispatch_that_started_no_run_is_detected(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await report_once(relay)
        await open_unreported_pull(relay)
        await reconcile(relay, 5.9)
        assert dispatch_answers(relay) == [None, None]
        await reconcile(relay, 0.2)

        assert dispatch_answers(relay) == [None, "never_started"]


async def test_fault_23_a_gating_dispatch_that_started_no_run_is_detected_without_history(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build]}}\n") as relay:
        relay.github.repository(GATING).workflows = []
        pull = await open_pull(relay)
        await reconcile(relay)
        assert dispatch_answers(relay) == ["never_started"]
        await sweep_after(relay, 2 * HOUR)

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} is missing")


async def test_a_run_that_ended_without_a_report_is_detected_and_creates_no_results(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await report_once(relay)
        results = relay.jobs()
        [run] = await open_unreported_pull(relay, WORKFLOW_WITH_GUID)
        for job in run.jobs:
            relay.github.ci.complete(run, job, "success")
        await reconcile(relay)

        assert dispatch_answers(relay) == [None, "unreported"]
        assert relay.jobs() == results


async def test_the_gate_does_not_pass_by_runs_without_reports(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, f"L4:\n  - {GATING}: [bob]\n") as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        for job in run.jobs:
            relay.github.ci.complete(run, job, "success")
        await reconcile(relay)
        assert (dispatch_answers(relay), gate_state(relay, pull)) == (["unreported"], "pending")
        await sweep_after(relay, 2 * HOUR)

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} is missing")


async def test_an_unfinished_run_is_looked_up_again_until_it_has_ended(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await report_once(relay)
        [run] = await open_unreported_pull(relay, WORKFLOW_WITH_GUID)
        await reconcile(relay)
        assert dispatch_answers(relay) == [None, "running"]
        for job in run.jobs:
            relay.github.ci.complete(run, job, "failure")
        await reconcile(relay)

        assert dispatch_answers(relay) == [None, "unreported"]


async def test_an_unfinished_run_is_not_looked_up_in_every_reconciliation(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await report_once(relay)
        await open_unreported_pull(relay, WORKFLOW_WITH_GUID)
        await reconcile(relay)
        before = len(relay.github.calls_to("GET", RUNS))
        for _ in range(20):
            await reconcile(relay, 0.1)

        assert len(relay.github.calls_to("GET", RUNS)) == before


async def test_runs_without_the_delivery_id_in_their_name_leave_the_dispatch_unanswered(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await report_once(relay)
        [run] = await open_unreported_pull(relay, WORKFLOW)
        for job in run.jobs:
            relay.github.ci.complete(run, job, "success")
        await reconcile(relay)

        assert dispatch_answers(relay) == [None, "unanswered"]


async def test_a_backend_that_never_reported_is_not_listening_and_is_not_looked_up(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await open_unreported_pull(relay)
        await reconcile(relay)

        assert dispatch_answers(relay) == ["not_listening"]
        assert relay.github.calls_to("GET", RUNS) == []


async def test_a_backend_whose_last_report_is_over_14_days_old_is_not_listening(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await report_once(relay)
        relay.clock.advance(13.5 * DAY)
        await open_unreported_pull(relay)
        await reconcile(relay)
        relay.clock.advance(DAY)
        await open_unreported_pull(relay)
        await reconcile(relay)

        assert dispatch_answers(relay) == [None, "never_started", "not_listening"]


async def test_a_backend_that_reports_pull_requests_is_not_expected_to_report_pushes(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await report_once(relay)
        relay.github.repository(BACKEND).workflows = []
        await relay.github.push(UPSTREAM)
        await relay.drain()
        await reconcile(relay)

        assert dispatch_answers(relay) == [None, "not_listening"]


async def test_no_report_is_expected_from_l1_or_for_a_closed_pull_request_or_an_older_head(
    tmp_path: Path,
) -> None:
    async with running_relay(
        tmp_path, f"{LISTED}L1:\n  - org/first\n", downstreams=(BACKEND, "org/first")
    ) as relay:
        await report_once(relay)
        relay.github.repository(BACKEND).workflows = []
        pull = await open_pull(relay)
        for act in (relay.github.push_to_pr, relay.github.close_pr):
            relay.clock.advance(MINUTE)
            await act(pull)
            await relay.drain()
        await reconcile(relay)

        rows = relay.rows("SELECT downstream, action, answer FROM dispatches WHERE answer IS NOT NULL")
        assert rows == [{"downstream": BACKEND, "action": "synchronize", "answer": "never_started"}]


async def test_a_late_report_is_accepted_and_clears_the_unanswered_dispatch(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await report_once(relay)
        [run] = await open_unreported_pull(relay, WORKFLOW)
        await reconcile(relay)
        assert dispatch_answers(relay) == [None, "unanswered"]

        assert report_outcome(await relay.github.start_job(run, "build")) == "applied"
        assert dispatch_answers(relay) == [None, None]


async def test_a_dispatch_is_not_classified_without_permission_to_read_actions(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await report_once(relay)
        await open_unreported_pull(relay)
        await relay.github.change_permissions(BACKEND, actions=None)
        await reconcile(relay)

        assert dispatch_answers(relay) == [None, None]
        assert relay.rows("SELECT reads_actions FROM repositories") == [{"reads_actions": 0}]


async def test_each_dispatch_is_looked_up_once(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await report_once(relay)
        await open_unreported_pull(relay)
        await reconcile(relay)
        before = len(relay.github.calls_to("GET", RUNS))
        for _ in range(5):
            await reconcile(relay, 1)

        assert (before, len(relay.github.calls_to("GET", RUNS))) == (1, 1)


async def test_a_run_known_by_webhook_that_did_not_report_creates_no_results(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(relay)
        run = newest_run(relay)
        for job in run.jobs:
            relay.github.ci.start(run, job)
            relay.github.ci.complete(run, job, "success")
        await relay.github.send_queued_webhooks()
        await sweep_after(relay, MINUTE)

        assert [row["reported"] for row in relay.rows("SELECT reported FROM runs")] == [0]
        assert (relay.jobs(), gate_state(relay, pull)) == ([], "pending")
        await run_all(relay)
        assert gate_state(relay, pull) == "success"
