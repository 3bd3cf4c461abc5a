import asyncio
import random

import httpx
import pytest
import yaml

from crcr.sim.clock import ManualClock
from crcr.sim.github import GitHub, Match
from crcr.sim.server import serve
from crcr.sim.traffic import UPSTREAM, demo_world, run_traffic


async def test_the_simulator_serves_real_http_and_names_its_own_address() -> None:
    async with GitHub() as github, serve(github) as server, httpx.AsyncClient(base_url=server.url) as api:
        github.create_repository("org/upstream")
        assert (await api.get("/repos/org/upstream")).json()["url"].startswith(server.url)
        found = (await api.get("/_services/token/.well-known/openid-configuration")).json()
        assert found["issuer"] == f"{server.url}/_services/token"
        assert (await api.get(found["jwks_uri"])).json()["keys"]
        github.finish()


async def test_over_http_a_lost_answer_is_a_broken_connection() -> None:
    async with GitHub() as github, serve(github) as server, httpx.AsyncClient(base_url=server.url) as api:
        github.create_repository("org/upstream")
        github.faults.lose_answer(on=Match(path="/repos/*"), times=1)
        with pytest.raises(httpx.TransportError):
            await api.get("/repos/org/upstream")
        assert (await api.get("/repos/org/upstream")).status_code == 200


class Relay:
    """A relay of ten lines: every webhook is dispatched to all backends, every callback is taken."""

    def __init__(self) -> None:
        self.github: GitHub | None = None
        self.backends: list[str] = []
        self.reports: list[dict[str, str]] = []
        self.refuse = random.Random(3)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        assert self.github is not None
        body = __import__("json").loads(request.content)
        if request.url.path == "/cb":
            if self.refuse.random() < 0.1:
                return httpx.Response(429, headers={"retry-after": "1"})
            self.reports.append(body["workflow"])
            return httpx.Response(200)
        payload = {"delivery_id": "d", "payload": body, "relay": {"callback_url": "http://relay.test/cb"}}
        for name in self.backends:
            self.github.ci.start_runs(self.github.repository(name), "repository_dispatch", "x", payload)
        return httpx.Response(202)


async def test_the_demos_traffic_makes_results_of_every_kind() -> None:
    clock, relay, stop = ManualClock(), Relay(), asyncio.Event()
    slept = 0

    async def sleep(seconds: float) -> None:
        nonlocal slept
        clock.advance(seconds / 20)
        slept += 1
        if slept > 1_500:
            stop.set()
        await asyncio.sleep(0)

    async with GitHub(
        clock=clock,
        webhook_url="http://relay.test/hook",
        transport=httpx.MockTransport(relay),
        sleep=sleep,
    ) as github:
        relay.github = github
        levels = yaml.safe_load(demo_world(github))
        relay.backends = [name for names in levels.values() for name in names]
        await run_traffic(github, UPSTREAM, seed=5, speed=1.0, stop=stop, sleep=sleep)
        github.finish()
    conclusions = {each.get("conclusion") for each in relay.reports if each["status"] == "completed"}
    assert {"success", "failure", "cancelled"} <= conclusions
    assert any(each.status == 429 for each in github.callback_log)
    assert set(levels) == {"L1", "L2"}
