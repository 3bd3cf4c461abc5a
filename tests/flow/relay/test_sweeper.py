"""The sweeper: silent jobs time out by their entry's time-out, and old rows are removed."""

import asyncio
from pathlib import Path

import pytest

from support.downstream.callbacks import (
    BACKEND,
    LISTED,
    dispatched_run,
    end_unreported,
    report_outcome,
    sweep,
)
from support.running_relay import UPSTREAM, RunningRelay, running_relay

HOUR, DAY = 3600.0, 24 * 3600.0
PATIENT = "org/patient"
BOTH = f"L2:\n  - {BACKEND}: {{job_timeout: 2h}}\n  - {PATIENT}\n"


def states(relay: RunningRelay) -> dict[str, str]:
    return {job["downstream"]: job["state"] for job in relay.jobs()}


async def test_silent_jobs_time_out_by_the_job_timeout_of_their_downstream(tmp_path: Path) -> None:
    async with running_relay(tmp_path, BOTH, downstreams=(BACKEND, PATIENT), CRCR_JOB_TIMEOUT="5h") as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        for name in (BACKEND, PATIENT):
            await relay.github.start_job(relay.github.runs(name)[0], "build")
            end_unreported(relay, relay.github.runs(name)[0], "build")
        seen_states = []
        for hours in (1.99, 0.02, 2.98, 0.02):
            relay.clock.advance(hours * HOUR)
            await sweep(relay)
            seen_states.append((states(relay)[BACKEND], states(relay)[PATIENT]))

        assert seen_states == [
            ("in_progress", "in_progress"),
            ("timed_out", "in_progress"),
            ("timed_out", "in_progress"),
            ("timed_out", "timed_out"),
        ]


async def test_a_completed_job_never_times_out(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        await relay.github.complete_job(run, "build", "failure")
        before = relay.jobs()
        relay.clock.advance(30 * DAY)
        await relay.services.sweeper.sweep()

        assert relay.jobs() == before


async def test_a_repeated_sweep_changes_nothing(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        end_unreported(relay, run, "build")
        relay.clock.advance(7 * HOUR)
        await sweep(relay)
        once = (relay.jobs(), relay.rows("SELECT * FROM changes"))
        relay.clock.advance(7 * HOUR)
        await sweep(relay)

        assert (relay.jobs(), relay.rows("SELECT * FROM changes")) == once
        assert [job["swept_at"] for job in relay.jobs()] == [
            int((relay.clock.now().timestamp() - 7 * HOUR) * 1_000_000)
        ]


async def test_more_silent_jobs_than_one_batch_all_time_out(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, CRCR_RATE_LIMIT_PER_MIN="2000") as (relay, run):
        token = relay.github.oidc_token(run, "build")
        for number in range(501):
            await relay.github.report(run, "build", job_name=f"job {number}", token=token)
        end_unreported(relay, run, "build")
        relay.clock.advance(7 * HOUR)
        await sweep(relay)

        assert {job["state"] for job in relay.jobs()} == {"timed_out"}
        assert relay.github.calls_to("GET", "*/actions/runs*") != []


async def test_webhook_bodies_are_deleted_after_30_days_and_the_delivery_stays(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        relay.clock.advance(20 * DAY)
        await relay.github.push(UPSTREAM)
        await relay.drain()
        kept = "SELECT event, body IS NOT NULL AS kept FROM deliveries ORDER BY received_at"
        await relay.services.sweeper.forget()
        assert [row["kept"] for row in relay.rows(kept)] == [1, 1]
        relay.clock.advance(11 * DAY)
        await relay.services.sweeper.forget()

        assert relay.rows(kept) == [{"event": "pull_request", "kept": 0}, {"event": "push", "kept": 1}]


async def test_finished_effects_and_old_changes_are_deleted_and_parked_effects_are_kept(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        relay.github.faults.answer(404)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        effects = "SELECT state, count(*) AS n FROM effects GROUP BY state ORDER BY state"
        relay.clock.advance(6 * DAY)
        await relay.services.sweeper.forget()
        assert relay.rows(effects) == [{"state": "done", "n": 2}, {"state": "parked", "n": 1}]
        relay.clock.advance(2 * DAY)
        await relay.services.sweeper.forget()

        assert relay.rows(effects) == [{"state": "parked", "n": 1}]
        assert (
            len(relay.rows("SELECT * FROM changes")) == 1
        )  # the newest change stays, so that no id is assigned twice


async def test_a_result_is_accepted_after_the_body_of_its_delivery_was_deleted(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        relay.clock.advance(40 * DAY)
        await relay.services.sweeper.sweep()
        await relay.services.sweeper.forget()

        assert report_outcome(await relay.github.complete_job(run, "build")) == "applied"


@pytest.mark.parametrize("sweep_first", [True, False])
async def test_a_concurrent_sweep_and_result_leave_the_result(tmp_path: Path, sweep_first: bool) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        relay.clock.advance(6 * HOUR)
        acts = [relay.services.sweeper.sweep(), relay.github.complete_job(run, "build")]
        await asyncio.gather(*(acts if sweep_first else reversed(acts)))

        [job] = relay.jobs()
        assert (job["state"], job["conclusion"]) == ("completed", "success")
