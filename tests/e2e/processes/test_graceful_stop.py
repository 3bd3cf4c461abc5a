"""SIGTERM: readiness ends, requests and effects in flight finish, and the process exits with 0."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from github_sim.world.faults import Match
from support.process import crcr, free_port
from support.replicas import (
    DATABASE_URLS,
    TARGETS,
    github_with_backends,
    query_rows,
    query_value,
    replica_environment,
    wait_until,
)
from support.running_relay import UPSTREAM

pytestmark = pytest.mark.slow

OPEN = "SELECT count(*) FROM effects WHERE state IN ('waiting', 'claimed')"


def http() -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(), timeout=20)


@pytest.mark.parametrize("database_kind", DATABASE_URLS)
async def test_a_stopping_process_is_not_ready_still_takes_webhooks_and_then_exits(
    tmp_path: Path, database_kind: str
) -> None:
    port, url = free_port(), DATABASE_URLS[database_kind](tmp_path)
    async with github_with_backends() as github, http() as client:
        env = replica_environment(tmp_path, github, url, CRCR_PORT=str(port), CRCR_DRAIN_S="2")
        github.webhook_url = f"http://127.0.0.1:{port}/github/webhook"
        async with crcr("serve", "--role", "intake", folder=tmp_path, environ=env) as relay:
            await relay.wait_for_line("crcr is listening on")
            assert (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
            relay.process.send_signal(signal.SIGTERM)
            await until_not_ready(client, port)
            taken = await github.open_pr(UPSTREAM)
            assert await relay.wait() == 0
            assert '"level":"error"' not in await relay.errors()
        [delivery] = [each for each in github.deliveries() if each.event == "pull_request"]
        assert (taken.number, delivery.ok) == (1, True)
        assert query_value(url, "SELECT count(*) FROM leaders WHERE duty = 'upkeep'") == 0
        unsent = query_value(
            url, f"{OPEN} AND kind = 'send_dispatch'"
        )  # effects of the start-up may be done or not
        assert unsent == len(TARGETS)  # the next worker takes them
        assert query_value(url, "SELECT count(*) FROM effects WHERE state = 'claimed'") == 0


async def until_not_ready(client: httpx.AsyncClient, port: int) -> None:
    async with asyncio.timeout(10):
        while (answer := await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
            await asyncio.sleep(0.02)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "stopping"


@pytest.mark.parametrize("database_kind", DATABASE_URLS)
async def test_a_live_stream_ends_cleanly_and_resumes_at_another_process(
    tmp_path: Path, database_kind: str
) -> None:
    first_port, second_port = free_port(), free_port()
    async with github_with_backends() as github, http() as client:
        env = replica_environment(tmp_path, github, DATABASE_URLS[database_kind](tmp_path))
        github.webhook_url = f"http://127.0.0.1:{second_port}/github/webhook"
        async with (
            crcr("serve", folder=tmp_path, environ={**env, "CRCR_PORT": str(first_port)}) as relay,
            crcr("serve", folder=tmp_path, environ={**env, "CRCR_PORT": str(second_port)}) as other,
        ):
            await relay.wait_for_line("crcr is listening on")
            await other.wait_for_line("crcr is listening on")
            async with client.stream("GET", f"http://127.0.0.1:{first_port}/api/v1/events") as stream:
                lines = stream.aiter_lines()
                assert await anext(lines) == "retry: 2000"
                await github.open_pr(UPSTREAM)
                seen = await _number_after(lines, 0)
                relay.process.send_signal(signal.SIGTERM)
                rest = [line async for line in lines]  # a complete response and no broken connection
            assert all(line.startswith(("id:", "event:", "data:", ":")) or not line for line in rest)
            assert await relay.wait() == 0
            seen = max([seen, *(int(line[3:]) for line in rest if line.startswith("id:"))])

            await github.open_pr(UPSTREAM)  # while the page is connected to no process
            again = {"Last-Event-ID": str(seen)}
            async with client.stream(
                "GET", f"http://127.0.0.1:{second_port}/api/v1/events", headers=again
            ) as stream:
                assert await _number_after(stream.aiter_lines(), seen) > seen
            assert await other.stop() == 0


async def _number_after(lines: AsyncIterator[str], seen: int) -> int:
    """The first id above `seen`."""
    async with asyncio.timeout(20):
        async for line in lines:
            if line.startswith("id:") and int(line[3:]) > seen:
                return int(line[3:])
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("database_kind", DATABASE_URLS)
async def test_a_stopping_worker_finishes_effects_in_flight_and_releases_the_others(
    tmp_path: Path, database_kind: str
) -> None:
    port, url = free_port(), DATABASE_URLS[database_kind](tmp_path)
    async with github_with_backends() as github:
        env = replica_environment(tmp_path, github, url, CRCR_PORT=str(port), CRCR_WORKER_CONCURRENCY="2")
        github.webhook_url = f"http://127.0.0.1:{port}/github/webhook"
        async with (
            crcr("serve", "--role", "intake", "--no-worker", folder=tmp_path, environ=env) as front,
            crcr("worker", folder=tmp_path, environ=env) as back,
        ):
            await front.wait_for_line("without a worker")
            await back.wait_for_line("crcr is processing")
            await wait_until(lambda: query_value(url, OPEN) == 0)
            gate = github.faults.hang(on=Match(method="POST", path="*/dispatches"), times=2)
            await github.open_pr(UPSTREAM)
            await asyncio.wait_for(gate.reached.wait(), 20)
            back.process.send_signal(signal.SIGTERM)
            await wait_until(
                lambda: query_value(url, "SELECT count(*) FROM effects WHERE state = 'claimed'") <= 2
            )
            assert back.process.returncode is None  # two dispatches are in flight
            gate.release()
            assert await back.wait() == 0
            assert '"level":"error"' not in await back.errors()
            states = query_rows(url, "SELECT state, unsure FROM dispatches ORDER BY state")
            assert [tuple(row.values()) for row in states] == [("sent", 0)] * 2 + [("waiting", 0)] * 2
            assert query_value(url, "SELECT count(*) FROM effects WHERE state = 'claimed'") == 0
            async with crcr("worker", folder=tmp_path, environ=env) as successor:
                await successor.wait_for_line("crcr is processing")
                await wait_until(lambda: query_value(url, OPEN) == 0)
                assert await successor.stop() == 0
            assert await front.stop() == 0
        assert [len(github.dispatches(name)) for name in TARGETS] == [1] * len(TARGETS)
        assert query_value(url, "SELECT count(*) FROM dispatches WHERE unsure = 1") == 0
