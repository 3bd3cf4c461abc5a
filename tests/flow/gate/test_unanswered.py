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
    """What is written about the dispatches, oldest first."""
    rows = relay.rows("SELECT answer FROM dispatches WHERE state = 'sent' ORDER BY created_at, delivery")
    return [row["answer"] for row in rows]


async def reconcile(relay: RunningRelay, hours: float = 6.1) -> None:
    relay.clock.advance(hours * HOUR)
    await relay.services.reconciler.run()
    await relay.drain()


async def answer_once(relay: RunningRelay, name: str = BACKEND) -> None:
    """The backend answers a pull request, so that an answer is expected of it from now on."""
    await open_pull(relay)
    run = relay.github.runs(name)[-1]
    for each in run.jobs:
        await relay.github.start_job(run, each.name)
        await relay.github.complete_job(run, each.name)
    relay.clock.advance(MINUTE)


async def open_unheard(relay: RunningRelay, *workflows: Workflow, name: str = BACKEND) -> list[WorkflowRun]:
    """A pull request that the backend's workflows (none: it listens to nothing) see, and do not report on."""
    before = len(relay.github.runs(name))
    relay.github.repository(name).workflows = list(workflows)
    await open_pull(relay)
    return relay.github.runs(name)[before:]


async def test_fault_23_a_dispatch_that_never_started_is_found(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await answer_once(relay)
        await open_unheard(relay)
        await reconcile(relay, 5.9)
        assert dispatch_answers(relay) == [None, None]
        await reconcile(relay, 0.2)

        assert dispatch_answers(relay) == [None, "never_started"]


async def test_fault_23_a_gating_dispatch_that_never_started_is_found_whatever_was_before(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build]}}\n") as relay:
        relay.github.repository(GATING).workflows = []
        pull = await open_pull(relay)
        await reconcile(relay)
        assert dispatch_answers(relay) == ["never_started"]
        await sweep_after(relay, 2 * HOUR)

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} is missing")


async def test_a_run_that_ended_and_did_not_report_is_found_and_makes_no_results(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await answer_once(relay)
        results = relay.jobs()
        [run] = await open_unheard(relay, WORKFLOW_WITH_GUID)
        for each in run.jobs:
            relay.github.ci.complete(run, each, "success")
        await reconcile(relay)

        assert dispatch_answers(relay) == [None, "unreported"]
        assert relay.jobs() == results


async def test_a_gate_does_not_pass_by_runs_in_which_nobody_reported(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, f"L4:\n  - {GATING}: [bob]\n") as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        for each in run.jobs:
            relay.github.ci.complete(run, each, "success")
        await reconcile(relay)
        assert (dispatch_answers(relay), gate_state(relay, pull)) == (["unreported"], "pending")
        await sweep_after(relay, 2 * HOUR)

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} is missing")


async def test_a_run_that_still_waits_at_github_is_looked_at_again_until_it_is_over(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await answer_once(relay)
        [run] = await open_unheard(relay, WORKFLOW_WITH_GUID)
        await reconcile(relay)
        assert dispatch_answers(relay) == [None, "running"]
        for each in run.jobs:
            relay.github.ci.complete(run, each, "failure")
        await reconcile(relay)

        assert dispatch_answers(relay) == [None, "unreported"]


async def test_a_run_that_still_waits_is_not_asked_about_at_every_turn(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await answer_once(relay)
        await open_unheard(relay, WORKFLOW_WITH_GUID)
        await reconcile(relay)
        before = len(relay.github.calls_to("GET", RUNS))
        for _ in range(20):
            await reconcile(relay, 0.1)

        assert len(relay.github.calls_to("GET", RUNS)) == before


async def test_runs_that_do_not_name_their_delivery_leave_it_unanswered(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await answer_once(relay)
        [run] = await open_unheard(relay, WORKFLOW)
        for each in run.jobs:
            relay.github.ci.complete(run, each, "success")
        await reconcile(relay)

        assert dispatch_answers(relay) == [None, "unanswered"]


async def test_a_backend_that_never_answered_is_not_listening_and_github_is_not_asked(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await open_unheard(relay)
        await reconcile(relay)

        assert dispatch_answers(relay) == ["not_listening"]
        assert relay.github.calls_to("GET", RUNS) == []


async def test_a_backend_that_answered_more_than_14_days_ago_is_not_listening(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await answer_once(relay)
        relay.clock.advance(13.5 * DAY)
        await open_unheard(relay)
        await reconcile(relay)
        relay.clock.advance(DAY)
        await open_unheard(relay)
        await reconcile(relay)

        assert dispatch_answers(relay) == [None, "never_started", "not_listening"]


async def test_who_answers_pull_requests_need_not_answer_pushes(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await answer_once(relay)
        relay.github.repository(BACKEND).workflows = []
        await relay.github.push(UPSTREAM)
        await relay.drain()
        await reconcile(relay)

        assert dispatch_answers(relay) == [None, "not_listening"]


async def test_no_answer_is_expected_of_l1_or_to_the_end_of_a_pull_request_or_to_an_older_head(
    tmp_path: Path,
) -> None:
    async with running_relay(
        tmp_path, f"{LISTED}L1:\n  - org/first\n", downstreams=(BACKEND, "org/first")
    ) as relay:
        await answer_once(relay)
        relay.github.repository(BACKEND).workflows = []
        pull = await open_pull(relay)
        for act in (relay.github.push_to_pr, relay.github.close_pr):
            relay.clock.advance(MINUTE)
            await act(pull)
            await relay.drain()
        await reconcile(relay)

        rows = relay.rows("SELECT downstream, action, answer FROM dispatches WHERE answer IS NOT NULL")
        assert rows == [{"downstream": BACKEND, "action": "synchronize", "answer": "never_started"}]


async def test_a_report_that_comes_after_all_is_taken_and_answers_the_dispatch(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await answer_once(relay)
        [run] = await open_unheard(relay, WORKFLOW)
        await reconcile(relay)
        assert dispatch_answers(relay) == [None, "unanswered"]

        assert report_outcome(await relay.github.start_job(run, "build")) == "applied"
        assert dispatch_answers(relay) == [None, None]


async def test_whom_github_does_not_let_us_read_is_left_without_an_answer(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await answer_once(relay)
        await open_unheard(relay)
        await relay.github.change_permissions(BACKEND, actions=None)
        await reconcile(relay)

        assert dispatch_answers(relay) == [None, None]
        assert relay.rows("SELECT reads_actions FROM repositories") == [{"reads_actions": 0}]


async def test_each_dispatch_is_looked_up_once(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await answer_once(relay)
        await open_unheard(relay)
        await reconcile(relay)
        before = len(relay.github.calls_to("GET", RUNS))
        for _ in range(5):
            await reconcile(relay, 1)

        assert (before, len(relay.github.calls_to("GET", RUNS))) == (1, 1)


async def test_a_run_that_was_told_of_by_webhook_and_did_not_report_makes_no_results(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(relay)
        run = newest_run(relay)
        for each in run.jobs:
            relay.github.ci.start(run, each)
            relay.github.ci.complete(run, each, "success")
        await relay.github.send_queued_webhooks()
        await sweep_after(relay, MINUTE)

        assert [row["reported"] for row in relay.rows("SELECT reported FROM runs")] == [0]
        assert (relay.jobs(), gate_state(relay, pull)) == ([], "pending")
        await run_all(relay)
        assert gate_state(relay, pull) == "success"
