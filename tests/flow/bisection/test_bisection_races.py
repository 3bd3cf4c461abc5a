"""Two processes on one store never start two bisections of a job, and never send the same step twice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crcr.decide.model import RepoName
from crcr.errors import NotPossible
from crcr.wiring.services import Services, build
from support.downstream.callbacks import BACKEND, post_report, workflow_with_jobs
from support.failures.bisection import BISECTED, REQUEST, broken_base
from support.running_relay import UPSTREAM, RunningRelay, running_relay


@pytest.fixture(params=["sqlite", "postgresql"])
async def relay(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[RunningRelay]:
    monkeypatch.setenv("CRCR_TEST_STORE", request.param)
    async with running_relay(tmp_path, BISECTED, downstreams=(BACKEND,)) as running:
        running.github.repository(BACKEND).workflows = list(workflow_with_jobs("test"))
        yield running


@pytest.fixture
async def other(relay: RunningRelay) -> AsyncIterator[Services]:
    """A second process on the same store."""
    services = build(relay.services.settings, relay.seams)
    yield services
    await services.close()


async def test_one_of_several_concurrent_starts_succeeds(relay: RunningRelay, other: Services) -> None:
    base = await broken_base(relay, commits=6, culprit=3)
    now = relay.clock.now()
    starts = [
        process.bisections.start(RepoName(UPSTREAM), REQUEST, now) for process in (relay.services, other) * 4
    ]
    results = await asyncio.gather(*starts, return_exceptions=True)
    started = [result for result in results if isinstance(result, int)]
    assert len(started) == 1
    assert all(isinstance(result, NotPossible) for result in results if result not in started)
    await relay.drain()
    assert base.runs(started[0]) == [(6, None)]


async def test_several_concurrent_advances_send_the_next_run_once(
    relay: RunningRelay, other: Services
) -> None:
    base = await broken_base(relay, commits=6, culprit=3)
    bisection = await base.start()
    run, delivery = base.run, base.run.client_payload["delivery_id"]
    for status, more in (("in_progress", {}), ("completed", base.result(6))):
        await post_report(relay, run, "test", status, **more)
    now = relay.clock.now()
    advances = [
        process.bisections.advance_after(RepoName(UPSTREAM), delivery, now)
        for process in (relay.services, other) * 3
    ]
    sweeps = [process.bisections.advance_running(now) for process in (relay.services, other)]
    await asyncio.gather(*advances, *sweeps)
    assert base.runs(bisection) == [(6, "failed"), (0, None)]
    await relay.drain()
    sent = [dispatch.delivery_id for dispatch in relay.github.dispatches(BACKEND)]
    assert len(sent) == len(set(sent))
    assert (await base.finish(bisection))["outcome"] == "found"
