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
from support.github.gated_upstream import (
    GATE,
    GATING,
    INFORMING,
    LABEL,
    Stage,
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
from support.stage import repo

MINUTE, HOUR = 60.0, 3600.0
ANY_JOB = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['*']}}\n"
ACTIONS = f"/repos/{GATING}/actions/*"
JOBS = f"/repos/{GATING}/actions/runs/*/attempts/*/jobs"


def named(*names: str) -> Workflow:
    return Workflow(jobs=tuple(JobSpec(name) for name in names), run_name="CI {delivery_id}")


def found(it: Stage, name: str = "build") -> tuple[str, str, str | None, bool]:
    """What counts for a job, how it was verified, what GitHub said, and whether it is disputed."""
    row = [job for job in it.jobs(GATING) if job["job_name"] == name][-1]
    return row["conclusion"], row["verification"], row["github_conclusion"], bool(row["disputed"])


async def end(
    it: Stage, run: WorkflowRun, job: WorkflowJob | str, *, says: str | None, github: str | None
) -> str:
    """A job reports its end, and a moment later GitHub's job ends as well."""
    chosen = run.job(job) if isinstance(job, str) else job
    answer = await it.github.report(run, chosen, status="completed", conclusion=says)
    if github is not None:
        it.github.ci.complete(run, chosen, github)
        await it.github.send_queued_webhooks()
    await it.act()
    return report_outcome(answer)


async def both_end(it: Stage, *, says: str | None, github: str) -> WorkflowRun:
    """`build` ends in two ways, `test` is fine; GitHub has been asked about it."""
    run = newest_run(it)
    await start_jobs(it, run)
    await end(it, run, "build", says=says, github=github)
    await end(it, run, "test", says="success", github="success")
    await sweep_after(it, MINUTE)
    return run


