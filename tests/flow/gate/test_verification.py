"""Verification: a reported conclusion is compared with GitHub's conclusion of the job, and the worse one counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.jobs.judge import RejectedReport
from crcr.decide.oidc.identity import IssuerKind
from crcr.receive.callback.parse_report import parse_report
from github_sim.bodies import webhooks
from github_sim.github import JobSpec, Match, Workflow, WorkflowJob, WorkflowRun
from support.data.events_and_reports import a_caller
from support.downstream.callbacks import report_outcome
from support.github.checks import named_workflow
from support.github.gated_upstream import (
    GATE,
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
    start_jobs,
    sweep_after,
)
from support.running_relay import RunningRelay, repo

MINUTE, HOUR = 60.0, 3600.0
ANY_JOB = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['*']}}\n"
ACTIONS = f"/repos/{GATING}/actions/*"
JOBS = f"/repos/{GATING}/actions/runs/*/attempts/*/jobs"


def verified_job(relay: RunningRelay, name: str = "build") -> tuple[str, str, str | None, bool]:
    """The conclusion that counts for a job, its verification, GitHub's conclusion, and whether it is disputed."""
    row = [job for job in relay.jobs(GATING) if job["job_name"] == name][-1]
    return row["conclusion"], row["verification"], row["github_conclusion"], bool(row["disputed"])


async def finish_job(
    relay: RunningRelay, run: WorkflowRun, job: WorkflowJob | str, *, reported: str | None, github: str | None
) -> str:
    """Report the end of a job, then end the job on GitHub as well."""
    chosen = run.job(job) if isinstance(job, str) else job
    answer = await relay.github.report(run, chosen, status="completed", conclusion=reported)
    if github is not None:
        relay.github.ci.complete(run, chosen, github)
        await relay.github.send_queued_webhooks()
    await relay.drain()
    return report_outcome(answer)


async def finish_both_jobs(relay: RunningRelay, *, reported: str | None, github: str) -> WorkflowRun:
    """End `build` with these conclusions and `test` with success, and let the relay check them with GitHub."""
    run = newest_run(relay)
    await start_jobs(relay, run)
    await finish_job(relay, run, "build", reported=reported, github=github)
    await finish_job(relay, run, "test", reported="success", github="success")
    await sweep_after(relay, MINUTE)
    return run


