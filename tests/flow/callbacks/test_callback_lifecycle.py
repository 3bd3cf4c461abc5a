"""The lifecycle of a reported job: late starts, disputes, time-outs, re-runs, and queue and execution times."""

from pathlib import Path

import pytest

from support.downstream.callbacks import (
    BACKEND,
    dispatched_run,
    end_unreported,
    job_marks,
    refusal_code,
    report_outcome,
    sweep,
)

HOUR = 3600.0


async def test_completed_without_in_progress_is_refused_with_a_hint_and_following_it_works(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        refusal = await relay.github.complete_job(run, "build")
        late = await relay.github.report(run, "build", late=True)
        again = await relay.github.report(run, "build", status="completed")

        assert refusal_code(refusal) == (409, "no_in_progress")
        assert '"late": true' in refusal.json()["error"]["hint"]
        assert [report_outcome(late), report_outcome(again)] == ["applied", "applied"]
        [job] = relay.jobs()
        assert (job["state"], job["queue_s"], job["execution_s"]) == ("completed", None, None)
        assert job_marks(job) == {"late"}


async def test_a_repeated_report_changes_nothing(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        started = relay.jobs()
        relay.clock.advance(60)
        assert report_outcome(await relay.github.report(run, "build")) == "repeat"
        assert relay.jobs() == started
        await relay.github.complete_job(run, "build")
        completed = relay.jobs()
        relay.clock.advance(60)
        assert report_outcome(await relay.github.report(run, "build", status="completed")) == "repeat"
        assert relay.jobs() == completed


async def test_a_conflicting_result_is_recorded_and_the_worse_one_counts(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        await relay.github.complete_job(run, "build", "success")
        conflict = await relay.github.report(run, "build", status="completed", conclusion="failure")
        original = await relay.github.report(run, "build", status="completed", conclusion="success")
        repeated = await relay.github.report(run, "build", status="completed", conclusion="failure")

        assert refusal_code(conflict) == refusal_code(repeated) == (409, "conflicting_result")
        assert report_outcome(original) == "repeat"
        [job] = relay.jobs()
        assert (job["first_conclusion"], job["disputed_conclusion"], job["conclusion"]) == (
            "success",
            "failure",
            "failure",
        )
        assert job_marks(job) == {"disputed"}


async def test_a_better_conflicting_result_does_not_improve_the_conclusion(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        await relay.github.complete_job(run, "build", "failure")
        for claim in ("success", "success", "neutral"):
            answer = await relay.github.report(run, "build", status="completed", conclusion=claim)
            assert refusal_code(answer) == (409, "conflicting_result")

        [job] = relay.jobs()
        assert (job["conclusion"], job["disputed_conclusion"]) == ("failure", "neutral")


async def test_a_repeated_dispute_is_published_to_the_pages_once(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        await relay.github.complete_job(run, "build", "success")
        for _ in range(5):
            await relay.github.report(run, "build", status="completed", conclusion="failure")

        assert len(relay.rows("SELECT * FROM changes WHERE kind = 'job'")) == 3


@pytest.mark.parametrize(("option", "hours"), [("", 6), (": {job_timeout: 24h}", 24)])
async def test_fault_18_a_job_of_20_hours_times_out_by_its_own_setting_and_its_result_is_accepted(
    tmp_path: Path, option: str, hours: int
) -> None:
    async with dispatched_run(tmp_path, f"L2:\n  - {BACKEND}{option}\n") as (relay, run):
        await relay.github.start_job(run, "build")
        end_unreported(relay, run, "build")
        relay.clock.advance(20 * HOUR)
        await sweep(relay)
        timed_out = hours < 20
        assert [job["state"] for job in relay.jobs()] == ["timed_out" if timed_out else "in_progress"]
        answer = await relay.github.report(run, "build", status="completed", conclusion="success")

        assert report_outcome(answer) == "applied"
        [job] = relay.jobs()
        assert (job["state"], job["conclusion"], job["execution_s"]) == ("completed", "success", 20 * HOUR)
        assert job_marks(job) == ({"late"} if timed_out else set())


async def test_a_start_report_after_the_time_out_is_a_repeat(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        end_unreported(relay, run, "build")
        relay.clock.advance(7 * HOUR)
        await sweep(relay)

        assert report_outcome(await relay.github.report(run, "build")) == "repeat"
        assert [job["state"] for job in relay.jobs()] == ["timed_out"]


async def test_fault_19_a_rerun_two_days_later_has_no_queue_time_and_its_own_row(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        relay.clock.advance(30)
        await relay.github.start_job(run, "build")
        await relay.github.complete_job(run, "build", "failure")
        relay.clock.advance(48 * HOUR)
        await relay.github.rerun(run)
        relay.clock.advance(15)
        await relay.github.start_job(run, "build")
        relay.clock.advance(60)
        await relay.github.complete_job(run, "build", "success")

        rows = [
            (job["attempt"], job["conclusion"], job["queue_s"], job["execution_s"]) for job in relay.jobs()
        ]
        assert rows == [(1, "failure", 30.0, 0.0), (2, "success", None, 60.0)]
        assert all(job_marks(job) == set() for job in relay.jobs())


async def test_a_late_report_of_an_old_attempt_does_not_change_the_new_attempt(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        first_token = relay.github.oidc_token(run, "build")
        first_body = relay.github.ci.report_body(run, run.job("build"), "completed", conclusion="failure")
        await relay.github.rerun(run)
        await relay.github.start_job(run, "build")
        answer = await relay.github.report(run, "build", body=first_body, token=first_token)

        assert report_outcome(answer) == "applied"
        assert {job["attempt"]: job["state"] for job in relay.jobs()} == {1: "completed", 2: "in_progress"}


async def test_queue_and_execution_times_are_null_when_they_would_be_negative(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        ahead = int((relay.clock.now().timestamp() + 5) * 1_000_000)
        relay.rows("UPDATE dispatches SET sent_at = ?, attempted_at = ?", ahead, ahead)
        await relay.github.start_job(run, "build")
        relay.rows("UPDATE jobs SET in_progress_at = ?", ahead)
        await relay.github.complete_job(run, "build")

        [job] = relay.jobs()
        assert (job["queue_s"], job["execution_s"]) == (None, None)


async def test_trusted_fields_are_stored_separately_from_the_sent_body(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        relay.clock.advance(7)
        await relay.github.start_job(run, "build")
        relay.clock.advance(11)
        await relay.github.complete_job(run, "build", ci_metrics={"queue_time": 0}, verified_repo="evil/repo")

        [job] = relay.jobs()
        assert job["trusted"] == (
            '{"verified_repo":"org/backend","downstream_repo_level":"L2",'
            '"ci_metrics":{"queue_time":7.0,"execution_time":11.0}}'
        )
        assert b"evil/repo" in job["untrusted"]
        assert b'"payload"' not in job["untrusted"]
