"""Checks that are gone at GitHub, and writes when there are few: what matters is shown, and shown first."""

from pathlib import Path

from github_sim.github import Match
from support.github.checks import GATES, check_calls, check_history, check_state, named_workflow
from support.github.gated_upstream import (
    GATE,
    GATING,
    Stage,
    finish_jobs,
    gate_state,
    gated_upstream,
    latest_check,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
)

MANY = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n"
BACKEND = f"crcr/{GATING}"
CHECKS = Match(path="*/check-runs*")


def lose_check(it: Stage, name: str, sha: str) -> None:
    """GitHub knows the check no more, as after the App was made anew."""
    gone = latest_check(it, name, sha)
    it.github.faults.answer(404, on=Match("PATCH", f"*/check-runs/{gone.id}"))


def parked(it: Stage) -> list[dict[str, object]]:
    return it.rows("SELECT target, last_error FROM effects WHERE state = 'parked'")


# Checks that are gone


async def test_another_check_takes_the_place_of_one_that_github_has_no_more(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        for name in (GATE, BACKEND):
            lose_check(it, name, pull.head_sha)
        await run_all(it)

        assert check_history(it, GATE, pull.head_sha) == ["in_progress", "success"]
        assert check_state(it, BACKEND, pull.head_sha) == "success"
        assert parked(it) == []


async def test_a_check_that_is_gone_is_not_made_anew_to_be_ended(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        for name in (GATE, BACKEND):
            lose_check(it, name, pull.head_sha)
        made = len(check_calls(it, "POST"))
        it.clock.advance(1)
        await it.github.close_pr(pull)
        await it.act()
        await it.services.reconciler.run(thorough=True)
        tried = len(check_calls(it, "PATCH"))
        await it.pass_time(3600)

        assert (len(check_calls(it, "POST")), parked(it)) == (made, [])
        assert len(check_calls(it, "PATCH")) == tried


# Few writes


def written(it: Stage) -> int:
    return len(check_calls(it, "POST")) + len(check_calls(it, "PATCH"))


async def test_a_job_that_passes_writes_no_open_check_and_the_first_failure_writes_them_at_once(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, MANY) as it:
        it.github.repository(GATING).workflows = [named_workflow(*(f"job {number}" for number in range(4)))]
        pull = await open_pull(it)
        run, before = newest_run(it), written(it)
        await start_jobs(it, run, "job 0", "job 1", "job 2")
        await finish_jobs(it, run, **{"job 0": "success"})
        assert written(it) == before
        await finish_jobs(it, run, **{"job 1": "failure"})
        assert gate_state(it, pull) == "failure"
        assert (
            latest_check(it, BACKEND, pull.head_sha).output["title"] == "failed: job 1, others still waiting"
        )
        after = written(it)
        await finish_jobs(it, run, **{"job 2": "failure"})

        assert after == before + 3  # gate, backend, job
        assert written(it) == after + 1  # the second failing job


async def test_a_new_fact_hastens_what_waits_to_be_published(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        run = newest_run(it)
        away = it.github.faults.answer(502, on=CHECKS)
        await start_jobs(it, run)
        it.github.faults.remove(away)
        await finish_jobs(it, run)

        assert gate_state(it, pull) == "success"
