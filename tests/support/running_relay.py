"""`running_relay`: the relay and the simulated GitHub in one process, with a clock that the test moves.

Both exchange real HTTP messages through ASGI transports. `drain` runs all effects that are due; nothing sleeps. On exit
the test fails if either side saw anything unexpected.
"""

import json
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from crcr.app import Edge
from crcr.decide.model import RepoName
from crcr.record.migrations.run import migrate
from crcr.record.store.database import PostgresTimeouts
from crcr.settings import PostgresSetting, Settings, SqliteSetting, load_settings
from crcr.wiring.core import Seams
from crcr.wiring.intake_app import build_intake_app, intake_routes
from crcr.wiring.services import Services, build
from crcr.wiring.web_app import build_app
from github_sim.github import GitHub, JobSpec, Workflow
from support.clock import ManualClock
from support.services.cleanup import temporary_folder
from support.services.postgres import PATIENT_TIMEOUTS, new_database, run_on

UPSTREAM = "pytorch-like/core"
AUDIENCE = "crcr-test"
RELAY_URL = "http://relay.test"

WORKFLOW = Workflow(jobs=(JobSpec("build"), JobSpec("test")))


class AppOnDemand:
    """The relay's ASGI app, of which pages and API are built when the first of them is asked for.

    Building them takes half of a relay's start, and most tests send only webhooks and callbacks. These two are answered by
    the same code in an app without pages.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._intake = build_intake_app(services, work=False)
        self._intake_paths = frozenset(intake_routes(services))
        self._whole: Edge | None = None

    @property
    def whole(self) -> Edge:
        if self._whole is None:
            self._whole = build_app(self._services, work=False)
        return self._whole

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._intake if scope.get("path") in self._intake_paths else self.whole
        await app(scope, receive, send)


class RunningRelay:
    def __init__(
        self, folder: Path, github: GitHub, clock: ManualClock, outside: Mapping[str, ASGIApp] | None = None
    ) -> None:
        self.folder = folder
        self.outside = outside or {}
        self.github = github
        self.clock = clock
        self.crashes: list[Exception] = []
        self.seams: Seams
        self.services: Services
        self.on_demand: AppOnDemand
        self.http: httpx.AsyncClient
        self._replaced_app: Edge | None = None
        self._reader: tuple[tuple[Path, int], sqlite3.Connection] | None = None

    @property
    def app(self) -> Edge:
        """The whole app, as one process serves it."""
        return self._replaced_app or self.on_demand.whole

    @app.setter
    def app(self, app: Edge) -> None:
        self._replaced_app = app

    async def open(self, settings: Settings, check_gathering: timedelta = timedelta()) -> None:
        if isinstance(settings.database, SqliteSetting):
            place_empty_database(settings.database.path)
        self.seams = Seams(
            clock=self.clock,
            http=self._github_http,
            chance=lambda: 0.5,
            on_crash=self.crashes.append,
            health_shared_for_s=0,
            check_gathering=check_gathering,
            postgres_timeouts=PostgresTimeouts() if "CRCR_TEST_TIMEOUTS" in os.environ else PATIENT_TIMEOUTS,
            sqlite_durable=False,
        )
        self.services = build(settings, self.seams)
        self.on_demand = AppOnDemand(self.services)
        self._replaced_app = None
        await self.services.acts.register_upstreams(self.services.upstreams, self.clock.now())
        await self.refresh()
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.on_demand), base_url=RELAY_URL)
        self.github.use_transport(httpx.ASGITransport(self.on_demand))

    async def close(self) -> None:
        self._close_reader()
        await self.http.aclose()
        await self.services.close()

    async def refresh(self) -> None:
        for refresher in self.services.refreshers.values():
            await refresher.refresh_or_log()

    async def drain(self) -> int:
        """Run all effects that are due now; return their number."""
        return await self.services.worker.drain()

    async def pass_time(self, seconds: float) -> int:
        self.clock.advance(seconds)
        return await self.drain()

    def write_allowlist(self, text: str, name: str = "allowlist.yml") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def write_allowlists(self, allowlists: str | Mapping[str, str]) -> Path | None:
        if isinstance(allowlists, str):
            return self.write_allowlist(allowlists)
        paths = {
            name: self.write_allowlist(text, f"{name.replace('/', '.')}.yml")
            for name, text in allowlists.items()
        }
        tables = (f'[[upstream]]\nname = "{name}"\nallowlist = "{path}"\n' for name, path in paths.items())
        (self.folder / "crcr.toml").write_text("".join(tables))
        return None

    def rows(self, sql: str, *params: object) -> list[dict[str, Any]]:
        """Query the relay's database."""
        database = self.services.settings.database
        if isinstance(database, PostgresSetting):
            return run_on(database.url.get_secret_value(), sql, *params)
        with self._open_reader(database.path) as connection:
            return [dict(row) for row in connection.execute(sql, params)]

    def _open_reader(self, path: Path) -> sqlite3.Connection:
        """The connection for all queries on a file: SQLite reads the whole schema for each new connection."""
        file = path, path.stat().st_ino
        if self._reader is None or self._reader[0] != file:
            self._close_reader()
            connection = sqlite3.connect(path, check_same_thread=False)
            connection.row_factory = sqlite3.Row
            self._reader = file, connection
        return self._reader[1]

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader[1].close()
            self._reader = None

    def jobs(self, downstream: str | None = None) -> list[dict[str, Any]]:
        rows = self.rows("SELECT * FROM jobs ORDER BY in_progress_at, run_id, attempt, job_name")
        return [row for row in rows if downstream is None or row["downstream"] == downstream.lower()]

    def dispatch_states(self) -> dict[tuple[str, str], str]:
        rows = self.rows("SELECT delivery, downstream, state FROM dispatches")
        return {(row["delivery"], row["downstream"]): row["state"] for row in rows}

    def _github_http(self, _: str) -> httpx.AsyncClient:
        others = {f"all://{host}": httpx.ASGITransport(app) for host, app in self.outside.items()}
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.github.app), mounts=others)


