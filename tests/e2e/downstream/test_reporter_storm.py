"""Faults 12 and 21 from the reporter's side: more jobs than the relay takes, and a relay that is away.

A hundred reporters share one time with the relay. It goes on only when all of them wait, so nothing really sleeps.
"""

import asyncio
import io
import random
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from github_sim.rest.server import Server
from support.downstream.callbacks import BACKEND, callbacks_on_outage, job_marks, workflow_with_jobs
from support.downstream.reporter import (
    ReporterSetup,
    ThreadClock,
    reporter,
    reporter_setup,
    run_reporter_process,
)
from support.process import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

JOBS = 100


@pytest.fixture(autouse=True)
def without_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reporter reads all of the machine's certificates for each request: nothing here is asked over TLS."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))


def one_job(times: ThreadClock, env: Mapping[str, str], seed: int, report: list[str]) -> tuple[int, str]:
    """A job with both of its steps; what is said of both."""
    out, chance = io.StringIO(), random.Random(seed)
    machine, code = times.machine(chance.random), 0
    try:
        for status in report:
            words = ["--strict", "--status", status, "--conclusion", "success"]
            code += reporter.main(words, env, machine, out)
    finally:
        times.leave()
    return code, out.getvalue()


async def all_at_once(world: ReporterSetup, times: ThreadClock, *statuses: str) -> list[tuple[int, str]]:
    envs = [world.github_env(job) for job in world.run.jobs]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(envs)) as pool:
        calls = [partial(one_job, times, env, seed, list(statuses)) for seed, env in enumerate(envs)]
        return await asyncio.gather(*(loop.run_in_executor(pool, call) for call in calls))


async def test_fault_21_a_hundred_jobs_against_sixty_a_minute_are_all_recorded_once(tmp_path: Path) -> None:
    workflows = workflow_with_jobs(*(f"job {number}" for number in range(JOBS)))
    async with reporter_setup(tmp_path, workflows=workflows, CRCR_RATE_LIMIT_PER_MIN="60") as world:
        times = ThreadClock(JOBS, world.relay.clock.advance)
        ended = await all_at_once(world, times, "in_progress", "completed")

        assert [said for code, said in ended if code] == []
        assert len([said for _, said in ended if "429 rate_limited" in said]) >= JOBS - 60
        assert world.results() == {f"job {number}": "success" for number in range(JOBS)}
        applied = Counter(job["attempt"] for job in world.relay.jobs(BACKEND) if not job_marks(job))
        assert applied == {1: JOBS}
        # Two hundred reports at sixty a minute need a little more than three minutes, and hardly longer.
        assert times.seconds - 1_000_000 < 400


async def test_fault_12_a_store_that_fails_in_the_middle_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as world, callbacks_on_outage(world.relay) as (store, client):
        store.writes_to_fail, store.answers_to_lose = 3, 2
        transport = client._transport
        await world.relay_server.stop()
        world.relay_server = Server(transport.app, "127.0.0.1", int(world.url.rpartition(":")[2]))  # type: ignore[attr-defined]
        await world.relay_server.start()
        ended = await all_at_once(
            world, ThreadClock(2, world.relay.clock.advance), "in_progress", "completed"
        )
        assert [said for code, said in ended if code] == []
        assert world.results() == {"build": "success", "test": "success"}
        assert (store.writes_to_fail, store.answers_to_lose) == (0, 0)


async def test_a_relay_that_is_away_for_a_minute_loses_nothing(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as world:
        await world.relay_server.stop()
        loop, port = asyncio.get_running_loop(), int(world.url.rpartition(":")[2])
        away_s = [60.0]

        async def return_to_work() -> None:
            world.relay_server = Server(world.relay.app, "127.0.0.1", port)
            await world.relay_server.start()

        def move(seconds: float) -> None:
            world.relay.clock.advance(seconds)
            before, away_s[0] = away_s[0], away_s[0] - seconds
            if before > 0 >= away_s[0]:
                asyncio.run_coroutine_threadsafe(return_to_work(), loop).result(20)

        ended = await all_at_once(world, ThreadClock(2, move), "in_progress", "completed")
        assert [said for code, said in ended if code] == []
        assert all("is not available" in said for _, said in ended)
        assert world.results() == {"build": "success", "test": "success"}
        assert [job_marks(job) for job in world.relay.jobs(BACKEND)] == [set(), set()]


async def test_a_process_that_finds_nobody_waits_until_the_relay_is_back(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as world:
        await world.relay_server.stop()
        env = world.github_env(CRCR_STATUS="in_progress")
        reporting = asyncio.create_task(run_reporter_process("--strict", env=env, folder=tmp_path))
        async with asyncio.timeout(20):
            # It has its token, so it is on its way to a relay that is not there.
            while not world.relay.github.request_tokens.minted:
                await asyncio.sleep(0.02)
        world.relay_server = Server(world.relay.app, "127.0.0.1", int(world.url.rpartition(":")[2]))
        await world.relay_server.start()
        code, said = await reporting
        assert (code, world.results()) == (0, {"build": "in_progress"}), said


async def test_a_relay_that_stays_away_leaves_the_build_green(tmp_path: Path) -> None:
    env = {
        "CRCR_RELAYS": f"http://127.0.0.1:{free_port()}/github/callback crcr",
        "CRCR_DELIVERY_ID": "d",
        "CRCR_RUN_ID": "1",
        "CRCR_JOB_NAME": "build",
        "CRCR_ID_TOKEN": "a.b.c",
        "CRCR_MAX_TIME": "0",
    }
    code, said = await run_reporter_process(
        "--status", "completed", "--conclusion", "success", env=env, folder=tmp_path
    )
    assert code == 0
    assert "not recorded: the relay cannot be reached (ConnectionRefusedError" in said
    assert (await run_reporter_process("--strict", "--status", "in_progress", env=env, folder=tmp_path))[
        0
    ] == 1
