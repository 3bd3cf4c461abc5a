"""Faults 12 and 21 from the reporter's side: more jobs than the relay accepts, and a relay that is down.

A hundred reporters share one clock with the relay. It advances only when all of them wait, so nothing really sleeps.
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
    """The reporter loads all of the machine's certificates for each request: no request here uses TLS."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))


def one_job(times: ThreadClock, env: Mapping[str, str], seed: int, report: list[str]) -> tuple[int, str]:
    """Run both steps of a job; return the sum of the exit codes and the output."""
    out, chance = io.StringIO(), random.Random(seed)
    machine, code = times.machine(chance.random), 0
    try:
        for status in report:
            words = ["--strict", "--status", status, "--conclusion", "success"]
            code += reporter.main(words, env, machine, out)
    finally:
        times.leave()
    return code, out.getvalue()


async def run_all_jobs(setup: ReporterSetup, times: ThreadClock, *statuses: str) -> list[tuple[int, str]]:
    envs = [setup.github_env(job) for job in setup.run.jobs]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(envs)) as pool:
        calls = [partial(one_job, times, env, seed, list(statuses)) for seed, env in enumerate(envs)]
        return await asyncio.gather(*(loop.run_in_executor(pool, call) for call in calls))


async def test_fault_21_a_hundred_jobs_against_a_limit_of_sixty_a_minute_are_all_recorded_once(
    tmp_path: Path,
) -> None:
    workflows = workflow_with_jobs(*(f"job {number}" for number in range(JOBS)))
    async with reporter_setup(tmp_path, workflows=workflows, CRCR_RATE_LIMIT_PER_MIN="60") as setup:
        times = ThreadClock(JOBS, setup.relay.clock.advance)
        ended = await run_all_jobs(setup, times, "in_progress", "completed")

        assert [output for code, output in ended if code] == []
        assert len([output for _, output in ended if "429 rate_limited" in output]) >= JOBS - 60
        assert setup.results() == {f"job {number}": "success" for number in range(JOBS)}
        applied = Counter(job["attempt"] for job in setup.relay.jobs(BACKEND) if not job_marks(job))
        assert applied == {1: JOBS}
        # Two hundred reports at sixty a minute need a little more than three minutes, and not much longer.
        assert times.seconds - 1_000_000 < 400


async def test_fault_12_a_store_that_fails_midway_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as setup, callbacks_on_outage(setup.relay) as (store, client):
        store.writes_to_fail, store.answers_to_lose = 3, 2
        transport = client._transport
        await setup.relay_server.stop()
        setup.relay_server = Server(transport.app, "127.0.0.1", int(setup.url.rpartition(":")[2]))  # type: ignore[attr-defined]
        await setup.relay_server.start()
        ended = await run_all_jobs(
            setup, ThreadClock(2, setup.relay.clock.advance), "in_progress", "completed"
        )
        assert [output for code, output in ended if code] == []
        assert setup.results() == {"build": "success", "test": "success"}
        assert (store.writes_to_fail, store.answers_to_lose) == (0, 0)


async def test_a_relay_that_is_down_for_a_minute_loses_no_report(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as setup:
        await setup.relay_server.stop()
        loop, port = asyncio.get_running_loop(), int(setup.url.rpartition(":")[2])
        remaining_s = [60.0]

        async def return_to_work() -> None:
            setup.relay_server = Server(setup.relay.app, "127.0.0.1", port)
            await setup.relay_server.start()

        def advance(seconds: float) -> None:
            setup.relay.clock.advance(seconds)
            before, remaining_s[0] = remaining_s[0], remaining_s[0] - seconds
            if before > 0 >= remaining_s[0]:
                asyncio.run_coroutine_threadsafe(return_to_work(), loop).result(20)

        ended = await run_all_jobs(setup, ThreadClock(2, advance), "in_progress", "completed")
        assert [output for code, output in ended if code] == []
        assert all("is not available" in output for _, output in ended)
        assert setup.results() == {"build": "success", "test": "success"}
        assert [job_marks(job) for job in setup.relay.jobs(BACKEND)] == [set(), set()]


async def test_a_reporter_waits_until_the_relay_is_reachable_again(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as setup:
        await setup.relay_server.stop()
        env = setup.github_env(CRCR_STATUS="in_progress")
        reporting = asyncio.create_task(run_reporter_process("--strict", env=env, folder=tmp_path))
        async with asyncio.timeout(20):
            # It has its token, so it is now trying to reach the relay.
            while not setup.relay.github.request_tokens.minted:
                await asyncio.sleep(0.02)
        setup.relay_server = Server(setup.relay.app, "127.0.0.1", int(setup.url.rpartition(":")[2]))
        await setup.relay_server.start()
        code, output = await reporting
        assert (code, setup.results()) == (0, {"build": "in_progress"}), output


async def test_a_relay_that_stays_down_does_not_fail_the_build(tmp_path: Path) -> None:
    env = {
        "CRCR_RELAYS": f"http://127.0.0.1:{free_port()}/github/callback crcr",
        "CRCR_DELIVERY_ID": "d",
        "CRCR_RUN_ID": "1",
        "CRCR_JOB_NAME": "build",
        "CRCR_ID_TOKEN": "a.b.c",
        "CRCR_MAX_TIME": "0",
    }
    code, output = await run_reporter_process(
        "--status", "completed", "--conclusion", "success", env=env, folder=tmp_path
    )
    assert code == 0
    assert "not recorded: the relay cannot be reached (ConnectionRefusedError" in output
    assert (await run_reporter_process("--strict", "--status", "in_progress", env=env, folder=tmp_path))[
        0
    ] == 1
