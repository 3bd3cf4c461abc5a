"""A relay with a history, moved from SQLite to PostgreSQL, so that both can be queried."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from crcr.demo.history.backends import BackendSpec
from crcr.demo.history.fill import fill_database
from crcr.demo.history.generate import HistoryPlan
from crcr.record.sqlite_to_postgres.copy import move
from crcr.record.store.database import PostgresLocation
from crcr.record.store.sqlite.file import copy_database
from crcr.record.store.times import to_us
from crcr.settings import PostgresSetting, Settings
from crcr.settings.readers.service_urls import ServiceUrl
from crcr.wiring.core import Seams
from crcr.wiring.services import build
from crcr.wiring.web_app import build_app
from support.clock import ManualClock
from support.downstream.self_reports import nightly_run, send_self_report, upstream_head
from support.github.gated_upstream import GATING, INFORMING
from support.running_relay import RELAY_URL, UPSTREAM, RunningRelay
from support.served_relay import HIDDEN_BACKEND, L1_BACKEND, relay_with_history
from support.services.postgres import new_database

INGEST = "ingest-token-0123456789"
_BACKENDS = (
    BackendSpec(GATING, 4, ["build", "test"]),
    BackendSpec(INFORMING, 3, ["build", "test", "lint"]),
    BackendSpec(HIDDEN_BACKEND, 2, ["build"]),
    BackendSpec(L1_BACKEND, 1, []),
)


def settings_on_postgresql(settings: Settings, url: str) -> Settings:
    """The same settings with this PostgreSQL database."""
    return settings.model_copy(update={"database": PostgresSetting(ServiceUrl(url))})


async def move_to_postgresql(path: Path) -> str:
    """Copy a closed SQLite file to a new PostgreSQL database; return its URL."""
    url = new_database(empty=True)
    await move(path, PostgresLocation(url))
    return url


@asynccontextmanager
async def relay_with_long_history(folder: Path, *, jobs: int) -> AsyncIterator[RunningRelay]:
    """A relay with weeks of generated history, then a day of events of its own: pulls, pushes, nightly and ingested results."""
    until = to_us(ManualClock().now()) - 60_000_000
    plan = HistoryPlan(
        upstream=UPSTREAM, backends=_BACKENDS, until=until, days=45, jobs=jobs, seed=6, first_number=5000
    )
    fill_database(folder / "crcr.db", plan)
    settings = {"CRCR_DATABASE_URL": f"sqlite:///{folder / 'crcr.db'}", "CRCR_HUD_INGEST_TOKEN": INGEST}
    async with relay_with_history(folder, **settings) as relay:
        await _report_nightly_runs(relay)
        await _ingest_from_other_relays(relay)
        yield relay


async def _report_nightly_runs(relay: RunningRelay) -> None:
    for conclusion in ("success", "failure"):
        answer = await send_self_report(
            relay, nightly_run(relay, INFORMING), conclusion=conclusion, commit=upstream_head(relay)
        )
        assert answer.status_code == 200, answer.text
        relay.clock.advance(60)
    await relay.drain()


async def _ingest_from_other_relays(relay: RunningRelay) -> None:
    for number, conclusion in enumerate(("success", "failure", "cancelled")):
        answer = await relay.http.post(
            "/api/crcr/results", json=_envelope(number, conclusion), headers={"x-hud-internal-bot": INGEST}
        )
        assert answer.json()["shown"], answer.text


def _envelope(number: int, conclusion: str) -> dict[str, Any]:
    workflow = {
        "status": "completed",
        "name": "CI",
        "run_id": f"7{number}",
        "run_attempt": "1",
        "job_name": "build",
    }
    pull = {"number": 77, "title": "Told", "user": {"login": "ada"}, "head": {"sha": "c" * 40, "ref": "fuse"}}
    event = {
        "action": "synchronize",
        "number": 77,
        "repository": {"full_name": UPSTREAM},
        "pull_request": pull,
    }
    callback = {"event_type": "pull_request", "delivery_id": f"told-{number}", "payload": event}
    return {
        "trusted": {
            "verified_repo": GATING,
            "downstream_repo_level": "L4",
            "ci_metrics": {"queue_time": 3.5, "execution_time": 60},
        },
        "untrusted": {"callback_payload": {**callback, "workflow": {**workflow, "conclusion": conclusion}}},
    }


@asynccontextmanager
async def moved_relay(relay: RunningRelay) -> AsyncIterator[httpx.AsyncClient]:
    """A second relay, at the same time, on a PostgreSQL copy of the first one's database."""
    copied = relay.folder / "moved.db"
    copy_database(relay.folder / "crcr.db", copied)
    settings = settings_on_postgresql(relay.services.settings, await move_to_postgresql(copied))
    services = build(
        settings, Seams(clock=relay.clock, http=relay._github_http, on_crash=relay.crashes.append)
    )
    try:
        transport = httpx.ASGITransport(build_app(services, work=False))
        async with httpx.AsyncClient(transport=transport, base_url=RELAY_URL) as http:
            yield http
    finally:
        await services.close()
