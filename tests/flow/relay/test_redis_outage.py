"""Redis is down: callbacks and sign-ins get 503, everything else works, and the relay recovers by itself."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from crcr.record.store.signals import ALLOWLIST
from crcr.settings import load_settings
from crcr.wiring.background import follow_other_processes
from crcr.wiring.core import Seams
from crcr.wiring.services import Services, build
from crcr.wiring.web_app import build_app
from support.downstream.callbacks import (
    BACKEND,
    LISTED,
    client_from,
    dispatched_run,
    post_report,
    refusal_code,
    report_outcome,
)
from support.running_relay import UPSTREAM, RunningRelay, environment, running_relay
from support.services.redis import RedisServer
from support.sign_in import ADMIN, TOKENS, visitor

SOON_S = 10.0
"""The relay waits less than a second for Redis (`CALL_S`); the rest is for a machine that is busy with other tests."""


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer.make(password="hunter2-and-more")
    yield server
    server.remove()


async def within_time(answer: Any) -> httpx.Response:
    async with asyncio.timeout(SOON_S):
        response: httpx.Response = await answer
    return response


async def wait_until_applied(relay: RunningRelay, run: Any, job: str) -> None:
    async with asyncio.timeout(20):
        while refusal_or_none(answer := await post_report(relay, run, job, "in_progress")) is not None:
            assert refusal_code(answer) == (503, "limiter_unavailable")
            await asyncio.sleep(0.02)


def refusal_or_none(answer: httpx.Response) -> tuple[int, str] | None:
    return None if answer.status_code == 200 else refusal_code(answer)


async def read_readiness(relay: RunningRelay) -> tuple[int, int, str]:
    """The status of the callback probe, and the status and `limits` of the general probe."""
    callbacks, everything = (
        await within_time(relay.http.get("/readyz/callback")),
        await within_time(relay.http.get("/readyz")),
    )
    if callbacks.status_code == 503:
        assert refusal_code(callbacks) == (503, "limiter_unavailable")
    return callbacks.status_code, everything.status_code, everything.json()["limits"]


@pytest.mark.parametrize("how", ["stop", "freeze"])
async def test_callbacks_get_503_within_a_second_and_everything_else_works(
    tmp_path: Path, redis: RedisServer, how: str
) -> None:
    async with dispatched_run(tmp_path, CRCR_REDIS_URL=redis.url) as (relay, run):
        assert report_outcome(await post_report(relay, run, "build", "in_progress")) == "applied"
        assert await read_readiness(relay) == (200, 200, "answer")
        getattr(redis, how)()
        assert await read_readiness(relay) == (503, 200, "away")
        took = []
        for _ in range(4):
            began = time.monotonic()
            answer = await within_time(post_report(relay, run, "test", "in_progress"))
            took.append(time.monotonic() - began)
            assert refusal_code(answer) == (503, "limiter_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            assert "hunter2" not in answer.text
        assert min(took) < 1  # the others may be slow because the machine is busy with other tests

        assert (await relay.http.get("/crcr")).status_code == 200
        assert (await relay.http.get("/api/v1/summary", params={"upstream": UPSTREAM})).status_code == 200
        pr = await relay.github.open_pr(UPSTREAM, title="Meanwhile")
        assert pr.last_delivery is not None
        assert pr.last_delivery.status_code is not None
        assert 200 <= pr.last_delivery.status_code < 300
        await relay.drain()
        assert len(relay.github.dispatches(BACKEND)) == 2

        redis.thaw() if how == "freeze" else redis.start()
        await wait_until_applied(relay, run, "test")
        assert await read_readiness(relay) == (200, 200, "answer")
        assert {job["job_name"] for job in relay.jobs()} == {"build", "test"}


async def test_an_idle_relay_reports_its_limiter_as_down_in_the_metrics(
    tmp_path: Path, redis: RedisServer
) -> None:
    async with running_relay(tmp_path, LISTED, CRCR_REDIS_URL=redis.url) as relay, asyncio.timeout(20):
        read_sample = relay.services.metrics.registry.get_sample_value
        assert read_sample("crcr_limiter_up") == 1
        redis.stop()
        running = asyncio.create_task(follow_other_processes(relay.services))
        while read_sample("crcr_limiter_up") == 1:
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_sign_ins_get_503_and_an_existing_session_still_works(
    tmp_path: Path, redis: RedisServer
) -> None:
    settings: dict[str, Any] = {"CRCR_HUD_ACCESS": "token", "CRCR_REDIS_URL": redis.url, **TOKENS}
    async with (
        running_relay(tmp_path, LISTED, **settings) as relay,
        visitor(relay) as signed_in,
        visitor(relay) as stranger,
    ):
        assert (await signed_in.sign_in(ADMIN)).status_code == 303
        redis.kill()
        assert (await within_time(stranger.sign_in(ADMIN))).status_code == 503
        assert (
            await within_time(stranger.get("/api/v1/summary", authorization=f"Bearer {ADMIN}"))
        ).status_code == 503
        assert (await within_time(signed_in.get("/crcr"))).status_code == 200


@asynccontextmanager
async def second_relay(
    relay: RunningRelay, redis: RedisServer, **more: str
) -> AsyncIterator[tuple[Services, httpx.AsyncClient]]:
    """Another process of the same relay: its own handles on the same database and the same Redis."""
    environ = environment(relay.folder, relay.github, relay.folder / "allowlist.yml")
    environ |= {"CRCR_REDIS_URL": redis.url, **more}
    settings = load_settings(config=None, environ=environ, cwd=relay.folder)
    services = build(
        settings, Seams(clock=relay.clock, http=relay._github_http, on_crash=relay.crashes.append)
    )
    async with client_from(build_app(services, work=False)) as http:
        yield services, http
    await services.close()


async def test_two_relays_share_one_rate_limit(tmp_path: Path, redis: RedisServer) -> None:
    limit: dict[str, Any] = {"CRCR_RATE_LIMIT_PER_MIN": "2"}
    async with (
        dispatched_run(tmp_path, CRCR_REDIS_URL=redis.url, **limit) as (relay, run),
        second_relay(relay, redis, **limit) as (_, http),
    ):
        assert report_outcome(await post_report(relay, run, "build", "in_progress")) == "applied"
        assert report_outcome(await post_report(relay, run, "test", "in_progress", http=http)) == "applied"
        for client in (relay.http, http):
            assert refusal_code(await post_report(relay, run, "test", "completed", http=client)) == (
                429,
                "rate_limited",
            )
        relay.clock.advance(60)
        assert report_outcome(await post_report(relay, run, "test", "completed", http=http)) == "applied"


async def test_a_new_allowlist_is_cached_after_its_signal_without_a_request(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED) as relay, asyncio.timeout(20):
        running = asyncio.create_task(follow_other_processes(relay.services))
        await asyncio.sleep(0)
        core = relay.services.upstreams[0]
        relay.write_allowlist("L2:\n  - org/other\n")
        await relay.refresh()
        relay.services.signals.wake(ALLOWLIST)
        while (
            core.key not in relay.services.allowlists._cache
            or relay.services.allowlists._cache[core.key][0] != 2
        ):
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
