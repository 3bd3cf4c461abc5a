"""The relay and the simulated GitHub in one process and in simulated time, with the measurements of both.

The relay is the real one: its app, worker and duties. Both sides exchange HTTP through ASGI transports, and the
simulated GitHub takes `LATENCY_S` for each call.
"""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.github_budget.lateness import StoreLog
from bench.github_budget.published_gates import CallListener
from bench.github_budget.simulated_time import SimulatedClock
from crcr import log as logs
from crcr.record.migrations.run import migrate
from crcr.settings import Settings
from crcr.wiring.core import Seams
from crcr.wiring.services import Services, build
from crcr.wiring.web_app import build_app
from github_sim.github import GitHub

RELAY_URL = "http://relay.test"
GITHUB_URL = "http://127.0.0.1:9"
"""Loopback, so that the relay accepts it without TLS; nothing listens there and nothing is sent to it."""
LATENCY_S = 0.15


@dataclass(frozen=True, slots=True)
class SimulatedRelay:
    github: GitHub
    services: Services
    listener: CallListener
    log: StoreLog
    crashes: list[Exception]

    def installation_of(self, full_name: str) -> int:
        installation = self.github.world.installation_of(self.github.repository(full_name))
        if installation is None:
            raise LookupError(f"the App is not installed on {full_name}")
        return installation.id

    def check(self) -> None:
        """Fail on anything unexpected on either side."""
        self.github.finish()
        if self.crashes or self.services.loop_errors:
            raise AssertionError(f"the relay crashed: {[*self.crashes, *self.services.loop_errors]}")


@asynccontextmanager
async def run_simulated_relay(
    folder: Path,
    *,
    seed: int,
    make_world: Callable[[GitHub], None],
    settings_for: Callable[[Path, GitHub, str], Settings],
    latency_s: float = LATENCY_S,
) -> AsyncIterator[SimulatedRelay]:
    """Run a relay for the repositories that `make_world` creates, until the body ends."""
    clock = SimulatedClock()
    async with GitHub(
        clock=clock, seed=seed, base_url=GITHUB_URL, webhook_url=f"{RELAY_URL}/github/webhook"
    ) as github:
        make_world(github)
        github.faults.latency(latency_s)
        database = folder / "crcr.db"
        migrate(database)
        log, listener = StoreLog(database), CallListener(github)
        crashes: list[Exception] = []
        seams = Seams(
            clock=clock,
            chance=github.rng.random,
            http=lambda _: httpx.AsyncClient(transport=httpx.ASGITransport(github.app)),
            on_crash=crashes.append,
        )
        services = build(settings_for(folder, github, RELAY_URL), seams)
        app = build_app(services)
        github.use_transport(httpx.ASGITransport(app))
        async with app.inner.router.lifespan_context(app.inner):
            yield SimulatedRelay(github, services, listener, log, crashes)
            await github.stop_activity()


def log_errors_only() -> None:
    logs.configure("auto", "error", sys.stderr)
