"""Dispatches that no run answered: whose answer is expected is looked up at GitHub, and what was found is written down."""

from pathlib import Path

from github_sim.github import Workflow, WorkflowRun
from support.downstream.callbacks import BACKEND, LISTED, report_outcome
from support.github.gated_upstream import (
    GATE,
    GATING,
    NAMED,
    Stage,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    shown_check,
    sweep_after,
)
from support.stage import UPSTREAM, WORKFLOW, stage

MINUTE, HOUR, DAY = 60.0, 3600.0, 24 * 3600.0
RUNS = "*/actions/runs*"


def answered(it: Stage) -> list[str | None]:
    """What is written about the dispatches, oldest first."""
    rows = it.rows("SELECT answer FROM dispatches WHERE state = 'sent' ORDER BY created_at, delivery")
    return [row["answer"] for row in rows]


async def reconcile(it: Stage, hours: float = 6.1) -> None:
    it.clock.advance(hours * HOUR)
    await it.services.reconciler.run()
    await it.act()


async def answer_once(it: Stage, name: str = BACKEND) -> None:
    """The backend answers a pull request, so that an answer is expected of it from now on."""
    await open_pull(it)
    run = it.github.runs(name)[-1]
    for each in run.jobs:
        await it.github.start_job(run, each.name)
        await it.github.complete_job(run, each.name)
    it.clock.advance(MINUTE)


async def open_unheard(it: Stage, *workflows: Workflow, name: str = BACKEND) -> list[WorkflowRun]:
    """A pull request that the backend's workflows (none: it listens to nothing) see, and do not report on."""
    before = len(it.github.runs(name))
    it.github.repository(name).workflows = list(workflows)
    await open_pull(it)
    return it.github.runs(name)[before:]


async def test_fault_23_a_dispatch_that_never_started_is_found(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=(BACKEND,)) as it:
        await answer_once(it)
        await open_unheard(it)
        await reconcile(it, 5.9)
        assert answered(it) == [None, None]
        await reconcile(it, 0.2)

        assert answered(it) == [None, "never_started"]


async def test_fault_23_a_gating_dispatch_that_never_started_is_found_whatever_was_before(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build]}}\n") as it:
        it.github.repository(GATING).workflows = []
        pull = await open_pull(it)
        await reconcile(it)
        assert answered(it) == ["never_started"]
        await sweep_after(it, 2 * HOUR)

        assert shown_check(it, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} is missing")


async def test_a_run_that_ended_and_did_not_report_is_found_and_makes_no_results(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=(BACKEND,)) as it:
        await answer_once(it)
        results = it.jobs()
        [run] = await open_unheard(it, NAMED)
        for each in run.jobs:
            it.github.ci.complete(run, each, "success")
        await reconcile(it)

        assert answered(it) == [None, "unreported"]
        assert it.jobs() == results


async def test_a_gate_does_not_pass_by_runs_in_which_nobody_reported(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, f"L4:\n  - {GATING}: [bob]\n") as it:
        pull = await open_pull(it)
        run = newest_run(it)
        for each in run.jobs:
            it.github.ci.complete(run, each, "success")
        await reconcile(it)
        assert (answered(it), gate_state(it, pull)) == (["unreported"], "pending")
        await sweep_after(it, 2 * HOUR)

        assert shown_check(it, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} is missing")


async def test_a_run_that_still_waits_at_github_is_looked_at_again_until_it_is_over(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=(BACKEND,)) as it:
        await answer_once(it)
        [run] = await open_unheard(it, NAMED)
        await reconcile(it)
        assert answered(it) == [None, "running"]
        for each in run.jobs:
            it.github.ci.complete(run, each, "failure")
        await reconcile(it)

        assert answered(it) == [None, "unreported"]


async def test_a_run_that_still_waits_is_not_asked_about_at_every_turn(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=(BACKEND,)) as it:
        await answer_once(it)
        await open_unheard(it, NAMED)
        await reconcile(it)
        before = len(it.github.calls_to("GET", RUNS))
        for _ in range(20):
            await reconcile(it, 0.1)

        assert len(it.github.calls_to("GET", RUNS)) == before


