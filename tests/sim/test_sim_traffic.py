"""The demo's traffic against a relay of a few lines, in virtual time: nothing sleeps."""

import asyncio
import heapq
import itertools
import json
from typing import Any

import httpx
import yaml

from crcr.sim.clock import ManualClock
from crcr.sim.github import GitHub
from crcr.sim.traffic import UPSTREAM, demo_world, run_traffic


class VirtualTime:
    """Sleepers wake in the order of their times; the clock jumps from one to the next."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._start = self.clock.now()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @property
    def passed_s(self) -> float:
        return (self.clock.now() - self._start).total_seconds()

    async def sleep(self, seconds: float) -> None:
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.passed_s + seconds, next(self._order), wake))
        await wake

    async def run_for(self, seconds: float) -> None:
        while self.passed_s < seconds:
            for _ in range(50):
                await asyncio.sleep(0)
            at, _, wake = heapq.heappop(self._waiting)
            self.clock.advance(max(at - self.passed_s, 0))
            if not wake.done():
                wake.set_result(None)


class Relay:
    """Every webhook starts runs of all backends; every seventh report is asked to come again."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.github: GitHub | None = None
        self.backends: list[str] = []
        self._count = itertools.count(1)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if request.url.path == "/cb":
            if next(self._count) % 7 == 0:
                return httpx.Response(429, headers={"retry-after": "1"})
            self.reports.append((body["workflow"]["url"], body["workflow"]))
            return httpx.Response(200)
        payload = {"delivery_id": "d", "payload": body, "relay": {"callback_url": "http://relay.test/cb"}}
        assert self.github is not None
        if body.get("action", "opened") in {"opened", "synchronize", "closed"}:
            for name in self.backends:
                self.github.ci.start_runs(self.github.repository(name), "repository_dispatch", "x", payload)
        return httpx.Response(202)


async def test_the_demo_shows_results_of_every_kind_within_a_minute() -> None:
    time, relay, stop = VirtualTime(), Relay(), asyncio.Event()
    transport = httpx.MockTransport(relay)
    async with GitHub(
        clock=time.clock, webhook_url="http://relay.test/hook", transport=transport, sleep=time.sleep
    ) as github:
        relay.github = github
        levels = yaml.safe_load(demo_world(github))
        relay.backends = [name for names in levels.values() for name in names]
        traffic = asyncio.create_task(
            run_traffic(github, UPSTREAM, seed=5, speed=1.0, stop=stop, sleep=time.sleep)
        )
        await time.run_for(20)
        assert any(each["status"] == "completed" for _, each in relay.reports)
        await time.run_for(60)
        stop.set()
        await traffic
        github.finish()
    assert {each["conclusion"] for _, each in relay.reports} >= {None, "success", "failure", "cancelled"}
    assert any(each.status == 429 for each in github.callback_log)
    assert not any("edge-labs/edge-runtime" in url for url, _ in relay.reports)
    assert {"build (npu910, 3.11)", "build (npu310, 3.12)"} <= {each["job_name"] for _, each in relay.reports}


async def test_old_records_are_dropped(github: GitHub) -> None:
    for _ in range(5):
        await github.push("org/upstream")
    github.forget_old(2)
    assert len(github.deliveries()) == 2
