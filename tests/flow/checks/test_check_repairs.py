"""Checks that GitHub no longer has, and sparing writes: a failure is published, and published at once."""

from pathlib import Path

from github_sim.github import Match
from support.github.checks import GATES, check_calls, check_history, check_state, named_workflow
from support.github.gated_upstream import (
    GATE,
    GATING,
    finish_jobs,
    gate_state,
    gated_upstream,
    latest_check,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
)
from support.running_relay import RunningRelay

MANY = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n"
BACKEND = f"crcr/{GATING}"
CHECKS = Match(path="*/check-runs*")


def lose_check(relay: RunningRelay, name: str, sha: str) -> None:
    """Let GitHub answer 404 for the check, as after the App was created anew."""
    check = latest_check(relay, name, sha)
    relay.github.faults.answer(404, on=Match("PATCH", f"*/check-runs/{check.id}"))


def parked_effects(relay: RunningRelay) -> list[dict[str, object]]:
    return relay.rows("SELECT target, last_error FROM effects WHERE state = 'parked'")


# Deleted checks


async def test_a_check_deleted_on_github_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        for name in (GATE, BACKEND):
            lose_check(relay, name, pull.head_sha)
        await run_all(relay)

        assert check_history(relay, GATE, pull.head_sha) == ["in_progress", "success"]
        assert check_state(relay, BACKEND, pull.head_sha) == "success"
        assert parked_effects(relay) == []


async def test_a_deleted_check_is_not_created_again_only_to_be_ended(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        for name in (GATE, BACKEND):
            lose_check(relay, name, pull.head_sha)
        created = len(check_calls(relay, "POST"))
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        await relay.drain()
        await relay.services.reconciler.run(thorough=True)
        updated = len(check_calls(relay, "PATCH"))
        await relay.pass_time(3600)

        assert (len(check_calls(relay, "POST")), parked_effects(relay)) == (created, [])
        assert len(check_calls(relay, "PATCH")) == updated


# Few writes


def count_check_writes(relay: RunningRelay) -> int:
    return len(check_calls(relay, "POST")) + len(check_calls(relay, "PATCH"))


async def test_a_passing_job_writes_no_check_and_the_first_failure_writes_the_checks_at_once(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, MANY) as relay:
        relay.github.repository(GATING).workflows = [
            named_workflow(*(f"job {number}" for number in range(4)))
        ]
        pull = await open_pull(relay)
        run, before = newest_run(relay), count_check_writes(relay)
        await start_jobs(relay, run, "job 0", "job 1", "job 2")
        await finish_jobs(relay, run, **{"job 0": "success"})
        assert count_check_writes(relay) == before
        await finish_jobs(relay, run, **{"job 1": "failure"})
        assert gate_state(relay, pull) == "failure"
        assert (
            latest_check(relay, BACKEND, pull.head_sha).output["title"]
            == "failed: job 1, others still waiting"
        )
        after = count_check_writes(relay)
        await finish_jobs(relay, run, **{"job 2": "failure"})

        assert after == before + 3  # gate, backend, job
        assert count_check_writes(relay) == after + 1  # the second failing job


async def test_a_new_result_retries_a_waiting_publication_at_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        fault = relay.github.faults.answer(502, on=CHECKS)
        await start_jobs(relay, run)
        relay.github.faults.remove(fault)
        await finish_jobs(relay, run)

        assert gate_state(relay, pull) == "success"
