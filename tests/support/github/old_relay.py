"""`OldRelay`: a stub of the relay that ours replaces. It dispatches, its backends report to both, and it keeps its table of jobs."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from github_sim.github import WorkflowRun
from support.running_relay import AUDIENCE, RELAY_URL, UPSTREAM, RunningRelay


class OldRelay:
    def __init__(self, relay: RunningRelay) -> None:
        self._relay = relay
        self.rows: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str]] = []
        """Head and body of the requests to its ClickHouse."""

    async def dispatch(
        self,
        backend: str,
        delivery: str,
        *,
        conclusion: str = "success",
        recorded: Mapping[str, str] | None = None,
    ) -> WorkflowRun:
        """Dispatch, and have the backend report; `recorded` is what this relay records of some jobs instead."""
        relay = {
            "version": 1,
            "upstream": UPSTREAM,
            "callback_url": f"{RELAY_URL}/github/callback",
            "audience": AUDIENCE,
        }
        payload = {"event_type": "pull_request", "delivery_id": delivery, "payload": {}, "relay": relay}
        [run] = await self._relay.github.send_dispatch(backend, "pull_request", payload)
        await self.report(run, conclusion, recorded=recorded)
        return run

    async def report(
        self, run: WorkflowRun, conclusion: str, *, recorded: Mapping[str, str] | None = None
    ) -> None:
        for job in run.jobs:
            await self._relay.github.start_job(run, job.name)
            self.record(run, job.name, "in_progress", "")
            self._relay.clock.advance(30)
            answer = await self._relay.github.complete_job(run, job.name, conclusion)
            assert answer.status_code == 200, answer.text
            self.record(run, job.name, "completed", (recorded or {}).get(job.name, conclusion))
        await self._relay.drain()

    def record(self, run: WorkflowRun, job: str, status: str, conclusion: str, **more: Any) -> None:
        at = self._relay.clock.now()
        repository = self._relay.github.world.repositories[run.repository_id].full_name
        row = {
            "downstream_repo": repository,
            "upstream_repo": UPSTREAM,
            "delivery_id": run.delivery_id,
            "workflow_name": run.workflow.name,
            "job_name": job,
            "check_run_id": f"{run.id}-{run.attempt}-{job}",
            "run_attempt": run.attempt,
            "status": status,
            "conclusion": conclusion,
            "started_at": f"{at:%Y-%m-%d %H:%M:%S}.000000000",
            "completed_at": "1970-01-01 00:00:00.000000000",
        }
        self.rows.append({**row, **more})

    @property
    def lines(self) -> str:
        return "".join(f"{json.dumps(row)}\n" for row in self.rows)

    @asynccontextmanager
    async def clickhouse(self) -> AsyncIterator[str]:
        """Serve the table as ClickHouse's HTTP interface does, on loopback; yields its address."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        async with server:
            yield f"http://reader@127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length")
        )
        self.requests.append((head, (await reader.readexactly(int(length))).decode()))
        body = self.lines.encode()
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()
