"""A relay and a simulated GitHub in this process for one history; the clock is moved by hand."""

import atexit
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import httpx

from bench.answers.causes import Backend
from bench.answers.history import BEGINNING, History
from crcr.record.migrations.run import migrate
from crcr.settings import Settings, load_settings
from crcr.wiring.core import Seams
from crcr.wiring.services import Services, build
from crcr.wiring.web_app import build_app
from github_sim.github import GitHub, JobSpec, Workflow

UPSTREAM = "truth/core"
RELAY_URL = "http://relay.bench"
_AUDIENCE = "crcr-answers"
_NIGHTLY_PATH = ".github/workflows/nightly.yml"


class HandClock:
    def __init__(self, start: datetime) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def move_to(self, at: datetime) -> None:
        self._now = max(self._now, at)

    async def sleep(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class AnswersRelay:
    github: GitHub
    services: Services
    clock: HandClock
    http: httpx.AsyncClient
    crashes: list[Exception] = field(default_factory=list)

    async def drain(self) -> None:
        await self.services.worker.drain()

    async def upkeep(self) -> None:
        """What the leader's periodic tasks do: time out silent jobs, look up unanswered dispatches."""
        await self.services.sweeper.sweep()
        await self.services.reconciler.run_quietly()
        await self.drain()


@asynccontextmanager
async def run_relay(history: History) -> AsyncIterator[AnswersRelay]:
    """Run a relay with the backends of the history on its allowlist."""
    clock = HandClock(BEGINNING - timedelta(hours=1))
    with TemporaryDirectory(prefix="crcr-answers-") as place:
        folder = Path(place)
        async with GitHub(
            clock=clock,
            seed=history.number + history.seed,
            base_url="http://127.0.0.1:9",
            webhook_url=f"{RELAY_URL}/github/webhook",
        ) as github:
            _make_repositories(github, history)
            shutil.copy(_empty_database(), folder / "crcr.db")
            crashes: list[Exception] = []
            seams = Seams(
                clock=clock,
                http=lambda _: httpx.AsyncClient(transport=httpx.ASGITransport(github.app)),
                chance=lambda: 0.5,
                on_crash=crashes.append,
                health_shared_for_s=0,
                pages_kept_for_s=0,
                sqlite_durable=False,
            )
            services = build(_settings(folder, github, history), seams)
            to_relay = httpx.ASGITransport(build_app(services, work=False))
            github.use_transport(to_relay)
            async with httpx.AsyncClient(transport=to_relay, base_url=RELAY_URL) as http:
                await services.acts.register_upstreams(services.upstreams, clock.now())
                for refresher in services.refreshers.values():
                    await refresher.refresh_or_log()
                relay = AnswersRelay(github, services, clock, http, crashes)
                await relay.drain()
                try:
                    yield relay
                finally:
                    await services.close()
            github.finish()
            if crashes:
                raise AssertionError(f"the relay crashed: {crashes}")


@cache
def _empty_database() -> Path:
    """A database with the schema and no rows, made once: running the migrations takes longer than a small history."""
    path = Path(mkdtemp(prefix="crcr-answers-")) / "empty.db"
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    migrate(path)
    return path


def workflows_of(backend: Backend) -> list[Workflow]:
    jobs = tuple(JobSpec(job.name) for job in backend.jobs)
    listens = () if backend.tests_pushes else ("pull_request",)
    workflows = [Workflow(jobs=jobs, types=listens, run_name="CI {delivery_id}")]
    if backend.reports_nightly:
        workflows.append(Workflow(name="Nightly", path=_NIGHTLY_PATH, listens=("schedule",), jobs=jobs))
    return workflows


def _make_repositories(github: GitHub, history: History) -> None:
    github.create_repository(UPSTREAM)
    # One token may then speak for every job of a run, as on a GitHub Enterprise Server.
    github.issuer.signs_check_run_id = False
    github.ci.callback_url, github.ci.audience = f"{RELAY_URL}/github/callback", _AUDIENCE
    for backend in history.backends:
        github.create_repository(backend.name, workflows=workflows_of(backend))


def _settings(folder: Path, github: GitHub, history: History) -> Settings:
    allowlist = folder / "allowlist.yml"
    allowlist.write_text(_allowlist(history))
    issuer = {"issuer": github.issuer_url, "kind": "github", "jwks_url": github.jwks_url}
    environment = {
        "CRCR_UPSTREAM": UPSTREAM,
        "CRCR_ALLOWLIST": str(allowlist),
        "CRCR_GITHUB_APP_ID": str(github.app_id),
        "CRCR_GITHUB_APP_PRIVATE_KEY": github.private_key_pem,
        "CRCR_GITHUB_WEBHOOK_SECRET": github.webhook_secret,
        "CRCR_GITHUB_API_URL": github.base_url,
        "CRCR_PUBLIC_URL": RELAY_URL,
        "CRCR_DATABASE_URL": f"sqlite:///{folder / 'crcr.db'}",
        "CRCR_OIDC_AUDIENCE": _AUDIENCE,
        "CRCR_OIDC_ISSUERS": json.dumps([issuer]),
    }
    return load_settings(config=None, environ=environment, cwd=folder)


def _allowlist(history: History) -> str:
    entries = {backend.name: _entry(backend) for backend in history.backends}
    if history.number % 5:
        # An entry with `paths` makes the relay compare each head with its base: so the merge base is known.
        next(iter(entries.values())).setdefault("paths", ["src/**"])
    return json.dumps({"L2": entries})


def _entry(backend: Backend) -> dict[str, object]:
    entry: dict[str, object] = {"bisect": "manual"}
    if not backend.is_told_of_pushes:
        entry["refs"] = ["release/*"]
    if backend.names_jobs:
        entry["jobs"] = [job.name for job in backend.jobs]
    if backend.merges:
        entry["tests"] = "merge"
    if backend.paths is not None:
        entry["paths"] = list(backend.paths)
    return entry
