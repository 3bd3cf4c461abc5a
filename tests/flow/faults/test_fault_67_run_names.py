"""Fault 67: anybody who can send a dispatch by hand starts a run for one delivery, and lets it report for another."""

from pathlib import Path
from typing import Any

import httpx

from github_sim.github import PullRequest, Workflow, WorkflowRun
from support.downstream.callbacks import CALLBACK, bearer, refusal_code, report_outcome
from support.github.commands import audit_entries
from support.github.gated_upstream import (
    GATING,
    WORKFLOW_WITH_GUID,
    finish_jobs,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
    sweep_after,
)
from support.running_relay import AUDIENCE, RunningRelay

MINUTE = 60.0


async def report_both_for(
    relay: RunningRelay, run: WorkflowRun, delivery: str | None, status: str, **more: Any
) -> list[str]:
    """Both jobs of a run report for a delivery that is not the one of its dispatch."""
    return [
        report_outcome(await _report(relay, run, name, delivery, status, **more))
        for name in ("build", "test")
    ]


async def _report(
    relay: RunningRelay, run: WorkflowRun, name: str, delivery: str | None, status: str, **more: Any
) -> httpx.Response:
    job = run.job(name)
    body = {**relay.github.ci.report_body(run, job, status, **more), "delivery_id": delivery}
    token = relay.github.oidc_token(run, job, audience=AUDIENCE)
    return await relay.http.post(CALLBACK, json=body, headers=bearer(token))


async def failed_pull_and_forged_run(relay: RunningRelay) -> tuple[PullRequest, WorkflowRun, WorkflowRun]:
    """A pull request that failed; the dispatch of another one is sent again by hand, and its run waits."""
    failing = await open_pull(relay)
    honest = await run_all(relay, build="failure")
    assert gate_state(relay, failing) == "failure"
    relay.clock.advance(MINUTE)
    await open_pull(relay)
    other = await run_all(relay)
    relay.clock.advance(MINUTE)
    [forged] = await relay.github.send_dispatch(GATING, "pull_request", other.client_payload)
    return failing, honest, forged


def counted_jobs(relay: RunningRelay, delivery: str | None) -> set[tuple[str, str | None]]:
    """The run id and conclusion of each counted job of a delivery."""
    rows = relay.rows("SELECT run_id, conclusion FROM jobs WHERE delivery = ? AND superseded = 0", delivery)
    return {(row["run_id"], row["conclusion"]) for row in rows}


async def test_fault_67_a_run_identified_by_its_name_cannot_report_for_another_delivery(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).sends_run_webhooks = True
        failing, honest, forged = await failed_pull_and_forged_run(relay)
        answer = await _report(relay, forged, "build", honest.delivery_id, "in_progress")
        await sweep_after(relay, MINUTE)

        assert refusal_code(answer) == (409, "run_bound_elsewhere")
        assert str(forged.delivery_id) in answer.json()["error"]["detail"]
        assert gate_state(relay, failing) == "failure"
        assert not relay.github.merge_state(failing).mergeable
        assert report_outcome(await relay.github.start_job(forged, "build")) == "applied"


async def test_fault_67_results_are_removed_from_a_delivery_once_github_shows_the_runs_name(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        failing, honest, forged = await failed_pull_and_forged_run(relay)
        assert await report_both_for(relay, forged, honest.delivery_id, "in_progress") == ["applied"] * 2
        for job in forged.jobs:
            relay.github.ci.complete(forged, job, "success")
        assert await report_both_for(relay, forged, honest.delivery_id, "completed") == ["applied"] * 2
        await sweep_after(relay, MINUTE)

        assert gate_state(relay, failing) == "failure"
        assert not relay.github.merge_state(failing).mergeable
        assert counted_jobs(relay, honest.delivery_id) == {
            (str(honest.id), "failure"),
            (str(honest.id), "success"),
        }
        assert (
            await report_both_for(relay, forged, honest.delivery_id, "in_progress")
            == ["run_bound_elsewhere"] * 2
        )
        [line] = audit_entries(relay, "run_bound_elsewhere")
        assert (line["run"], line["named"]) == (str(forged.id), forged.delivery_id)


async def test_fault_67_a_webhook_about_the_run_also_removes_its_results(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        failing, honest, forged = await failed_pull_and_forged_run(relay)
        assert await report_both_for(relay, forged, honest.delivery_id, "in_progress") == ["applied"] * 2
        assert counted_jobs(relay, honest.delivery_id) == {(str(forged.id), None)}
        await relay.github.send_run_webhook(forged, "in_progress")
        assert {run for run, _ in counted_jobs(relay, honest.delivery_id)} == {str(honest.id)}
        await relay.drain()

        assert gate_state(relay, failing) == "failure"
        assert not relay.github.merge_state(failing).mergeable


async def test_fault_67_a_delivery_id_that_a_stranger_puts_into_a_run_name_removes_no_result(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)
        other = await run_all(relay)
        titled = Workflow(jobs=WORKFLOW_WITH_GUID.jobs, run_name=f"{other.delivery_id} {{delivery_id}}")
        relay.github.repository(GATING).workflows = [titled]
        relay.clock.advance(MINUTE)
        pull = await open_pull(relay, title=str(other.delivery_id))
        run = newest_run(relay)
        await start_jobs(relay, run)
        await relay.github.send_run_webhook(run, "in_progress")
        await finish_jobs(relay, run, build="failure", test="success")
        await sweep_after(relay, MINUTE)

        assert gate_state(relay, pull) == "failure"
        assert counted_jobs(relay, run.delivery_id) == {(str(run.id), "failure"), (str(run.id), "success")}
        assert counted_jobs(relay, other.delivery_id) == {(str(other.id), "success")}
        assert audit_entries(relay, "run_bound_elsewhere") == []