async def test_a_success_that_github_saw_fail_is_a_failure_disputed_and_the_gate_fails(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await both_end(it, says="success", github="failure")

        assert found(it) == ("failure", "disputed", "failure", True)
        assert gate_state(it, pull) == "failure"
        assert "disputed: GitHub says otherwise" in latest_check(it, GATE, pull.head_sha).output["summary"]


async def test_a_failure_that_github_saw_succeed_stays_a_failure_and_is_disputed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await both_end(it, says="failure", github="success")

        assert found(it) == ("failure", "disputed", "success", True)
        assert gate_state(it, pull) == "failure"


async def test_what_github_saw_as_well_is_confirmed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await both_end(it, says="success", github="success")

        assert found(it) == ("success", "confirmed", "success", False)
        assert gate_state(it, pull) == "success"


@pytest.mark.parametrize("github", ["cancelled", "timed_out", "action_required", "startup_failure", "stale"])
async def test_fault_35_a_reported_success_of_a_job_that_was_cancelled_or_timed_out_does_not_pass(
    tmp_path: Path, github: str
) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await both_end(it, says="success", github=github)

        assert found(it)[1] == "disputed"
        assert gate_state(it, pull) == "failure"


@pytest.mark.parametrize("github", ["success", "failure"])
async def test_a_report_without_a_conclusion_takes_githubs(tmp_path: Path, github: str) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        await end(it, run, "test", says="success", github="success")
        await end(it, run, "build", says=None, github=github)

        assert found(it) == (github, "confirmed", github, False)
        assert gate_state(it, pull) == github


async def test_a_dispute_between_two_reports_is_still_shown_after_github_has_confirmed_the_worse(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as it:
        await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        assert await end(it, run, "build", says="success", github=None) == "applied"
        assert await end(it, run, "build", says="failure", github="failure") == "conflicting_result"
        await sweep_after(it, MINUTE)

        assert found(it) == ("failure", "confirmed", "failure", True)


# When GitHub is asked


async def test_github_is_asked_again_until_its_own_job_has_ended(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        for name in ("build", "test"):
            await end(it, run, name, says="success", github=None)
        await sweep_after(it, MINUTE)
        assert it.github.calls_to("GET", JOBS) != []
        assert [found(it, name)[1] for name in ("build", "test")] == ["unchecked", "unchecked"]
        it.github.ci.complete(run, run.job("build"), "failure")
        await sweep_after(it, 2 * MINUTE)

        assert (found(it, "build")[1], found(it, "test")[1], gate_state(it, pull)) == (
            "disputed",
            "unchecked",
            "failure",
        )


async def test_a_job_that_github_never_sees_end_is_asked_about_less_and_less_often(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        for name in ("build", "test"):
            await end(it, run, name, says="success", github=None)
        asked = []
        for _ in range(3):
            before = len(it.github.calls_to("GET", JOBS))
            for _ in range(20):
                await it.pass_time(3 * MINUTE)
            asked.append(len(it.github.calls_to("GET", JOBS)) - before)
            await it.pass_time(5 * HOUR)

        assert asked[0] > asked[1] >= asked[2] > 0
        assert asked[2] <= 6


async def test_nothing_is_asked_any_more_once_everything_is_confirmed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        await open_pull(it)
        await run_all(it)
        for _ in range(10):
            await sweep_after(it, MINUTE)
        before = len(it.github.calls_to("GET", ACTIONS))
        for _ in range(24):
            await sweep_after(it, HOUR)

        assert {job["verification"] for job in it.jobs(GATING)} == {"confirmed"}
        assert len(it.github.calls_to("GET", ACTIONS)) == before


async def test_the_report_counts_where_the_app_may_not_look_and_the_gate_says_so(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        await it.github.change_permissions(GATING, actions=None)
        pull = await open_pull(it)
        await both_end(it, says="success", github="failure")

        assert found(it) == ("success", "not verifiable", None, False)
        assert gate_state(it, pull) == "success"
        assert "2 jobs, as reported" in latest_check(it, GATE, pull.head_sha).output["summary"]


async def test_a_right_to_look_that_comes_later_has_the_results_checked_after_all(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        await it.github.change_permissions(GATING, actions=None)
        pull = await open_pull(it)
        await both_end(it, says="success", github="failure")
        await it.github.change_permissions(GATING, actions="read")
        for _ in range(2):
            await sweep_after(it, 2 * MINUTE)

        assert (found(it)[1], gate_state(it, pull)) == ("disputed", "failure")


async def test_an_outage_of_github_only_delays_the_check(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        away = it.github.faults.answer(502, on=Match("GET", ACTIONS))
        await both_end(it, says="success", github="failure")
        assert gate_state(it, pull) == "pending"
        it.github.faults.remove(away)
        await sweep_after(it, 15 * MINUTE)

        assert (found(it)[1], gate_state(it, pull)) == ("disputed", "failure")


async def test_each_attempt_is_held_against_githubs_own_attempt(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        run = await both_end(it, says="failure", github="failure")
        await it.github.rerun(run, failed_only=True)
        await start_jobs(it, run, "build")
        await end(it, run, "build", says="success", github="timed_out")
        await sweep_after(it, MINUTE)

        rows = [job for job in it.jobs(GATING) if job["job_name"] == "build"]
        assert [(row["attempt"], row["conclusion"], row["verification"]) for row in rows] == [
            (1, "failure", "confirmed"),
            (2, "timed_out", "disputed"),
        ]
        assert gate_state(it, pull) == "failure"


async def test_results_of_l3_are_checked_and_those_of_l2_are_not(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        await open_pull(it, labels=[LABEL])
        await run_all(it, INFORMING)
        await sweep_after(it, MINUTE)

        assert {job["verification"] for job in it.jobs(INFORMING)} == {"confirmed"}


async def test_results_of_l2_cost_no_call_to_github(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (it, run):
        for name in ("build", "test"):
            await it.github.start_job(run, name)
            await it.github.complete_job(run, name)
        for _ in range(24):
            await sweep_after(it, HOUR)
            await it.services.reconciler.run()

        assert it.github.calls_to("GET", "*/actions/*") == []
        assert {job["verification"] for job in it.jobs()} == {"unchecked"}


async def test_ci_elsewhere_is_self_reported_and_never_looked_up(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB.replace("'*'", "build"), downstreams=(GATING,)) as it:
        it.github.repository(GATING).workflows = [named("bridge")]
        pull = await open_pull(it)
        run, there = newest_run(it), it.github.repository(GATING)
        caller = a_caller(
            kind=IssuerKind.BUILDKITE,
            repository=repo(GATING),
            repository_id=there.id,
            owner_id=there.owner.id,
            run_id="0197-uuid",
            **dict.fromkeys(("check_run_id", "workflow_path")),
        )
        for status in ("in_progress", "completed"):
            body = it.github.ci.report_body(
                run, run.jobs[0], status, job_name="build", run_id="0197-uuid", conclusion="success"
            )
            await take(it, body, caller)
        it.github.ci.complete(run, run.jobs[0], "success")
        for _ in range(3):
            await sweep_after(it, 7 * HOUR)

        assert found(it) == ("success", "self-reported", None, False)
        assert gate_state(it, pull) == "success"
        assert it.github.calls_to("GET", f"{ACTIONS}/0197*") == it.github.calls_to("GET", JOBS) == []


async def take(it: Stage, body: Any, caller: Any) -> None:
    """What the callback does once a token has proved who is calling."""
    raw = json.dumps(body).encode()
    report = parse_report(raw)
    [standing] = await it.services.reports.read_standings(caller.repository, report.delivery_id)
    taken = await it.services.reports.take(report, caller, standing, raw, it.clock.now())
    assert not isinstance(taken, RejectedReport), taken
    await it.act()


# Which of GitHub's jobs is meant


async def test_a_job_that_reports_under_another_jobs_name_is_held_against_that_job(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as it:
        await open_pull(it)
        run = newest_run(it)
        await it.github.start_job(run, "build", job_name="test")
        await it.github.report(run, "build", status="completed", conclusion="success", job_name="test")
        it.github.ci.complete(run, run.job("build"), "success")
        it.github.ci.complete(run, run.job("test"), "failure")
        await sweep_after(it, MINUTE)

        assert found(it, "test") == ("failure", "disputed", "failure", True)


async def test_what_a_separate_job_closed_is_matched_by_the_jobs_name(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as it:
        it.github.repository(GATING).workflows = [named("build", "report")]
        await open_pull(it)
        run = newest_run(it)
        await it.github.start_job(run, "build")
        it.github.ci.complete(run, run.job("build"), "failure")
        await it.github.report(run, "report", status="completed", job_name="build", conclusion="success")
        it.github.ci.complete(run, run.job("report"), "success")
        await sweep_after(it, MINUTE)

        assert found(it) == ("failure", "disputed", "failure", True)


async def test_a_name_that_two_of_githubs_jobs_have_counts_as_the_worse_of_them(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as it:
        it.github.repository(GATING).workflows = [named("build", "build", "report")]
        pull = await open_pull(it)
        run = newest_run(it)
        first, second, reporter = run.jobs
        await it.github.report(run, first)
        await it.github.report(run, reporter, status="completed", job_name="build", conclusion="success")
        for job, github in ((first, "success"), (second, "failure"), (reporter, "success")):
            it.github.ci.complete(run, job, github)
        await sweep_after(it, MINUTE)

        assert found(it) == ("failure", "disputed", "failure", True)
        assert gate_state(it, pull) == "failure"


async def test_a_name_that_none_of_githubs_jobs_has_fails_with_its_run(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as it:
        pull = await open_pull(it)
        run = newest_run(it)
        await it.github.report(run, "build", job_name="nightly matrix")
        await it.github.report(
            run, "test", status="completed", job_name="nightly matrix", conclusion="success"
        )
        for job in run.jobs:
            it.github.ci.complete(run, job, "failure")
        await sweep_after(it, MINUTE)

        assert found(it, "nightly matrix") == ("success", "not verifiable", None, False)
        assert gate_state(it, pull) == "failure"
        assert "GitHub does not agree" in latest_check(it, GATE, pull.head_sha).output["summary"]


async def test_legs_of_one_name_are_each_held_against_their_own_job(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as it:
        it.github.repository(GATING).workflows = [named("build", "build")]
        await open_pull(it)
        run = newest_run(it)
        for job in run.jobs:
            await it.github.report(run, job)
        for job, github in zip(run.jobs, ("success", "failure"), strict=True):
            await end(it, run, job, says="success", github=github)
        await sweep_after(it, MINUTE)

        assert found(it, "build") == ("success", "confirmed", "success", False)
        assert found(it, "build (2)") == ("failure", "disputed", "failure", True)


# What GitHub tells by itself


async def test_where_github_tells_by_webhook_its_word_counts_at_once_and_jobs_are_asked_for_once(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as it:
        it.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        await end(it, run, "build", says="success", github="failure")
        await end(it, run, "test", says="success", github="success")
        assert (found(it)[1], found(it, "test")[1], gate_state(it, pull)) == (
            "disputed",
            "confirmed",
            "failure",
        )
        await sweep_after(it, MINUTE)

        assert len(it.github.calls_to("GET", JOBS)) == 1


async def test_githubs_word_before_the_report_is_asked_for_again_and_not_lost(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        it.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        for job in run.jobs:
            it.github.ci.complete(run, job, "failure")
        await it.github.send_queued_webhooks()
        for name in ("build", "test"):
            await end(it, run, name, says="success", github=None)
        await sweep_after(it, MINUTE)

        assert (found(it)[1], gate_state(it, pull)) == ("disputed", "failure")


async def test_news_of_a_failed_job_that_another_job_closed_counts_at_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY_JOB) as it:
        it.github.repository(GATING).workflows = [named("build", "report")]
        it.github.repository(GATING).sends_run_webhooks = True
        await open_pull(it)
        run = newest_run(it)
        await it.github.start_job(run, "build")
        await it.github.report(run, "report", status="completed", job_name="build", conclusion="success")
        it.github.ci.complete(run, run.job("build"), "failure")
        it.github.ci.complete(run, run.job("report"), "success")
        await it.github.send_queued_webhooks()

        assert found(it) == ("failure", "disputed", "failure", True)


@pytest.mark.parametrize("event", ["workflow_job", "workflow_run"])
async def test_news_of_a_repository_whose_id_is_not_the_bound_one_is_ignored(
    tmp_path: Path, event: str
) -> None:
    async with gated_upstream(tmp_path) as it:
        it.github.faults.answer(502, on=Match("GET", ACTIONS))
        await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        await end(it, run, "build", says="success", github="failure")
        of = webhooks.workflow_job(it.github.base_url, it.github.world, run, run.job("build"))
        if event == "workflow_run":
            of = webhooks.workflow_run(it.github.base_url, it.github.world, run, "completed")
        of.body["repository"]["id"] += 1
        delivery = await it.github.send_webhook(event, of.body)

        assert "ignored" in json.loads(delivery.answer_body)
        assert found(it) == ("success", "unchecked", None, False)


async def test_news_of_runs_that_answer_no_dispatch_is_ignored(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        it.github.repository(GATING).sends_run_webhooks = True
        it.github.repository(GATING).workflows = [Workflow(listens=("schedule",), jobs=(JobSpec("build"),))]
        run = it.github.start_run(GATING)
        it.github.ci.complete(run, run.job("build"), "failure")
        await it.github.send_queued_webhooks()

        told = [each for each in it.github.deliveries() if each.event.startswith("workflow_")]
        assert {"ignored" in json.loads(each.answer_body) for each in told} == {True}
        assert it.rows("SELECT * FROM runs") == it.jobs() == []


async def test_fault_24_a_report_cannot_choose_the_commit_that_it_speaks_for(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull, victim = await open_pull(it), await open_pull(it)
        run = next(run for run in it.github.runs(GATING) if run.delivery_id == pull.last_delivery.guid)  # type: ignore[union-attr]
        await start_jobs(it, run)
        for job in run.jobs:
            body = it.github.ci.report_body(run, job, "completed", conclusion="success")
            body["payload"] = {**body["payload"], "number": victim.number, "after": victim.head_sha}
            body["payload"]["pull_request"] = {"head": {"sha": victim.head_sha}, "number": victim.number}
            assert report_outcome(await it.github.report(run, job, body=body)) == "applied"
            it.github.ci.complete(run, job, "success")
        await it.act()

        assert (gate_state(it, pull), gate_state(it, victim)) == ("success", "pending")


async def test_a_confirmed_result_is_not_changed_by_what_github_tells_later(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        it.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        await finish_jobs(it, run)
        assert found(it)[1] == "confirmed"
        run.job("build").conclusion = "failure"
        await it.github.send_job_webhook(run, "build")
        await it.act()

        assert (found(it)[0], gate_state(it, pull)) == ("success", "success")
