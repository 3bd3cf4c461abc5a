"""`CRCR_HUD_DATABASE_URL`: pages read a streaming replica; no event precedes its data, and the lag is shown."""

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from support.process import crcr, free_port
from support.replicas import github_with_backends, query_value, replica_environment
from support.running_relay import UPSTREAM
from support.services.postgres import Cluster, run_on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TOKEN = "secret-of-the-operator-1"
LAG = "crcr_hud_replica_lag_seconds"


async def event_ids(lines: AsyncIterator[str]) -> AsyncIterator[int]:
    async for line in lines:
        if line.startswith("id:"):
            yield int(line[3:])


async def lag_s(http: httpx.AsyncClient) -> float:
    text = (await http.get("/metrics")).text
    [value] = [line.split()[1] for line in text.splitlines() if line.startswith(f"{LAG} ")]
    return float(value)


async def deliveries(http: httpx.AsyncClient) -> int:
    answer = await http.get("/api/v1/deliveries", params={"upstream": UPSTREAM})
    assert answer.status_code == 200, answer.text
    return len([each for each in answer.json()["deliveries"] if each["event"] == "pull_request"])


async def test_pages_read_the_replica_and_events_wait_for_their_data(tmp_path: Path) -> None:
    primary = Cluster.make()
    port, url = free_port(), primary.admin_url
    replica = primary.make_replica()
    replica_url = replica.admin_url
    settings = {"CRCR_PORT": str(port), "CRCR_HUD_DATABASE_URL": replica_url}
    async with (
        github_with_backends() as github,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http,
    ):
        env = replica_environment(
            tmp_path,
            github,
            url,
            **settings,
            CRCR_ADMIN_TOKENS=f"ada=sha256:{sha256(TOKEN.encode()).hexdigest()}",
        )
        http.headers["Authorization"] = f"Bearer {TOKEN}"
        github.webhook_url = f"http://127.0.0.1:{port}/github/webhook"
        async with crcr("serve", folder=tmp_path, environ=env) as relay:
            await relay.wait_for_line("crcr is listening on")
            async with http.stream("GET", "/api/v1/events") as stream, asyncio.timeout(90):
                ids = event_ids(stream.aiter_lines())
                await github.open_pr(UPSTREAM)
                await anext(ids)
                while await deliveries(http) != 1:  # the first event may be of an earlier change
                    await anext(ids)

                run_on(replica.admin_url, "SELECT pg_wal_replay_pause()")
                pull = await github.open_pr(UPSTREAM)
                assert pull.last_delivery is not None
                assert pull.last_delivery.status_code == 202
                while await lag_s(http) < 1:
                    await asyncio.sleep(0.1)
                assert await deliveries(http) == 1  # the state of the replica
                assert query_value(url, "SELECT count(*) FROM deliveries WHERE event = 'pull_request'") == 2
                acted = await http.post("/api/v1/admin/pause", json={})
                assert acted.status_code == 200, acted.text  # written to the primary
                assert query_value(url, "SELECT count(*) FROM upstreams WHERE paused_at IS NOT NULL") == 1

                run_on(replica.admin_url, "SELECT pg_wal_replay_resume()")
                newest = query_value(url, "SELECT max(change_id) FROM changes")
                while await anext(ids) < newest:
                    pass
                assert await deliveries(http) == 2
                while await lag_s(http) > 0:
                    await asyncio.sleep(0.1)
                page = await http.get("/crcr/metrics", params={"upstream": UPSTREAM}, follow_redirects=True)
                assert "database replica" in page.text
            assert await relay.stop() == 0
            assert '"level":"error"' not in await relay.errors()
    replica.remove()
    primary.remove()
