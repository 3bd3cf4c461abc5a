"""Calls to GitHub per head commit: the relay in process with the simulated GitHub and a clock that is moved by hand.

Two L4 backends and a labelled L3 backend have ten jobs each, and each backend has its own installation. The jobs report
one by one over ten minutes; the calls of each installation are counted. No time is measured.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import structlog

from bench.relay_process.relay_setup import AUDIENCE, Row
from crcr.settings import load_settings
from crcr.wiring.core import Seams
from crcr.wiring.services import Services, build
from crcr.wiring.web_app import build_app
from github_sim.github import GitHub, JobSpec, Workflow
from github_sim.world.call_counts import CallCounts, count_calls

UPSTREAM = "bench/upstream"
FIRST, SECOND, INFORMING = BACKENDS = ("first/gating", "second/gating", "third/informing")
LABEL = "ciflow/crcr/npu"
JOBS = tuple(f"job {number}" for number in range(10))
_ALLOWLIST = f"""\
L3:
  npu:
    {INFORMING}: {{oncalls: [ann], jobs: ["job *"]}}
L4:
  {FIRST}: {{oncalls: [bob], jobs: ["job *"], paths: ["**"]}}
  {SECOND}: {{oncalls: [cat], jobs: ["job *"]}}
"""
_RELAY = "http://relay.bench"
_BETWEEN_REPORTS_S = 10
_HEADS: Mapping[str, tuple[Mapping[str, Collection[str]], int]] = {
    "a head that passes": ({}, 10),
    "a head that one L4 backend fails in 5 jobs": ({FIRST: JOBS[2:7]}, 14),
    "a head that both L4 backends fail": ({FIRST: JOBS[2:7], SECOND: JOBS[4:5]}, 18),
}
"""Which jobs fail, and the bar for the calls on the upstream's installation."""


class _ManualClock:
    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


@asynccontextmanager
async def _run_relay(folder: Path) -> AsyncIterator[tuple[GitHub, Services, _ManualClock]]:
    clock = _ManualClock()
    async with GitHub(
        clock=clock, seed=1, base_url="http://127.0.0.1:9", webhook_url=f"{_RELAY}/github/webhook"
    ) as github:
        github.create_repository(UPSTREAM)
        workflow = Workflow(jobs=tuple(JobSpec(name) for name in JOBS), run_name="CI {delivery_id}")
        for name in BACKENDS:
            github.create_repository(name, workflows=[workflow], sends_run_webhooks=name == FIRST)
        to_github = httpx.ASGITransport(github.app)
        seams = Seams(clock=clock, http=lambda _: httpx.AsyncClient(transport=to_github), chance=lambda: 0.5)
        services = build(load_settings(config=None, environ=_environment(folder, github), cwd=folder), seams)
        await services.acts.register_upstreams(services.upstreams, clock.now())
        for refresher in services.refreshers.values():
            await refresher.refresh_or_log()
        github.use_transport(httpx.ASGITransport(build_app(services, work=False)))
        await services.worker.drain()
        yield github, services, clock
        await services.close()
        github.finish()


def _environment(folder: Path, github: GitHub) -> dict[str, str]:
    allowlist = folder / "allowlist.yml"
    allowlist.write_text(_ALLOWLIST)
    issuer = {"issuer": github.issuer_url, "kind": "github", "jwks_url": github.jwks_url}
    return {
        "CRCR_UPSTREAM": UPSTREAM,
        "CRCR_ALLOWLIST": str(allowlist),
        "CRCR_GITHUB_APP_ID": str(github.app_id),
        "CRCR_GITHUB_APP_PRIVATE_KEY": github.private_key_pem,
        "CRCR_GITHUB_WEBHOOK_SECRET": github.webhook_secret,
        "CRCR_GITHUB_API_URL": github.base_url,
        "CRCR_PUBLIC_URL": _RELAY,
        "CRCR_DATABASE_URL": f"sqlite:///{folder / 'crcr.db'}",
        "CRCR_OIDC_AUDIENCE": AUDIENCE,
        "CRCR_OIDC_ISSUERS": json.dumps([issuer]),
    }


async def _count_calls(folder: Path, failing: Mapping[str, Collection[str]]) -> tuple[GitHub, CallCounts]:
    async with _run_relay(folder) as (github, services, clock):

        async def pass_time(seconds: float) -> None:
            await clock.sleep(seconds)
            await services.worker.drain()
            await services.sweeper.sweep()
            await services.worker.drain()

        await github.open_pr(
            UPSTREAM, labels=[LABEL]
        )  # The first pull request mints the tokens, which last an hour.
        for _ in range(3):
            await pass_time(_BETWEEN_REPORTS_S)
        mark = len(github.calls)
        await github.open_pr(UPSTREAM, labels=[LABEL])
        await pass_time(_BETWEEN_REPORTS_S)
        for ends in (False, True):
            for job in JOBS:
                for name in BACKENDS:
                    run = github.runs(name)[-1]
                    if ends:
                        failed = job in failing.get(name, ())
                        await github.complete_job(run, job, "failure" if failed else "success")
                    else:
                        await github.start_job(run, job)
                    await pass_time(_BETWEEN_REPORTS_S)
        for _ in range(5):
            await pass_time(60)
        return github, count_calls(github.calls[mark:])


def _rows(what: str, github: GitHub, counts: CallCounts, bar: int) -> list[Row]:
    upstream = counts.for_installation(github.installation(UPSTREAM).id)
    rows: list[Row] = [
        (f"{what}: calls on the upstream", str(upstream.calls), f"≤ {bar}", upstream.calls <= bar),
        (
            f"{what}: POSTs, most points in a minute",
            f"{upstream.posts}, {upstream.most_points_in_a_minute}",
            "",
            True,
        ),
    ]
    for name in BACKENDS:
        calls = counts.for_installation(github.installation(name).id)
        text = f"{calls.calls}, of them {calls.dispatches} dispatch"
        rows.append((f"{what}: calls on {name}", text, "", True))
    return rows


def measure_calls_per_head(folder: Path) -> list[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    rows: list[Row] = []
    for number, (what, (failing, bar)) in enumerate(_HEADS.items()):
        run_folder = folder / f"calls-{number}"
        run_folder.mkdir()
        rows += _rows(what, *asyncio.run(_count_calls(run_folder, failing)), bar)
    structlog.reset_defaults()
    return rows
