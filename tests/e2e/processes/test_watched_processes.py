"""Relay and worker processes under monitoring: the worker's own port, and one trace over both."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from github_sim.github import GitHub, JobSpec, Workflow
from github_sim.rest.server import serve
from support.data.operator_database import relay_environment
from support.deploy.otlp_collector import CollectedSpans, attribute_texts, run_collector
from support.process import crcr, free_port
from support.running_relay import UPSTREAM

pytestmark = pytest.mark.slow

BACKEND = "org/reporter"


@asynccontextmanager
async def run_github(folder: Path, **more: str) -> AsyncIterator[tuple[GitHub, dict[str, str]]]:
    """A GitHub on a port, and the settings of a relay that uses it."""
    async with GitHub(seed=7) as github, serve(github):
        github.create_repository(UPSTREAM)
        github.create_repository(BACKEND, workflows=[Workflow(jobs=(JobSpec("build"),))])
        port = free_port()
        github.webhook_url = f"http://127.0.0.1:{port}/github/webhook"
        issuer = [{"issuer": github.issuer_url, "kind": "github", "jwks_url": github.jwks_url}]
        env = relay_environment(
            folder,
            CRCR_GITHUB_APP_ID=str(github.app_id),
            CRCR_GITHUB_APP_PRIVATE_KEY=github.private_key_pem,
            CRCR_GITHUB_WEBHOOK_SECRET=github.webhook_secret,
            CRCR_GITHUB_API_URL=github.base_url,
            CRCR_PUBLIC_URL=f"http://127.0.0.1:{port}",
            CRCR_OIDC_ISSUERS=json.dumps(issuer),
            CRCR_PORT=str(port),
            **more,
        )
        (folder / "allowlist.yml").write_text(f"L2:\n  - {BACKEND}\n")
        yield github, env
        github.finish()


async def until_dispatched(github: GitHub) -> None:
    async with asyncio.timeout(20):
        while not github.runs(BACKEND):
            await asyncio.sleep(0.05)


async def scraped(http: httpx.AsyncClient, words: str) -> str:
    """The metrics, as soon as they contain these words: an action is counted a moment after it is visible outside."""
    async with asyncio.timeout(10):
        while words not in (text := (await http.get("/metrics")).text):
            await asyncio.sleep(0.05)
    return text


async def test_a_worker_with_a_metrics_port_serves_only_health_and_metrics(tmp_path: Path) -> None:
    """And a delivery that both processes handle is one trace."""
    port = free_port()
    with run_collector() as collected:
        async with (
            run_github(tmp_path, CRCR_OTEL_ENDPOINT=collected.url) as (github, env),
            crcr("serve", "--role", "intake", "--no-worker", folder=tmp_path, environ=env) as front,
            crcr("worker", folder=tmp_path, environ={**env, "CRCR_METRICS_PORT": str(port)}) as back,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
        ):
            await front.wait_for_line("without a worker")
            assert f"http://127.0.0.1:{port}/metrics" in await back.wait_for_line("crcr is processing")
            assert (await http.get("/healthz")).json()["ok"] is True
            assert (await http.get("/readyz")).json()["store"] == "answers"
            await github.open_pr(UPSTREAM)
            await until_dispatched(github)
            metrics = await scraped(http, 'crcr_effects_total{kind="send_dispatch",outcome="done"} 1.0')
            assert 'crcr_github_calls_total{call="dispatch",status="2xx"} 1.0' in metrics
            assert "crcr_worker_seen_timestamp_seconds{" in metrics
            assert "crcr_leader 1.0" in metrics
            assert "crcr_store_up 1.0" in metrics
            assert (await http.get("/crcr")).status_code == 404
            assert (await http.post("/github/webhook")).status_code == 404
            answer = await github.report(github.runs(BACKEND)[0], "build")
            assert answer.status_code == 200
            assert (await back.stop(), await front.stop()) == (0, 0)
    check_one_trace(collected)


def check_one_trace(collected: CollectedSpans) -> None:
    [webhook], [dispatch], [callback] = map(collected.named, ("webhook", "dispatch", "callback"))
    assert webhook.trace_id == dispatch.trace_id == callback.trace_id
    assert (dispatch.parent_span_id, callback.parent_span_id) == (webhook.span_id, dispatch.span_id)
    assert attribute_texts(dispatch.attributes)["crcr.downstream"] == BACKEND


async def test_a_worker_without_a_port_does_not_listen_and_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with run_github(tmp_path) as (_, env):
            async with crcr("worker", folder=tmp_path, environ={**env, "CRCR_METRICS_PORT": port}) as refused:
                errors = await refused.errors()
                assert await refused.wait() == 1
            assert f"port {port} is in use" in errors
            assert "CRCR_METRICS_PORT" in errors
            async with crcr("worker", folder=tmp_path, environ=env) as back:
                assert "metrics" not in await back.wait_for_line("crcr is processing")
                assert await back.stop() == 0
