"""The relay as processes on loopback: server and worker in one process or in two, and start-up errors with a reason."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from github_sim.github import GitHub, JobSpec, Workflow
from github_sim.rest.server import serve
from support.cli_command import run_in_process
from support.data.operator_database import relay_environment
from support.process import CrcrProcess, crcr, free_port
from support.running_relay import UPSTREAM

pytestmark = pytest.mark.slow

ALLOWLIST = "L2:\n  - org/reporter\n"


@asynccontextmanager
async def github_on_a_port() -> AsyncIterator[GitHub]:
    async with GitHub(seed=7) as github, serve(github):
        github.create_repository(UPSTREAM)
        github.create_repository("org/reporter", workflows=[Workflow(jobs=(JobSpec("build"),))])
        yield github
        github.finish()


def environ(folder: Path, github: GitHub, port: int) -> dict[str, str]:
    github.webhook_url = f"http://127.0.0.1:{port}/github/webhook"
    known = relay_environment(
        folder,
        CRCR_GITHUB_APP_ID=str(github.app_id),
        CRCR_GITHUB_APP_PRIVATE_KEY=github.private_key_pem,
        CRCR_GITHUB_WEBHOOK_SECRET=github.webhook_secret,
        CRCR_GITHUB_API_URL=github.base_url,
        CRCR_PUBLIC_URL=f"http://127.0.0.1:{port}",
        CRCR_OIDC_ISSUERS=json.dumps(
            [{"issuer": github.issuer_url, "kind": "github", "jwks_url": github.jwks_url}]
        ),
        CRCR_PORT=str(port),
    )
    (folder / "allowlist.yml").write_text(ALLOWLIST)
    return known


async def wait_for_run(github: GitHub) -> None:
    async with asyncio.timeout(20):
        while not github.runs("org/reporter"):
            await asyncio.sleep(0.05)


async def run_until_refused(folder: Path, env: dict[str, str], *words: str) -> tuple[int, str]:
    async with crcr(*words, folder=folder, environ=env) as process:
        errors = await process.errors()
        return await process.wait(), errors


async def test_the_whole_loop_in_one_process_which_stops_cleanly_with_an_open_live_stream(
    tmp_path: Path,
) -> None:
    port = free_port()
    async with (
        github_on_a_port() as github,
        crcr("serve", folder=tmp_path, environ=environ(tmp_path, github, port)) as relay,
    ):
        assert f"http://127.0.0.1:{port}" in await relay.wait_for_line("crcr is listening on")
        assert f"{UPSTREAM}: 1 downstream (L2 1)" in await relay.wait_for_line(UPSTREAM)
        reachable = await relay.wait_for_line("GitHub at ")
        assert f"{github.base_url}: reachable, App {github.app_id} (crcr-simulated)" in reachable
        await github.open_pr(UPSTREAM)
        await wait_for_run(github)
        run = github.runs("org/reporter")[0]
        assert (await github.start_job(run, "build")).status_code == 200
        await stop_while_a_page_is_live(relay, f"http://127.0.0.1:{port}", signal.SIGTERM)
        log = await relay.errors()
        assert [line.strip() for line in relay.lines[-2:]] == ["stopping… finishing running work", "stopped"]
    assert '"level":"error"' not in log
    assert github.webhook_secret not in log


async def stop_while_a_page_is_live(relay: CrcrProcess, url: str, by: signal.Signals) -> None:
    """An open live stream does not delay the stop."""
    async with (
        httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as http,
        http.stream("GET", f"{url}/api/v1/events", timeout=20) as stream,
    ):
        assert stream.status_code == 200
        async with asyncio.timeout(10):
            assert await relay.stop(by) == 0


async def test_any_free_port_can_be_requested_and_sigint_stops_the_process_like_sigterm(
    tmp_path: Path,
) -> None:
    async with crcr("serve", "--port", "0", folder=tmp_path, environ=relay_environment(tmp_path)) as relay:
        url = (await relay.wait_for_line("crcr is listening on")).split()[4]
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as http:
            assert (await http.get(f"{url}/healthz")).status_code == 200
        assert "not reachable" in await relay.wait_for_line("GitHub at ")
        await stop_while_a_page_is_live(relay, url, signal.SIGINT)


async def test_server_and_worker_processes_cooperate_and_operator_actions_take_effect_at_once(
    tmp_path: Path,
) -> None:
    port = free_port()
    async with github_on_a_port() as github:
        env = environ(tmp_path, github, port)
        async with (
            crcr("serve", "--role", "intake", "--no-worker", folder=tmp_path, environ=env) as front,
            crcr("worker", folder=tmp_path, environ=env) as back,
        ):
            await front.wait_for_line("without a worker")
            await back.wait_for_line("crcr is processing")
            await _pause_holds_back(tmp_path, env, github)
            async with crcr(
                "dispatch", "--test", "org/reporter", "--wait", folder=tmp_path, environ=env
            ) as test:
                assert "sent" in await test.wait_for_line("state:")
                assert await test.wait() == 0
            assert (await back.stop(), await front.stop()) == (0, 0)


async def _pause_holds_back(folder: Path, env: dict[str, str], github: GitHub) -> None:
    paused = await asyncio.to_thread(run_in_process, "pause", folder=folder, environ=env)
    assert paused.code == 0
    await github.open_pr(UPSTREAM)
    await asyncio.sleep(0.5)
    assert github.runs("org/reporter") == []
    lifted = await asyncio.to_thread(run_in_process, "pause", "--lift", folder=folder, environ=env)
    assert lifted.code == 0
    await wait_for_run(github)


async def test_a_port_in_use_is_reported_with_a_hint(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, errors = await run_until_refused(
            tmp_path, relay_environment(tmp_path), "serve", "--port", str(port)
        )
    assert (code, "Traceback" in errors) == (1, False)
    assert f"port {port} is in use" in errors
    assert "--port" in errors


def test_an_unusable_database_is_reported(tmp_path: Path) -> None:
    env = relay_environment(tmp_path)
    (tmp_path / "crcr.db").write_bytes(b"something else" * 100)
    for words in (("serve", "--port", "0"), ("worker",)):
        refusal = run_in_process(*words, folder=tmp_path, environ=env)
        assert (refusal.code, "Traceback" in refusal.errors) == (1, False)
        assert "file is not a database" in refusal.errors
