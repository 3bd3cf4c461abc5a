"""Runs by their names: a name that holds two deliveries binds to none of them, and a run that is gone is forgotten."""

import asyncio
from pathlib import Path
from typing import Any

from github_sim.github import JobSpec, Match, PullRequest, Workflow, WorkflowRun
from support.github.gated_upstream import (
    GATE,
    GATING,
    finish_jobs,
    gate_state,
    gated_upstream,
    latest_check,
    live_reasons,
    newest_run,
    open_pull,
    start_jobs,
    sweep_after,
)
from support.running_relay import RunningRelay

MINUTE, HOUR = 60.0, 3600.0
UNNAMED = f"L4:\n  - {GATING}: [bob]\n"
ONE = (GATING,)
RUNS = Match("GET", f"/repos/{GATING}/actions/runs")


def workflow(name: str, *jobs: str, run_name: str | None = "{delivery_id}") -> Workflow:
    path = f".github/workflows/{name}.yml"
    return Workflow(name=name, path=path, jobs=tuple(JobSpec(each) for each in jobs), run_name=run_name)


def answer_by(relay: RunningRelay, *workflows: Workflow) -> None:
    relay.github.repository(GATING).workflows = list(workflows)


def bound(relay: RunningRelay) -> list[tuple[int, str]]:
    """The runs that are known to answer a delivery, and which."""
    rows = relay.rows("SELECT run_id, delivery FROM runs ORDER BY first_seen_at, run_id")
    return [(int(row["run_id"]), row["delivery"]) for row in rows]


def verified(relay: RunningRelay) -> dict[str, str]:
    return {row["job_name"]: row["verification"] for row in relay.jobs(GATING)}


async def settle(relay: RunningRelay, minutes: int = 20) -> None:
    for _ in range(minutes):
        await sweep_after(relay, MINUTE)


# Names that hold two deliveries


async def two_named(relay: RunningRelay) -> tuple[PullRequest, PullRequest, WorkflowRun]:
    """Two pull requests; the second one's title, and so the name of a run that still waits, holds both deliveries."""
    answer_by(relay, workflow("build", "build"))
    first = await open_pull(relay)
    assert first.last_delivery is not None
    stolen = first.last_delivery.guid
    answer_by(
        relay, workflow("build", "build"), workflow("test", "test", run_name=f"{stolen} {{delivery_id}}")
    )
    relay.clock.advance(MINUTE / 2)
    second = await open_pull(relay, title=stolen)
    *built, doubtful = relay.github.runs(GATING)
    for run in built:
        await start_jobs(relay, run)
        await finish_jobs(relay, run)
    return first, second, doubtful


async def test_a_run_whose_name_holds_two_deliveries_is_bound_to_neither_by_githubs_word(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, UNNAMED, downstreams=ONE) as relay:
        *_, doubtful = await two_named(relay)
        known = bound(relay)
        for action in ("requested", "in_progress"):
            await relay.github.send_run_webhook(doubtful, action)
        await relay.drain()

        assert bound(relay) == known
        assert doubtful.id not in dict(known)


async def test_while_a_run_may_be_its_own_no_backend_without_jobs_is_through(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, UNNAMED, downstreams=ONE) as relay:
        first, second, doubtful = await two_named(relay)
        await settle(relay)
        assert (gate_state(relay, first), gate_state(relay, second)) == ("pending", "pending")
        assert doubtful.id not in dict(bound(relay))
        relay.github.ci.complete(doubtful, doubtful.job("test"), "success")
        await settle(relay)

        assert (gate_state(relay, first), gate_state(relay, second)) == ("success", "success")


async def test_its_own_report_binds_a_run_whatever_its_name_holds(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, UNNAMED, downstreams=ONE) as relay:
        first, second, doubtful = await two_named(relay)
        await start_jobs(relay, doubtful)
        await settle(relay)
        assert (gate_state(relay, first), gate_state(relay, second)) == ("success", "pending")
        await finish_jobs(relay, doubtful, test="failure")

        assert (gate_state(relay, first), gate_state(relay, second)) == ("success", "failure")


# Runs that are gone


async def two_runs(
    relay: RunningRelay, run_name: str | None = "{delivery_id}"
) -> tuple[PullRequest, Any, Any]:
    answer_by(relay, *(workflow(name, name, f"more {name}", run_name=run_name) for name in ("one", "two")))
    pull = await open_pull(relay)
    one, two = relay.github.runs(GATING)
    return pull, one, two


async def test_the_results_of_a_deleted_run_cannot_be_verified_and_open_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, UNNAMED, downstreams=ONE) as relay:
        answer_by(relay, workflow("one", "build"))
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await relay.github.report(run, "build", status="completed", conclusion="success")
        del relay.github.world.runs[run.id]
        await settle(relay)

        assert verified(relay) == {"build": "not verifiable"}
        assert gate_state(relay, pull) == "failure"
        assert "its run was deleted" in latest_check(relay, GATE, pull.head_sha).output["summary"]
        assert relay.rows("SELECT * FROM effects WHERE kind = 'look_up' AND state = 'waiting'") == []


async def test_a_deleted_run_does_not_end_another_one(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, UNNAMED, downstreams=ONE) as relay:
        pull, one, two = await two_runs(relay)
        for run, name in ((one, "one"), (two, "two")):
            await start_jobs(relay, run, name)
            await finish_jobs(relay, run, **{name: "success"})
        del relay.github.world.runs[one.id]
        await settle(relay)

        assert verified(relay) == {"one": "confirmed", "two": "confirmed"}
        assert gate_state(relay, pull) == "pending"
        assert await live_reasons(relay, pull.head_sha) == [
            "GitHub has not confirmed yet that its runs are over"
        ]


async def test_a_run_that_first_reports_while_github_is_asked_is_not_taken_for_deleted(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, UNNAMED, downstreams=ONE) as relay:
        pull, one, two = await two_runs(relay, run_name=None)
        await start_jobs(relay, one)
        await finish_jobs(relay, one)
        held = relay.github.faults.hang(on=RUNS, times=1)
        asking = asyncio.create_task(sweep_after(relay, HOUR))
        await held.reached.wait()
        await relay.github.start_job(two, "two")
        await relay.github.complete_job(two, "two")
        held.release()
        await asking

        assert verified(relay) == {"one": "confirmed", "more one": "confirmed", "two": "unchecked"}
        assert gate_state(relay, pull) == "pending"
