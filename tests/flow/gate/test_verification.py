"""Conclusions checked: what was reported against GitHub's own view of the job, and the worse of both counts."""

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
from support.downstream.callbacks import dispatched_run, report_outcome
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
    """What counts for a job, how it was verified, what GitHub said, and whether it is disputed."""
    row = [job for job in relay.jobs(GATING) if job["job_name"] == name][-1]
    return row["conclusion"], row["verification"], row["github_conclusion"], bool(row["disputed"])


async def end(
    relay: RunningRelay, run: WorkflowRun, job: WorkflowJob | str, *, says: str | None, github: str | None
) -> str:
    """A job reports its end, and a moment later GitHub's job ends as well."""
    chosen = run.job(job) if isinstance(job, str) else job
    answer = await relay.github.report(run, chosen, status="completed", conclusion=says)
    if github is not None:
        relay.github.ci.complete(run, chosen, github)
        await relay.github.send_queued_webhooks()
    await relay.drain()
    return report_outcome(answer)


async def both_end(relay: RunningRelay, *, says: str | None, github: str) -> WorkflowRun:
    """`build` ends in two ways, `test` is fine; GitHub has been asked about it."""
    run = newest_run(relay)
    await start_jobs(relay, run)
    await end(relay, run, "build", says=says, github=github)
    await end(relay, run, "test", says="success", github="success")
    await sweep_after(relay, MINUTE)
    return run


