"""Processes on PostgreSQL without LISTEN: a worker and the live pages of another process are woken by polling."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from support.process import crcr, free_port
from support.replicas import TARGETS, github_with_backends, replica_environment, wait_until
from support.running_relay import UPSTREAM
from support.services.postgres import new_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def test_without_listen_a_webhook_reaches_the_worker_and_live_pages_of_other_processes(
    tmp_path: Path,
) -> None:
    intake_port, page_port = free_port(), free_port()
    async with (
        github_with_backends() as github,
        httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(), timeout=20) as client,
    ):
        env = replica_environment(tmp_path, github, new_database(), CRCR_DATABASE_LISTEN="off") | {
            "CRCR_LOG_LEVEL": "info"
        }
        github.webhook_url = f"http://127.0.0.1:{intake_port}/github/webhook"
        async with (
            crcr(
                "serve",
                "--role",
                "intake",
                "--port",
                str(intake_port),
                "--no-worker",
                folder=tmp_path,
                environ=env,
            ) as relay,
            crcr("serve", "--no-worker", "--port", str(page_port), folder=tmp_path, environ=env) as pages,
            crcr("worker", folder=tmp_path, environ=env) as worker,
        ):
            await relay.wait_for_line("crcr is listening on")
            await pages.wait_for_line("crcr is listening on")
            await worker.wait_for_line("crcr is processing")
            async with client.stream("GET", f"http://127.0.0.1:{page_port}/api/v1/events") as stream:
                lines = stream.aiter_lines()
                assert await anext(lines) == "retry: 2000"
                await github.open_pr(UPSTREAM)
                assert await next_change(lines) > 0
            await wait_until(lambda: all(github.dispatches(name) for name in TARGETS))
            for process, polling in (
                (relay, 1),
                (pages, 2),
                (worker, 1),
            ):  # a process with pages polls for them too
                assert await process.stop() == 0
                assert (await process.errors()).count("store_polling") == polling


async def next_change(lines: AsyncIterator[str]) -> int:
    async with asyncio.timeout(20):
        async for line in lines:
            if line.startswith("id:"):
                return int(line[3:])
    raise AssertionError("the stream ended")
