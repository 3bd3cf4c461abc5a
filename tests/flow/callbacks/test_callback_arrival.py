"""Reports that arrive early, twice, all at once or while the store is down: none is lost, none counts twice."""

import asyncio
from collections import Counter
from pathlib import Path

from github_sim.github import Match
from support.downstream.callbacks import (
    BACKEND,
    LISTED,
    callbacks_on_outage,
    dispatched_run,
    post_report,
    refusal_code,
    report_outcome,
    workflow_with_jobs,
)
from support.running_relay import UPSTREAM, running_relay

DISPATCHES = Match(method="POST", path="*/dispatches")


async def test_fault_11_a_callback_before_the_dispatch_response_finds_the_dispatch_record(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        relay.github.faults.early_callback()
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        [answer] = relay.github.callback_log
        assert (answer.report, answer.status) == ("in_progress", 200)
        [job] = relay.jobs()
        assert (job["state"], job["queue_s"]) == ("in_progress", 0.0)
        assert set(relay.dispatch_states().values()) == {"sent"}


async def test_fault_11_a_callback_that_overtakes_a_hanging_dispatch_is_accepted(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        gate = relay.github.faults.hang(on=DISPATCHES, after_acting=True)
        await relay.github.open_pr(UPSTREAM)
        sending = asyncio.create_task(relay.drain())
        await gate.reached.wait()
        relay.clock.advance(5)
        answer = await relay.github.start_job(relay.github.runs(BACKEND)[0], "build")
        gate.release()
        await sending

        assert report_outcome(answer) == "applied"
        assert [job["queue_s"] for job in relay.jobs()] == [5.0]


async def test_fault_12_a_report_whose_commit_failed_is_accepted_when_it_is_sent_again(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run), callbacks_on_outage(relay) as (store, http):
        store.writes_to_fail = 1
        failed = await post_report(relay, run, "build", "in_progress", http=http)
        again = await post_report(relay, run, "build", "in_progress", http=http)

        assert refusal_code(failed) == (503, "store_unavailable")
        assert int(failed.headers["retry-after"]) > 0
        assert report_outcome(again) == "applied"
        assert [job["state"] for job in relay.jobs()] == ["in_progress"]


async def test_fault_12_a_report_resent_after_its_response_was_lost_is_a_repeat(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run), callbacks_on_outage(relay) as (store, http):
        await post_report(relay, run, "build", "in_progress", http=http)
        store.answers_to_lose = 1
        failed = await post_report(relay, run, "build", "completed", conclusion="success", http=http)
        again = await post_report(relay, run, "build", "completed", conclusion="success", http=http)

        assert (failed.status_code, report_outcome(again)) == (503, "repeat")
        assert [(job["state"], job["conclusion"]) for job in relay.jobs()] == [("completed", "success")]


async def test_fault_13_a_failed_store_read_is_answered_503_and_never_unknown_delivery(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run), callbacks_on_outage(relay) as (store, http):
        store.reads_to_fail = 1
        answer = await post_report(relay, run, "build", "in_progress", http=http)

        assert refusal_code(answer) == (503, "store_unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert report_outcome(await post_report(relay, run, "build", "in_progress", http=http)) == "applied"


async def test_fault_13_a_closed_store_is_answered_503_with_retry_after(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.services.database.close()
        answer = await relay.github.start_job(run, "build")

        assert refusal_code(answer) == (503, "store_unavailable")
        assert int(answer.headers["retry-after"]) > 0


async def test_fault_14_exactly_one_of_two_equal_concurrent_reports_is_applied(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        starts = await asyncio.gather(*(relay.github.report(run, "build") for _ in range(2)))
        ends = await asyncio.gather(
            *(relay.github.report(run, "build", status="completed", conclusion="success") for _ in range(2))
        )

        assert (
            Counter(map(report_outcome, starts))
            == Counter(map(report_outcome, ends))
            == {"applied": 1, "repeat": 1}
        )
        assert len(relay.jobs()) == 1


async def test_fault_14_exactly_one_of_200_identical_and_conflicting_concurrent_reports_is_applied(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        claims = ["success", "failure", "cancelled", None] * 50
        answers = await asyncio.gather(
            *(relay.github.report(run, "build", status="completed", conclusion=claim) for claim in claims)
        )

        counted = Counter(map(report_outcome, answers))
        assert counted == {"applied": 1, "repeat": 49, "conflicting_result": 150}
        applied = next(
            claim
            for claim, answer in zip(claims, answers, strict=True)
            if report_outcome(answer) == "applied"
        )
        [job] = relay.jobs()
        assert (job["first_conclusion"], job["conclusion"], job["disputed"]) == (applied, "failure", 1)


async def test_fault_14_200_concurrent_start_reports_open_one_job(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        before = relay.rows("SELECT count(*) AS n FROM changes WHERE kind = 'job'")[0]["n"]
        answers = await asyncio.gather(*(relay.github.report(run, "build") for _ in range(200)))

        assert Counter(map(report_outcome, answers)) == {"applied": 1, "repeat": 199}
        after = relay.rows("SELECT count(*) AS n FROM changes WHERE kind = 'job'")[0]["n"]
        assert (len(relay.jobs()), after - before) == (1, 1)


async def test_fault_21_sixty_matrix_jobs_that_start_at_once_are_all_accepted(tmp_path: Path) -> None:
    names = [f"test (npu, shard {number})" for number in range(60)]
    async with dispatched_run(tmp_path, workflows=workflow_with_jobs(*names)) as (relay, run):
        starts = await asyncio.gather(*(relay.github.start_job(run, name) for name in names))
        ends = await asyncio.gather(*(relay.github.complete_job(run, name) for name in names))

        assert {report_outcome(answer) for answer in (*starts, *ends)} == {"applied"}
        assert {job["job_name"] for job in relay.jobs()} == set(names)
        assert {job["state"] for job in relay.jobs()} == {"completed"}


async def test_fault_21_the_301st_report_in_a_minute_gets_retry_after_and_is_then_accepted(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        relay.clock.advance(20)
        for _ in range(299):
            assert report_outcome(await relay.github.report(run, "build")) == "repeat"
        limited = await relay.github.start_job(run, "test")
        relay.clock.advance(int(limited.headers["retry-after"]))
        again = await relay.github.report(run, "test")

        assert refusal_code(limited) == (429, "rate_limited")
        assert limited.headers["retry-after"] == "40"
        assert report_outcome(again) == "applied"


async def test_each_repository_has_its_own_rate_limit(tmp_path: Path) -> None:
    listed = f"L2:\n  - {BACKEND}\n  - org/other\n"
    async with running_relay(
        tmp_path, listed, downstreams=(BACKEND, "org/other"), CRCR_RATE_LIMIT_PER_MIN="1"
    ) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        runs = [relay.github.runs(name)[0] for name in (BACKEND, BACKEND, "org/other")]
        answers = [await relay.github.report(run, "build") for run in runs]

        assert list(map(report_outcome, answers)) == ["applied", "rate_limited", "applied"]


async def test_a_callback_proves_that_a_dispatch_arrived_and_prevents_the_retry(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        relay.github.faults.lose_answer(on=DISPATCHES, times=1)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert set(relay.dispatch_states().values()) == {"waiting"}
        answer = await relay.github.start_job(relay.github.runs(BACKEND)[0], "build")
        await relay.pass_time(3600)

        assert report_outcome(answer) == "applied"
        assert set(relay.dispatch_states().values()) == {"sent"}
        assert len(relay.github.calls_to("POST", "*/dispatches")) == 1


async def test_a_callback_during_a_dispatch_whose_response_is_lost_ends_its_retries(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        relay.github.faults.early_callback()
        relay.github.faults.lose_answer(on=DISPATCHES, times=1)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        sent_at = relay.clock.now()
        await relay.pass_time(3600)
        later = await relay.github.start_job(relay.github.runs(BACKEND)[0], "test")

        assert len(relay.github.calls_to("POST", "*/dispatches")) == 1
        assert report_outcome(later) == "applied"
        [dispatch] = relay.rows("SELECT state, sent_at FROM dispatches")
        assert dispatch == {"state": "sent", "sent_at": int(sent_at.timestamp() * 1_000_000)}
        assert [job["queue_s"] for job in relay.jobs()] == [0.0, 3600.0]
