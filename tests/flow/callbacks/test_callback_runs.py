"""Runs and deliveries: which run may report for which delivery, and which of two runs counts."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from github_sim.github import Workflow, WorkflowRun
from support.downstream.callbacks import (
    BACKEND,
    LISTED,
    dispatched_run,
    job_marks,
    post_report,
    refusal_code,
    report_outcome,
)
from support.running_relay import UPSTREAM, WORKFLOW, RunningRelay, running_relay

OTHER = "org/other"


def start_second_run(relay: RunningRelay, run: WorkflowRun) -> WorkflowRun:
    """Start one more run of the same workflow for the same dispatch, as if the dispatch had arrived twice."""
    return relay.github.start_run(
        BACKEND, event="repository_dispatch", event_type=run.event_type, client_payload=run.client_payload
    )


async def test_fault_22_jobs_of_two_workflows_with_the_same_name_stay_separate(tmp_path: Path) -> None:
    nightly = Workflow(name="CI", path=".github/workflows/other.yml", jobs=WORKFLOW.jobs)
    async with dispatched_run(tmp_path, workflows=(WORKFLOW, nightly)) as (relay, _):
        for run, conclusion in zip(relay.github.runs(BACKEND), ("success", "failure"), strict=True):
            await relay.github.start_job(run, "build")
            await relay.github.complete_job(run, "build", conclusion)

        rows = {job["workflow"]: (job["conclusion"], job["superseded"]) for job in relay.jobs()}
        assert rows == {WORKFLOW.path: ("success", 0), nightly.path: ("failure", 0)}


@pytest.mark.parametrize("newer_first", [False, True])
async def test_the_newer_of_two_runs_of_a_workflow_counts_whichever_reports_first(
    tmp_path: Path, newer_first: bool
) -> None:
    async with dispatched_run(tmp_path) as (relay, older):
        newer = start_second_run(relay, older)
        for run in (newer, older) if newer_first else (older, newer):
            await relay.github.start_job(run, "build")
            await relay.github.complete_job(run, "build")
        await relay.github.start_job(older, "test")
        await relay.github.start_job(newer, "test")

        assert {(job["run_id"], job["job_name"]): job_marks(job) for job in relay.jobs()} == {
            (str(older.id), "build"): {"superseded"},
            (str(older.id), "test"): {"superseded"},
            (str(newer.id), "build"): set(),
            (str(newer.id), "test"): set(),
        }


async def test_results_of_a_superseded_run_are_still_accepted(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, older):
        await relay.github.start_job(older, "build")
        await relay.github.start_job(start_second_run(relay, older), "build")
        answer = await relay.github.complete_job(older, "build", "failure")

        assert report_outcome(answer) == "applied"
        [job] = [job for job in relay.jobs() if job["run_id"] == str(older.id)]
        assert (job["conclusion"], job_marks(job)) == ("failure", {"superseded"})


async def test_fault_28_a_run_may_not_report_for_a_second_delivery(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, first):
        await relay.github.start_job(first, "build")
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        second = relay.github.runs(BACKEND)[1]
        body = relay.github.ci.report_body(first, first.job("test"), "in_progress")
        answer = await relay.github.report(first, "test", body={**body, "delivery_id": second.delivery_id})

        assert refusal_code(answer) == (409, "run_bound_elsewhere")
        assert len(relay.jobs()) == 1


async def test_fault_28_a_run_may_not_report_for_another_run_or_attempt(tmp_path: Path) -> None:
    claims: list[dict[str, Any]] = [{"run_id": "1"}, {"run_attempt": "2"}, {"run_attempt": 3}]
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        for claim, status in product(claims, ("in_progress", "completed")):
            answer = await post_report(relay, run, "build", status, conclusion="success", **claim)
            assert refusal_code(answer) == (403, "claim_mismatch")

        assert [(job["run_id"], job["state"]) for job in relay.jobs()] == [(str(run.id), "in_progress")]


async def test_fault_28_another_repositorys_run_may_not_report_for_this_delivery(tmp_path: Path) -> None:
    listed = f"L2:\n  - {BACKEND}\n  - {OTHER}: {{events: [push]}}\n"
    async with running_relay(tmp_path, listed, downstreams=(BACKEND, OTHER)) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        payload = relay.github.runs(BACKEND)[0].client_payload
        run = relay.github.start_run(OTHER, event="repository_dispatch", client_payload=payload)

        assert refusal_code(await relay.github.start_job(run, "build")) == (404, "unknown_delivery")
        assert relay.jobs() == []


async def test_a_delivery_that_was_never_dispatched_is_unknown(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        body = relay.github.ci.report_body(run, run.job("build"), "in_progress")
        for guid in ("00000000-0000-0000-0000-000000000000", "' OR 1=1 --", "💥"):
            answer = await relay.github.report(run, "build", body={**body, "delivery_id": guid})
            assert refusal_code(answer) == (404, "unknown_delivery")
            assert "client_payload" in answer.json()["error"]["hint"]


async def test_a_dispatch_that_is_recorded_but_not_sent_is_unknown(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        pull = await relay.github.open_pr(UPSTREAM)
        assert pull.last_delivery is not None
        payload = {"delivery_id": pull.last_delivery.guid, "event_type": "pull_request"}
        run = relay.github.start_run(BACKEND, event="repository_dispatch", client_payload=payload)

        assert set(relay.dispatch_states().values()) == {"waiting"}
        assert refusal_code(await post_report(relay, run, "build", "in_progress")) == (
            404,
            "unknown_delivery",
        )


async def test_a_held_draft_is_unknown_until_it_is_released(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, f"L2:\n  - {BACKEND}: {{drafts: false}}\n", downstreams=(BACKEND,)
    ) as relay:
        pull = await relay.github.open_pr(UPSTREAM, draft=True)
        await relay.drain()
        assert pull.last_delivery is not None
        payload = {"delivery_id": pull.last_delivery.guid, "event_type": "pull_request"}
        early = relay.github.start_run(BACKEND, event="repository_dispatch", client_payload=payload)
        assert refusal_code(await post_report(relay, early, "build", "in_progress")) == (
            404,
            "unknown_delivery",
        )
        relay.clock.advance(5)
        await relay.github.ready_for_review(pull)
        await relay.drain()

        assert (
            report_outcome(await relay.github.start_job(relay.github.runs(BACKEND)[-1], "build")) == "applied"
        )


async def test_a_run_that_no_dispatch_started_may_not_report(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        for event in ("push", "pull_request_target", "workflow_dispatch", "schedule"):
            token = relay.github.oidc_token(run, "build", event_name=event)
            answer = await relay.github.report(run, "build", token=token)
            assert (event, *refusal_code(answer)) == (event, 403, "wrong_event")
            assert "allow_events" in answer.json()["error"]["hint"]


async def test_an_allowlist_entry_may_allow_the_event_of_a_follow_up_workflow(tmp_path: Path) -> None:
    listed = f"L2:\n  - {BACKEND}: {{allow_events: [workflow_run]}}\n"
    reporting = Workflow(name="Report", path=".github/workflows/report.yml", listens=("workflow_run",))
    async with dispatched_run(tmp_path, listed, workflows=(WORKFLOW, reporting)) as (relay, run):
        step = relay.github.start_run(BACKEND, event="workflow_run", client_payload=run.client_payload)
        token = relay.github.oidc_token(step, "build", event_name="push")

        assert report_outcome(await relay.github.start_job(step, "build")) == "applied"
        assert refusal_code(await relay.github.report(step, "build", token=token)) == (403, "wrong_event")


async def test_a_report_is_accepted_after_its_pull_request_was_closed(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        pull = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        run = relay.github.runs(BACKEND)[0]
        await relay.github.start_job(run, "build")
        relay.clock.advance(5)
        await relay.github.close_pr(pull)
        await relay.drain()

        assert report_outcome(await relay.github.complete_job(run, "build", "cancelled")) == "applied"


async def test_an_l1_report_is_ignored_with_a_hint_and_stored_nowhere(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, f"L1:\n  - {BACKEND}\n") as (relay, run):
        answer = await relay.github.start_job(run, "build")

        assert answer.status_code == 202
        assert answer.json()["status"] == "ignored"
        assert "L2" in answer.json()["hint"]
        assert relay.jobs() == relay.rows("SELECT * FROM runs") == []


async def test_a_suspended_repository_is_refused_until_it_is_resumed(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        targets, name = relay.services.targets, relay.services.upstreams[0]
        backend = (await relay.services.allowlists.current(name)).entries[0].name
        await relay.github.start_job(run, "build")
        await targets.suspend(name, backend, who="ops", now=relay.clock.now())
        assert refusal_code(await relay.github.complete_job(run, "build")) == (403, "suspended")
        await targets.suspend(name, backend, who="ops", now=relay.clock.now(), lift=True)

        assert report_outcome(await relay.github.report(run, "build", status="completed")) == "applied"


async def test_a_repository_removed_from_the_allowlist_during_its_run_is_refused(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, f"L2:\n  - {BACKEND}\n  - {OTHER}\n") as (relay, run):
        await relay.github.start_job(run, "build")
        relay.write_allowlist(f"L2:\n  - {OTHER}\n")
        await relay.refresh()

        assert refusal_code(await relay.github.complete_job(run, "build")) == (403, "not_allowlisted")
        assert [job["state"] for job in relay.jobs()] == ["in_progress"]


async def test_a_repository_that_was_never_listed_is_refused(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        relay.github.create_repository("stranger/repo", workflows=[WORKFLOW])
        theirs = relay.github.start_run(
            "stranger/repo", event="repository_dispatch", client_payload=run.client_payload
        )

        assert refusal_code(await relay.github.start_job(theirs, "build")) == (403, "not_allowlisted")
