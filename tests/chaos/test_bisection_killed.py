"""A bisection survives SIGKILL at every step: no run is lost, none is sent twice unmarked, and the culprit is right.

A real relay process starts it by itself (`bisect: auto`) and is killed at each step in turn: while a result is being
reported, right after the response, and before and after GitHub has executed the next dispatch.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from chaos.test_kill import Relay, until_idle
from github_sim.github import GitHub, WorkflowRun
from github_sim.rest.server import serve
from github_sim.world.faults import Match
from support.downstream.callbacks import BACKEND, CALLBACK, bearer, workflow_with_jobs
from support.failures.bisection import BROKEN, failed_with
from support.running_relay import AUDIENCE, UPSTREAM

COMMITS = 12
CULPRIT = 8
PASSED = {"conclusion": "success"}
POINTS = ("while a result is reported", "after its answer", "during a dispatch", "after a dispatch acted")
DISPATCHES = Match(method="POST", path="*/dispatches")


@asynccontextmanager
async def world_with_breakage(folder: Path, seed: int) -> AsyncIterator[tuple[GitHub, Relay, list[str]]]:
    """A running relay with a recorded pass, untested commits and two failing commits."""
    async with GitHub(seed=seed) as github, serve(github):
        github.limits.points_per_minute = 1_000_000
        github.ci.audience = AUDIENCE
        github.create_repository(UPSTREAM)
        github.create_repository(BACKEND).workflows = list(workflow_with_jobs("test"))
        relay = Relay(folder, github, f"L2:\n  - {BACKEND}: {{bisect: auto}}\n")
        github.webhook_url = f"{relay.url}/github/webhook"
        await relay.start(pages=False)
        commits: list[str] = []
        for position in range(COMMITS + 2):
            await github.push(UPSTREAM)
            commits.append(github.repository(UPSTREAM).head_sha)
            await until_idle(relay)
            if position == 0 or position >= COMMITS:
                await report_result(relay, github, github.runs(BACKEND)[-1], position)
        yield github, relay, commits


def result_at(position: int) -> dict[str, Any]:
    return failed_with(BROKEN) if position >= CULPRIT else PASSED


async def report_result(relay: Relay, github: GitHub, run: WorkflowRun, position: int) -> None:
    """Report the job's start and end, each repeated until it is acknowledged."""
    job = run.job("test")
    async with httpx.AsyncClient(base_url=relay.url) as http:
        for status, more in (("in_progress", {}), ("completed", result_at(position))):
            body = github.ci.report_body(run, job, status, **more)
            while True:
                token = github.oidc_token(run, job, audience=AUDIENCE)
                with contextlib.suppress(httpx.TransportError):
                    response = await http.post(CALLBACK, json=body, headers=bearer(token))
                    if response.status_code == 200:
                        break
                    assert response.status_code in {409, 503}, response.text
                await asyncio.sleep(0.02)  # a real process starts in real time


async def kill_during_step(
    relay: Relay, github: GitHub, run: WorkflowRun, position: int, point: str, chance: random.Random
) -> None:
    """Report the run's result, kill the relay at `point` of the following step, then restart it."""
    gate = None
    if "dispatch" in point:
        gate = github.faults.hang(on=DISPATCHES, times=2, after_acting="acted" in point)
    reporting = asyncio.create_task(report_result(relay, github, run, position))
    if point == "while a result is reported":
        await asyncio.sleep(chance.random() * 0.03)
    else:
        await reporting
        if gate is not None:  # the last result causes no further dispatch
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(gate.reached.wait(), 3)
    await relay.kill()
    if gate is not None:
        gate.release()
    github.faults.clear()
    await relay.start(pages=False)
    await reporting


def position_of(run: WorkflowRun, commits: list[str]) -> int:
    return commits.index(run.client_payload["payload"]["after"])


async def next_run(relay: Relay, github: GitHub, reported_deliveries: set[str]) -> WorkflowRun | None:
    """The newest run of the bisection without a reported result; None when the bisection has ended."""
    while True:
        runs = [run for run in github.runs(BACKEND) if "crcr-bisect" in run.client_payload["payload"]["ref"]]
        waiting = [run for run in runs if run.client_payload["delivery_id"] not in reported_deliveries]
        if waiting:
            reported_deliveries.add(waiting[-1].client_payload["delivery_id"])
            return waiting[-1]
        if relay.rows("SELECT state FROM bisections") == [("finished",)]:
            return None
        await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_bisection_whose_relay_is_killed_at_every_step_finds_the_culprit(tmp_path: Path) -> None:
    seed = int(os.environ.get("CRCR_CHAOS_SEED", random.SystemRandom().randrange(10**6)))
    print(f"CRCR_CHAOS_SEED={seed}")  # noqa: T201  to repeat this run
    chance = random.Random(seed)
    async with world_with_breakage(tmp_path, seed) as (github, relay, commits):
        await relay.kill()
        await relay.start(pages=False)  # a leader searches for breakages when its leadership starts
        reported_deliveries: set[str] = set()
        step = 0
        while (run := await next_run(relay, github, reported_deliveries)) is not None:
            point = POINTS[step % len(POINTS)]
            await kill_during_step(relay, github, run, position_of(run, commits), point, chance)
            step += 1
        await until_idle(relay)
        await relay.stop()

        outcome = relay.rows("SELECT outcome, culprit FROM bisections")
        assert outcome == [("found", commits[CULPRIT])]
        runs = relay.rows("SELECT number, result, position, delivery FROM bisection_runs ORDER BY number")
        assert [number for number, *_ in runs] == list(range(1, step + 1))
        assert all((result == "failed") is (int(str(position)) >= CULPRIT) for _, result, position, _ in runs)
        arrived = Counter(dispatch.delivery_id for dispatch in github.dispatches(BACKEND))
        unsure = {row[0] for row in relay.rows("SELECT delivery FROM dispatches WHERE unsure = 1")}
        assert all(arrived[str(delivery)] for *_, delivery in runs)
        assert {delivery for delivery, count in arrived.items() if count > 1} <= unsure
        assert unsure  # otherwise no kill happened between a dispatch and its record