async def test_runs_that_do_not_name_their_delivery_leave_it_unanswered(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=(BACKEND,)) as it:
        await answer_once(it)
        [run] = await open_unheard(it, WORKFLOW)
        for each in run.jobs:
            it.github.ci.complete(run, each, "success")
        await reconcile(it)

        assert answered(it) == [None, "unanswered"]


async def test_a_backend_that_never_answered_is_not_listening_and_github_is_not_asked(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=(BACKEND,)) as it:
        await open_unheard(it)
        await reconcile(it)

        assert answered(it) == ["not_listening"]
        assert it.github.calls_to("GET", RUNS) == []


async def test_a_backend_that_answered_more_than_14_days_ago_is_not_listening(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=(BACKEND,)) as it:
        await answer_once(it)
        it.clock.advance(13.5 * DAY)
        await open_unheard(it)
        await reconcile(it)
        it.clock.advance(DAY)
        await open_unheard(it)
        await reconcile(it)

        assert answered(it) == [None, "never_started", "not_listening"]


async def test_who_answers_pull_requests_need_not_answer_pushes(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=(BACKEND,)) as it:
        await answer_once(it)
        it.github.repository(BACKEND).workflows = []
        await it.github.push(UPSTREAM)
        await it.act()
        await reconcile(it)

        assert answered(it) == [None, "not_listening"]


async def test_no_answer_is_expected_of_l1_or_to_the_end_of_a_pull_request_or_to_an_older_head(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, f"{LISTED}L1:\n  - org/first\n", downstreams=(BACKEND, "org/first")) as it:
        await answer_once(it)
        it.github.repository(BACKEND).workflows = []
        pull = await open_pull(it)
        for act in (it.github.push_to_pr, it.github.close_pr):
            it.clock.advance(MINUTE)
            await act(pull)
            await it.act()
        await reconcile(it)

        rows = it.rows("SELECT downstream, action, answer FROM dispatches WHERE answer IS NOT NULL")
        assert rows == [{"downstream": BACKEND, "action": "synchronize", "answer": "never_started"}]


async def test_a_report_that_comes_after_all_is_taken_and_answers_the_dispatch(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=(BACKEND,)) as it:
        await answer_once(it)
        [run] = await open_unheard(it, WORKFLOW)
        await reconcile(it)
        assert answered(it) == [None, "unanswered"]

        assert report_outcome(await it.github.start_job(run, "build")) == "applied"
        assert answered(it) == [None, None]


async def test_whom_github_does_not_let_us_read_is_left_without_an_answer(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=(BACKEND,)) as it:
        await answer_once(it)
        await open_unheard(it)
        await it.github.change_permissions(BACKEND, actions=None)
        await reconcile(it)

        assert answered(it) == [None, None]
        assert it.rows("SELECT reads_actions FROM repositories") == [{"reads_actions": 0}]


async def test_each_dispatch_is_looked_up_once(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=(BACKEND,)) as it:
        await answer_once(it)
        await open_unheard(it)
        await reconcile(it)
        before = len(it.github.calls_to("GET", RUNS))
        for _ in range(5):
            await reconcile(it, 1)

        assert (before, len(it.github.calls_to("GET", RUNS))) == (1, 1)


async def test_a_run_that_was_told_of_by_webhook_and_did_not_report_makes_no_results(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        it.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(it)
        run = newest_run(it)
        for each in run.jobs:
            it.github.ci.start(run, each)
            it.github.ci.complete(run, each, "success")
        await it.github.send_queued_webhooks()
        await sweep_after(it, MINUTE)

        assert [row["reported"] for row in it.rows("SELECT reported FROM runs")] == [0]
        assert (it.jobs(), gate_state(it, pull)) == ([], "pending")
        await run_all(it)
        assert gate_state(it, pull) == "success"
