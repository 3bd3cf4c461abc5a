"""Callbacks: a dispatched run, its reports, the relay's answers, and a store that fails."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx

from crcr.app import Edge
from crcr.errors import StoreUnavailable
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.jobs.forwards import Forwards
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.jobs.reports import Reports
from crcr.record.store.database import Database, Unit
from crcr.wiring.web_app import build_app
from github_sim.github import JobSpec, Workflow, WorkflowJob, WorkflowRun
from support.running_relay import AUDIENCE, RELAY_URL, UPSTREAM, WORKFLOW, RunningRelay, running_relay

T = TypeVar("T")

BACKEND = "org/backend"
LISTED = f"L2:\n  - {BACKEND}\n"
CALLBACK = "/github/callback"


@asynccontextmanager
async def dispatched_run(
    folder: Path, allowlist: str = LISTED, *, workflows: Sequence[Workflow] = (WORKFLOW,), **more: Any
) -> AsyncIterator[tuple[RunningRelay, WorkflowRun]]:
    """A pull request is open and dispatched to the backend, whose first run has not reported yet."""
    async with running_relay(folder, allowlist, downstreams=(BACKEND,), **more) as relay:
        relay.github.repository(BACKEND).workflows = list(workflows)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        yield relay, relay.github.runs(BACKEND)[0]


def workflow_with_jobs(*names: str) -> tuple[Workflow]:
    return (Workflow(jobs=tuple(JobSpec(name) for name in names)),)


def refusal_code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json()["error"]["code"])


def report_outcome(answer: httpx.Response) -> str:
    """`applied`, `repeat`, or the code of the refusal."""
    if answer.status_code == 200:
        return "repeat" if answer.json()["repeat"] else "applied"
    return refusal_code(answer)[1]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def post_report(
    relay: RunningRelay,
    run: WorkflowRun,
    job: WorkflowJob | str,
    status: str,
    *,
    http: httpx.AsyncClient | None = None,
    **workflow: Any,
) -> httpx.Response:
    """Send a report with this HTTP client instead of the simulator's own."""
    chosen = run.job(job) if isinstance(job, str) else job
    body = relay.github.ci.report_body(run, chosen, status, **workflow)
    token = relay.github.oidc_token(run, chosen, audience=AUDIENCE)
    return await (http or relay.http).post(CALLBACK, json=body, headers=bearer(token))


def client_from(app: Edge, address: str = "192.0.2.1") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(address, 1)), base_url=RELAY_URL)


class FailingDatabase:
    """A store that can fail: reads fail, writes fail, or a write is committed and its answer is lost."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.reads_to_fail = 0
        self.writes_to_fail = 0
        self.answers_to_lose = 0

    async def write(self, unit: Unit[T], *, lane: str | None = None) -> T:
        if self.writes_to_fail:
            self.writes_to_fail -= 1
            raise StoreUnavailable("the disk is full")
        result = await self._inner.write(unit, lane=lane)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise StoreUnavailable("the connection broke after the commit")
        return result

    async def quick_read(self, unit: Unit[T]) -> T:
        if self.reads_to_fail:
            self.reads_to_fail -= 1
            raise StoreUnavailable("the store did not answer")
        return await self._inner.quick_read(unit)

    async def read(self, unit: Unit[T]) -> T:
        return await self._inner.read(unit)

    async def watch_other_processes(self) -> None:
        await self._inner.watch_other_processes()

    async def renew_connections(self) -> None:
        await self._inner.renew_connections()

    async def close(self) -> None:
        await self._inner.close()


@asynccontextmanager
async def callbacks_on_store(relay: RunningRelay, store: Database) -> AsyncIterator[httpx.AsyncClient]:
    """The same relay, with callbacks wired to another store."""
    services = relay.services
    reports = Reports(
        store,
        allowlists=services.allowlists,
        targets=services.targets,
        outcomes=JobOutcomes(Forwards(enabled=False)),
        refresher=CheckRefresher({}),
        upstreams=services.upstreams,
        job_timeout=timedelta(hours=6),
    )
    wired = replace(services, reports=reports, callback=replace(services.callback, reports=reports))
    async with client_from(build_app(wired, work=False)) as http:
        yield http


@asynccontextmanager
async def callbacks_on_outage(
    relay: RunningRelay,
) -> AsyncIterator[tuple[FailingDatabase, httpx.AsyncClient]]:
    """The same relay, with callbacks wired to a store that can be made to fail."""
    store = FailingDatabase(relay.services.database)
    async with callbacks_on_store(relay, store) as http:
        yield store, http


async def sweep(relay: RunningRelay) -> None:
    """Run the sweeper, then the effects that it queued (look-ups on GitHub), then the sweeper again."""
    await relay.services.sweeper.sweep()
    await relay.drain()
    await relay.services.sweeper.sweep()


def end_unreported(relay: RunningRelay, run: WorkflowRun, *names: str) -> None:
    """Let these jobs succeed on GitHub without a report to the relay."""
    for name in names:
        relay.github.ci.complete(run, run.job(name), "success")


def job_marks(row: Mapping[str, Any]) -> set[str]:
    return {name for name in ("late", "disputed", "superseded", "unsigned") if row[name]}