async def test_a_reported_success_that_failed_on_github_is_a_disputed_failure_and_fails_the_gate(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await finish_both_jobs(relay, reported="success", github="failure")

        assert verified_job(relay) == ("failure", "disputed", "failure", True)
        assert gate_state(relay, pull) == "failure"
        assert "disputed: GitHub says otherwise" in latest_check(relay, GATE, pull.head_sha).output["summary"]


async def test_a_reported_failure_that_succeeded_on_github_stays_a_failure_and_is_disputed(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await finish_both_jobs(relay, reported="failure", github="success")

        assert verified_job(relay) == ("failure", "disputed", "success", True)
        assert gate_state(relay, pull) == "failure"


async def test_a_result_with_the_same_conclusion_on_github_is_confirmed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await finish_both_jobs(relay, reported="success", github="success")

        assert verified_job(relay) == ("success", "confirmed", "success", False)
        assert gate_state(relay, pull) == "success"


@pytest.mark.parametrize("github", ["cancelled", "timed_out", "action_required", "startup_failure", "stale"])
async def test_fault_35_a_reported_success_of_a_cancelled_or_timed_out_job_does_not_pass(
    tmp_path: Path, github: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await finish_both_jobs(relay, reported="success", github=github)

        assert verified_job(relay)[1] == "disputed"
        assert gate_state(relay, pull) == "failure"


@pytest.mark.parametrize("github", ["success", "failure"])
async def test_a_report_without_a_conclusion_gets_githubs_conclusion(tmp_path: Path, github: str) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await finish_job(relay, run, "test", reported="success", github="success")
        await finish_job(relay, run, "build", reported=None, github=github)

        assert verified_job(relay) == (github, "confirmed", github, False)
        assert gate_state(relay, pull) == github


async def test_a_dispute_between_two_reports_is_still_shown_after_github_confirmed_the_worse(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        assert await finish_job(relay, run, "build", reported="success", github=None) == "applied"
        assert (
            await finish_job(relay, run, "build", reported="failure", github="failure")
            == "conflicting_result"
        )
        await sweep_after(relay, MINUTE)

        assert verified_job(relay) == ("failure", "confirmed", "failure", True)


# When GitHub is queried


async def test_a_result_is_checked_again_until_its_job_has_ended_on_github(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        for name in ("build", "test"):
            await finish_job(relay, run, name, reported="success", github=None)
        await sweep_after(relay, MINUTE)
        assert relay.github.calls_to("GET", JOBS) != []
        assert [verified_job(relay, name)[1] for name in ("build", "test")] == ["unchecked", "unchecked"]
        relay.github.ci.complete(run, run.job("build"), "failure")
        await sweep_after(relay, 2 * MINUTE)

        assert (verified_job(relay, "build")[1], verified_job(relay, "test")[1], gate_state(relay, pull)) == (
            "disputed",
            "unchecked",
            "failure",
        )


async def test_a_job_that_never_ends_on_github_is_checked_less_and_less_often(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        for name in ("build", "test"):
            await finish_job(relay, run, name, reported="success", github=None)
        calls_per_round = []
        for _ in range(3):
            before = len(relay.github.calls_to("GET", JOBS))
            for _ in range(20):
                await relay.pass_time(3 * MINUTE)
            calls_per_round.append(len(relay.github.calls_to("GET", JOBS)) - before)
            await relay.pass_time(5 * HOUR)

        assert calls_per_round[0] > calls_per_round[1] >= calls_per_round[2] > 0
        assert calls_per_round[2] <= 6


async def test_github_is_not_queried_any_more_once_all_results_are_confirmed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)
        await run_all(relay)
        for _ in range(10):
            await sweep_after(relay, MINUTE)
        before = len(relay.github.calls_to("GET", ACTIONS))
        for _ in range(24):
            await sweep_after(relay, HOUR)

        assert {job["verification"] for job in relay.jobs(GATING)} == {"confirmed"}
        assert len(relay.github.calls_to("GET", ACTIONS)) == before


async def test_without_actions_read_the_report_counts_and_the_gate_says_so(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await relay.github.change_permissions(GATING, actions=None)
        pull = await open_pull(relay)
        await finish_both_jobs(relay, reported="success", github="failure")

        assert verified_job(relay) == ("success", "not verifiable", None, False)
        assert gate_state(relay, pull) == "success"
        assert "2 jobs, as reported" in latest_check(relay, GATE, pull.head_sha).output["summary"]


async def test_granting_actions_read_later_has_the_results_checked(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await relay.github.change_permissions(GATING, actions=None)
        pull = await open_pull(relay)
        await finish_both_jobs(relay, reported="success", github="failure")
        await relay.github.change_permissions(GATING, actions="read")
        for _ in range(2):
            await sweep_after(relay, 2 * MINUTE)

        assert (verified_job(relay)[1], gate_state(relay, pull)) == ("disputed", "failure")


async def test_a_github_outage_only_delays_the_verification(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        fault = relay.github.faults.answer(502, on=Match("GET", ACTIONS))
        await finish_both_jobs(relay, reported="success", github="failure")
        assert gate_state(relay, pull) == "pending"
        relay.github.faults.remove(fault)
        await sweep_after(relay, 15 * MINUTE)

        assert (verified_job(relay)[1], gate_state(relay, pull)) == ("disputed", "failure")


async def test_each_attempt_is_compared_with_the_same_attempt_on_github(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await finish_both_jobs(relay, reported="failure", github="failure")
        await relay.github.rerun(run, failed_only=True)
        await start_jobs(relay, run, "build")
        await finish_job(relay, run, "build", reported="success", github="timed_out")
        await sweep_after(relay, MINUTE)

        rows = [job for job in relay.jobs(GATING) if job["job_name"] == "build"]
        assert [(row["attempt"], row["conclusion"], row["verification"]) for row in rows] == [
            (1, "failure", "confirmed"),
            (2, "timed_out", "disputed"),
        ]
        assert gate_state(relay, pull) == "failure"


async def test_results_of_l3_backends_are_verified(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay, labels=[LABEL])
        await run_all(relay, INFORMING)
        await sweep_after(relay, MINUTE)

        assert {job["verification"] for job in relay.jobs(INFORMING)} == {"confirmed"}


async def test_results_of_l2_backends_are_not_verified_and_need_no_call_to_github(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, f"L2:\n  - {INFORMING}\n" + ANY_JOB) as relay:
        await open_pull(relay)
        for backend in (GATING, INFORMING):
            run = newest_run(relay, backend)
            await start_jobs(relay, run, "build")
            await finish_job(relay, run, "build", reported="success", github="failure")
        for _ in range(24):
            await sweep_after(relay, HOUR)
            await relay.services.reconciler.run()

        assert verified_job(relay) == ("failure", "disputed", "failure", True)
        [unverified] = relay.jobs(INFORMING)
        assert (unverified["conclusion"], unverified["verification"]) == ("success", "unchecked")
        assert relay.github.calls_to("GET", f"/repos/{INFORMING}/actions/*") == []


async def test_results_of_another_ci_are_self_reported_and_never_looked_up(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB.replace("'*'", "build"), downstreams=(GATING,)) as relay:
        relay.github.repository(GATING).workflows = [named_workflow("bridge")]
        pull = await open_pull(relay)
        run, repository = newest_run(relay), relay.github.repository(GATING)
        caller = a_caller(
            kind=IssuerKind.BUILDKITE,
            repository=repo(GATING),
            repository_id=repository.id,
            owner_id=repository.owner.id,
            run_id="0197-uuid",
            **dict.fromkeys(("check_run_id", "workflow_path")),
        )
        for status in ("in_progress", "completed"):
            body = relay.github.ci.report_body(
                run, run.jobs[0], status, job_name="build", run_id="0197-uuid", conclusion="success"
            )
            await take_report(relay, body, caller)
        relay.github.ci.complete(run, run.jobs[0], "success")
        for _ in range(3):
            await sweep_after(relay, 7 * HOUR)

        assert verified_job(relay) == ("success", "self-reported", None, False)
        assert gate_state(relay, pull) == "success"
        assert relay.github.calls_to("GET", f"{ACTIONS}/0197*") == relay.github.calls_to("GET", JOBS) == []


async def take_report(relay: RunningRelay, body: Any, caller: Any) -> None:
    """Record a report as the callback does once its token is verified."""
    raw = json.dumps(body).encode()
    report = parse_report(raw)
    [standing] = await relay.services.reports.read_standings(caller.repository, report.delivery_id)
    outcome = await relay.services.reports.take(report, caller, standing, raw, relay.clock.now())
    assert not isinstance(outcome, RejectedReport), outcome
    await relay.drain()


# Which GitHub job a result is compared with


async def test_a_result_reported_under_another_jobs_name_is_compared_with_that_job(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as relay:
        await open_pull(relay)
        run = newest_run(relay)
        await relay.github.start_job(run, "build", job_name="test")
        await relay.github.report(run, "build", status="completed", conclusion="success", job_name="test")
        relay.github.ci.complete(run, run.job("build"), "success")
        relay.github.ci.complete(run, run.job("test"), "failure")
        await sweep_after(relay, MINUTE)

        assert verified_job(relay, "test") == ("failure", "disputed", "failure", True)


async def test_a_result_closed_by_a_separate_job_is_matched_by_job_name(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as relay:
        relay.github.repository(GATING).workflows = [named_workflow("build", "report")]
        await open_pull(relay)
        run = newest_run(relay)
        await relay.github.start_job(run, "build")
        relay.github.ci.complete(run, run.job("build"), "failure")
        await relay.github.report(run, "report", status="completed", job_name="build", conclusion="success")
        relay.github.ci.complete(run, run.job("report"), "success")
        await sweep_after(relay, MINUTE)

        assert verified_job(relay) == ("failure", "disputed", "failure", True)


async def test_a_job_name_shared_by_two_github_jobs_gets_the_worse_conclusion(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as relay:
        relay.github.repository(GATING).workflows = [named_workflow("build", "build", "report")]
        pull = await open_pull(relay)
        run = newest_run(relay)
        first, second, reporter = run.jobs
        await relay.github.report(run, first)
        await relay.github.report(run, reporter, status="completed", job_name="build", conclusion="success")
        for job, github in ((first, "success"), (second, "failure"), (reporter, "success")):
            relay.github.ci.complete(run, job, github)
        await sweep_after(relay, MINUTE)

        assert verified_job(relay) == ("failure", "disputed", "failure", True)
        assert gate_state(relay, pull) == "failure"


async def test_a_job_name_unknown_to_github_fails_the_gate_when_its_run_failed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await relay.github.report(run, "build", job_name="nightly matrix")
        await relay.github.report(
            run, "test", status="completed", job_name="nightly matrix", conclusion="success"
        )
        for job in run.jobs:
            relay.github.ci.complete(run, job, "failure")
        await sweep_after(relay, MINUTE)

        assert verified_job(relay, "nightly matrix") == ("success", "not verifiable", None, False)
        assert gate_state(relay, pull) == "failure"
        assert "GitHub does not agree" in latest_check(relay, GATE, pull.head_sha).output["summary"]


async def test_matrix_legs_with_the_same_name_are_each_compared_with_their_own_job(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as relay:
        relay.github.repository(GATING).workflows = [named_workflow("build", "build")]
        await open_pull(relay)
        run = newest_run(relay)
        for job in run.jobs:
            await relay.github.report(run, job)
        for job, github in zip(run.jobs, ("success", "failure"), strict=True):
            await finish_job(relay, run, job, reported="success", github=github)
        await sweep_after(relay, MINUTE)

        assert verified_job(relay, "build") == ("success", "confirmed", "success", False)
        assert verified_job(relay, "build (2)") == ("failure", "disputed", "failure", True)


# Webhooks about jobs and runs


async def test_job_webhooks_of_github_count_at_once_and_the_jobs_are_listed_only_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await finish_job(relay, run, "build", reported="success", github="failure")
        await finish_job(relay, run, "test", reported="success", github="success")
        assert (verified_job(relay)[1], verified_job(relay, "test")[1], gate_state(relay, pull)) == (
            "disputed",
            "confirmed",
            "failure",
        )
        await sweep_after(relay, MINUTE)

        assert len(relay.github.calls_to("GET", JOBS)) == 1


async def test_a_job_webhook_that_arrives_before_the_report_is_not_lost(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        for job in run.jobs:
            relay.github.ci.complete(run, job, "failure")
        await relay.github.send_queued_webhooks()
        for name in ("build", "test"):
            await finish_job(relay, run, name, reported="success", github=None)
        await sweep_after(relay, MINUTE)

        assert (verified_job(relay)[1], gate_state(relay, pull)) == ("disputed", "failure")


async def test_a_webhook_about_a_failed_job_that_another_job_closed_counts_at_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as relay:
        relay.github.repository(GATING).workflows = [named_workflow("build", "report")]
        relay.github.repository(GATING).sends_run_webhooks = True
        await open_pull(relay)
        run = newest_run(relay)
        await relay.github.start_job(run, "build")
        await relay.github.report(run, "report", status="completed", job_name="build", conclusion="success")
        relay.github.ci.complete(run, run.job("build"), "failure")
        relay.github.ci.complete(run, run.job("report"), "success")
        await relay.github.send_queued_webhooks()

        assert verified_job(relay) == ("failure", "disputed", "failure", True)


@pytest.mark.parametrize("event", ["workflow_job", "workflow_run"])
async def test_a_webhook_of_a_repository_with_another_id_than_the_bound_one_is_ignored(
    tmp_path: Path, event: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.faults.answer(502, on=Match("GET", ACTIONS))
        await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await finish_job(relay, run, "build", reported="success", github="failure")
        webhook = webhooks.workflow_job(relay.github.base_url, relay.github.world, run, run.job("build"))
        if event == "workflow_run":
            webhook = webhooks.workflow_run(relay.github.base_url, relay.github.world, run, "completed")
        webhook.body["repository"]["id"] += 1
        delivery = await relay.github.send_webhook(event, webhook.body)

        assert "ignored" in json.loads(delivery.answer_body)
        assert verified_job(relay) == ("success", "unchecked", None, False)


async def test_webhooks_of_runs_without_a_dispatch_are_ignored(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).sends_run_webhooks = True
        relay.github.repository(GATING).workflows = [
            Workflow(listens=("schedule",), jobs=(JobSpec("build"),))
        ]
        run = relay.github.start_run(GATING)
        relay.github.ci.complete(run, run.job("build"), "failure")
        await relay.github.send_queued_webhooks()

        run_webhooks = [
            delivery for delivery in relay.github.deliveries() if delivery.event.startswith("workflow_")
        ]
        assert {"ignored" in json.loads(delivery.answer_body) for delivery in run_webhooks} == {True}
        assert relay.rows("SELECT * FROM runs") == relay.jobs() == []


async def test_fault_24_a_report_cannot_choose_its_commit(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull, victim = await open_pull(relay), await open_pull(relay)
        run = next(run for run in relay.github.runs(GATING) if run.delivery_id == pull.last_delivery.guid)  # type: ignore[union-attr]
        await start_jobs(relay, run)
        for job in run.jobs:
            body = relay.github.ci.report_body(run, job, "completed", conclusion="success")
            body["payload"] = {**body["payload"], "number": victim.number, "after": victim.head_sha}
            body["payload"]["pull_request"] = {"head": {"sha": victim.head_sha}, "number": victim.number}
            assert report_outcome(await relay.github.report(run, job, body=body)) == "applied"
            relay.github.ci.complete(run, job, "success")
        await relay.drain()

        assert (gate_state(relay, pull), gate_state(relay, victim)) == ("success", "pending")


async def test_a_confirmed_result_is_not_changed_by_a_later_webhook(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await finish_jobs(relay, run)
        assert verified_job(relay)[1] == "confirmed"
        run.job("build").conclusion = "failure"
        await relay.github.send_job_webhook(run, "build")
        await relay.drain()

        assert (verified_job(relay)[0], gate_state(relay, pull)) == ("success", "success")