async def test_a_success_that_github_saw_fail_is_a_failure_disputed_and_the_gate_fails(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await both_end(relay, says="success", github="failure")

        assert verified_job(relay) == ("failure", "disputed", "failure", True)
        assert gate_state(relay, pull) == "failure"
        assert "disputed: GitHub says otherwise" in latest_check(relay, GATE, pull.head_sha).output["summary"]


async def test_a_failure_that_github_saw_succeed_stays_a_failure_and_is_disputed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await both_end(relay, says="failure", github="success")

        assert verified_job(relay) == ("failure", "disputed", "success", True)
        assert gate_state(relay, pull) == "failure"


async def test_what_github_saw_as_well_is_confirmed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await both_end(relay, says="success", github="success")

        assert verified_job(relay) == ("success", "confirmed", "success", False)
        assert gate_state(relay, pull) == "success"


@pytest.mark.parametrize("github", ["cancelled", "timed_out", "action_required", "startup_failure", "stale"])
async def test_fault_35_a_reported_success_of_a_job_that_was_cancelled_or_timed_out_does_not_pass(
    tmp_path: Path, github: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await both_end(relay, says="success", github=github)

        assert verified_job(relay)[1] == "disputed"
        assert gate_state(relay, pull) == "failure"


@pytest.mark.parametrize("github", ["success", "failure"])
async def test_a_report_without_a_conclusion_takes_githubs(tmp_path: Path, github: str) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await end(relay, run, "test", says="success", github="success")
        await end(relay, run, "build", says=None, github=github)

        assert verified_job(relay) == (github, "confirmed", github, False)
        assert gate_state(relay, pull) == github


async def test_a_dispute_between_two_reports_is_still_shown_after_github_has_confirmed_the_worse(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        assert await end(relay, run, "build", says="success", github=None) == "applied"
        assert await end(relay, run, "build", says="failure", github="failure") == "conflicting_result"
        await sweep_after(relay, MINUTE)

        assert verified_job(relay) == ("failure", "confirmed", "failure", True)


# When GitHub is asked


async def test_github_is_asked_again_until_its_own_job_has_ended(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        for name in ("build", "test"):
            await end(relay, run, name, says="success", github=None)
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


async def test_a_job_that_github_never_sees_end_is_asked_about_less_and_less_often(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        for name in ("build", "test"):
            await end(relay, run, name, says="success", github=None)
        asked = []
        for _ in range(3):
            before = len(relay.github.calls_to("GET", JOBS))
            for _ in range(20):
                await relay.pass_time(3 * MINUTE)
            asked.append(len(relay.github.calls_to("GET", JOBS)) - before)
            await relay.pass_time(5 * HOUR)

        assert asked[0] > asked[1] >= asked[2] > 0
        assert asked[2] <= 6


async def test_nothing_is_asked_any_more_once_everything_is_confirmed(tmp_path: Path) -> None:
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


async def test_the_report_counts_where_the_app_may_not_look_and_the_gate_says_so(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await relay.github.change_permissions(GATING, actions=None)
        pull = await open_pull(relay)
        await both_end(relay, says="success", github="failure")

        assert verified_job(relay) == ("success", "not verifiable", None, False)
        assert gate_state(relay, pull) == "success"
        assert "2 jobs, as reported" in latest_check(relay, GATE, pull.head_sha).output["summary"]


async def test_a_right_to_look_that_comes_later_has_the_results_checked_after_all(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await relay.github.change_permissions(GATING, actions=None)
        pull = await open_pull(relay)
        await both_end(relay, says="success", github="failure")
        await relay.github.change_permissions(GATING, actions="read")
        for _ in range(2):
            await sweep_after(relay, 2 * MINUTE)

        assert (verified_job(relay)[1], gate_state(relay, pull)) == ("disputed", "failure")


async def test_an_outage_of_github_only_delays_the_check(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        away = relay.github.faults.answer(502, on=Match("GET", ACTIONS))
        await both_end(relay, says="success", github="failure")
        assert gate_state(relay, pull) == "pending"
        relay.github.faults.remove(away)
        await sweep_after(relay, 15 * MINUTE)

        assert (verified_job(relay)[1], gate_state(relay, pull)) == ("disputed", "failure")


async def test_each_attempt_is_held_against_githubs_own_attempt(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = await both_end(relay, says="failure", github="failure")
        await relay.github.rerun(run, failed_only=True)
        await start_jobs(relay, run, "build")
        await end(relay, run, "build", says="success", github="timed_out")
        await sweep_after(relay, MINUTE)

        rows = [job for job in relay.jobs(GATING) if job["job_name"] == "build"]
        assert [(row["attempt"], row["conclusion"], row["verification"]) for row in rows] == [
            (1, "failure", "confirmed"),
            (2, "timed_out", "disputed"),
        ]
        assert gate_state(relay, pull) == "failure"


async def test_results_of_l3_are_checked_and_those_of_l2_are_not(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay, labels=[LABEL])
        await run_all(relay, INFORMING)
        await sweep_after(relay, MINUTE)

        assert {job["verification"] for job in relay.jobs(INFORMING)} == {"confirmed"}


async def test_results_of_l2_cost_no_call_to_github(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        for name in ("build", "test"):
            await relay.github.start_job(run, name)
            await relay.github.complete_job(run, name)
        for _ in range(24):
            await sweep_after(relay, HOUR)
            await relay.services.reconciler.run()

        assert relay.github.calls_to("GET", "*/actions/*") == []
        assert {job["verification"] for job in relay.jobs()} == {"unchecked"}


async def test_ci_elsewhere_is_self_reported_and_never_looked_up(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB.replace("'*'", "build"), downstreams=(GATING,)) as relay:
        relay.github.repository(GATING).workflows = [named_workflow("bridge")]
        pull = await open_pull(relay)
        run, there = newest_run(relay), relay.github.repository(GATING)
        caller = a_caller(
            kind=IssuerKind.BUILDKITE,
            repository=repo(GATING),
            repository_id=there.id,
            owner_id=there.owner.id,
            run_id="0197-uuid",
            **dict.fromkeys(("check_run_id", "workflow_path")),
        )
        for status in ("in_progress", "completed"):
            body = relay.github.ci.report_body(
                run, run.jobs[0], status, job_name="build", run_id="0197-uuid", conclusion="success"
            )
            await take(relay, body, caller)
        relay.github.ci.complete(run, run.jobs[0], "success")
        for _ in range(3):
            await sweep_after(relay, 7 * HOUR)

        assert verified_job(relay) == ("success", "self-reported", None, False)
        assert gate_state(relay, pull) == "success"
        assert relay.github.calls_to("GET", f"{ACTIONS}/0197*") == relay.github.calls_to("GET", JOBS) == []


async def take(relay: RunningRelay, body: Any, caller: Any) -> None:
    """What the callback does once a token has proved who is calling."""
    raw = json.dumps(body).encode()
    report = parse_report(raw)
    [standing] = await relay.services.reports.read_standings(caller.repository, report.delivery_id)
    taken = await relay.services.reports.take(report, caller, standing, raw, relay.clock.now())
    assert not isinstance(taken, RejectedReport), taken
    await relay.drain()


# Which of GitHub's jobs is meant


async def test_a_job_that_reports_under_another_jobs_name_is_held_against_that_job(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as relay:
        await open_pull(relay)
        run = newest_run(relay)
        await relay.github.start_job(run, "build", job_name="test")
        await relay.github.report(run, "build", status="completed", conclusion="success", job_name="test")
        relay.github.ci.complete(run, run.job("build"), "success")
        relay.github.ci.complete(run, run.job("test"), "failure")
        await sweep_after(relay, MINUTE)

        assert verified_job(relay, "test") == ("failure", "disputed", "failure", True)


async def test_what_a_separate_job_closed_is_matched_by_the_jobs_name(tmp_path: Path) -> None:
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


async def test_a_name_that_two_of_githubs_jobs_have_counts_as_the_worse_of_them(tmp_path: Path) -> None:
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


async def test_a_name_that_none_of_githubs_jobs_has_fails_with_its_run(tmp_path: Path) -> None:
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


async def test_legs_of_one_name_are_each_held_against_their_own_job(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as relay:
        relay.github.repository(GATING).workflows = [named_workflow("build", "build")]
        await open_pull(relay)
        run = newest_run(relay)
        for job in run.jobs:
            await relay.github.report(run, job)
        for job, github in zip(run.jobs, ("success", "failure"), strict=True):
            await end(relay, run, job, says="success", github=github)
        await sweep_after(relay, MINUTE)

        assert verified_job(relay, "build") == ("success", "confirmed", "success", False)
        assert verified_job(relay, "build (2)") == ("failure", "disputed", "failure", True)


# What GitHub tells by itself


async def test_where_github_tells_by_webhook_its_word_counts_at_once_and_jobs_are_asked_for_once(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await end(relay, run, "build", says="success", github="failure")
        await end(relay, run, "test", says="success", github="success")
        assert (verified_job(relay)[1], verified_job(relay, "test")[1], gate_state(relay, pull)) == (
            "disputed",
            "confirmed",
            "failure",
        )
        await sweep_after(relay, MINUTE)

        assert len(relay.github.calls_to("GET", JOBS)) == 1


async def test_githubs_word_before_the_report_is_asked_for_again_and_not_lost(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        for job in run.jobs:
            relay.github.ci.complete(run, job, "failure")
        await relay.github.send_queued_webhooks()
        for name in ("build", "test"):
            await end(relay, run, name, says="success", github=None)
        await sweep_after(relay, MINUTE)

        assert (verified_job(relay)[1], gate_state(relay, pull)) == ("disputed", "failure")


async def test_news_of_a_failed_job_that_another_job_closed_counts_at_once(tmp_path: Path) -> None:
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
async def test_news_of_a_repository_whose_id_is_not_the_bound_one_is_ignored(
    tmp_path: Path, event: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.faults.answer(502, on=Match("GET", ACTIONS))
        await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await end(relay, run, "build", says="success", github="failure")
        of = webhooks.workflow_job(relay.github.base_url, relay.github.world, run, run.job("build"))
        if event == "workflow_run":
            of = webhooks.workflow_run(relay.github.base_url, relay.github.world, run, "completed")
        of.body["repository"]["id"] += 1
        delivery = await relay.github.send_webhook(event, of.body)

        assert "ignored" in json.loads(delivery.answer_body)
        assert verified_job(relay) == ("success", "unchecked", None, False)


async def test_news_of_runs_that_answer_no_dispatch_is_ignored(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).sends_run_webhooks = True
        relay.github.repository(GATING).workflows = [
            Workflow(listens=("schedule",), jobs=(JobSpec("build"),))
        ]
        run = relay.github.start_run(GATING)
        relay.github.ci.complete(run, run.job("build"), "failure")
        await relay.github.send_queued_webhooks()

        told = [each for each in relay.github.deliveries() if each.event.startswith("workflow_")]
        assert {"ignored" in json.loads(each.answer_body) for each in told} == {True}
        assert relay.rows("SELECT * FROM runs") == relay.jobs() == []


async def test_fault_24_a_report_cannot_choose_the_commit_that_it_speaks_for(tmp_path: Path) -> None:
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


async def test_a_confirmed_result_is_not_changed_by_what_github_tells_later(tmp_path: Path) -> None:
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