@cache
def _empty_database() -> Path:
    """A database with the schema and no rows, made once per test process."""
    path = temporary_folder("crcr-test-") / "empty.db"
    migrate(path)
    return path


def place_empty_database(path: Path) -> None:
    """Copy a migrated, empty database to this path: running the migrations takes longer than most tests."""
    if not path.exists():
        shutil.copy(_empty_database(), path)  # with its mode


def settings_for(folder: Path, github: GitHub, allowlist: Path | str | None, **more: str) -> Settings:
    """Settings for `UPSTREAM`; without an allowlist, the folder's crcr.toml lists the upstreams."""
    environ = {**environment(folder, github, allowlist), **more}
    return load_settings(config=None, environ=environ, cwd=folder)


def environment(folder: Path, github: GitHub, allowlist: Path | str | None) -> dict[str, str]:
    issuer = [{"issuer": github.issuer_url, "kind": "github", "jwks_url": github.jwks_url}]
    return {
        **({} if allowlist is None else {"CRCR_UPSTREAM": UPSTREAM, "CRCR_ALLOWLIST": str(allowlist)}),
        "CRCR_GITHUB_APP_ID": str(github.app_id),
        "CRCR_GITHUB_APP_PRIVATE_KEY": github.private_key_pem,
        "CRCR_GITHUB_WEBHOOK_SECRET": github.webhook_secret,
        "CRCR_GITHUB_API_URL": github.base_url,
        "CRCR_PUBLIC_URL": RELAY_URL,
        "CRCR_DATABASE_URL": database_url(folder),
        "CRCR_OIDC_AUDIENCE": AUDIENCE,
        "CRCR_OIDC_ISSUERS": json.dumps(issuer),
    }


def database_url(folder: Path) -> str:
    """A SQLite file in the folder, or with CRCR_TEST_STORE=postgresql a new database for each folder."""
    if in_postgresql():
        return _new_database_for(folder)
    return f"sqlite:///{folder / 'crcr.db'}"


def in_postgresql() -> bool:
    return os.environ.get("CRCR_TEST_STORE") == "postgresql"


@cache
def _new_database_for(_: Path) -> str:
    return new_database()


@asynccontextmanager
async def running_relay(
    folder: Path,
    allowlist: str | Mapping[str, str],
    *,
    downstreams: tuple[str, ...] = (),
    prepare: Callable[[GitHub], object] = lambda _: None,
    outside: Mapping[str, ASGIApp] | None = None,
    check_gathering: timedelta = timedelta(),
    **more: str,
) -> AsyncIterator[RunningRelay]:
    """Run a relay with this allowlist, its upstream, and a repository for each downstream with the App installed.

    For several upstreams, pass a mapping of names to allowlists. `prepare` is called with GitHub before the relay starts.
    `outside` are further servers that the relay can reach, by host. Checks of backends and jobs are published at once,
    unless `check_gathering` gives the time to wait for more changes, as a real relay does.
    """
    clock = ManualClock()
    async with GitHub(
        clock=clock, seed=7, base_url="http://127.0.0.1:9", webhook_url=f"{RELAY_URL}/github/webhook"
    ) as github:
        for name in (UPSTREAM,) if isinstance(allowlist, str) else allowlist:
            github.create_repository(name)
        for name in downstreams:
            github.create_repository(name, workflows=[WORKFLOW])
        prepare(github)
        relay = RunningRelay(folder, github, clock, outside)
        settings = settings_for(folder, github, relay.write_allowlists(allowlist), **more)
        await relay.open(settings, check_gathering)
        try:
            await relay.drain()
            yield relay
        finally:
            await relay.close()
        github.finish()
        assert relay.crashes == []


def repo(name: str) -> RepoName:
    return RepoName(name)
