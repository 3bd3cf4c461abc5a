"""Several relay processes on one database: their settings, their GitHub, and queries on the database."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from github_sim.github import GitHub, JobSpec, Workflow
from github_sim.rest.server import serve
from support.data.operator_database import relay_environment
from support.running_relay import UPSTREAM
from support.services.postgres import new_database, run_on

TARGETS = tuple(f"owner{number}/backend" for number in range(4))
ALLOWLIST = "L2:\n" + "".join(f"  - {name}\n" for name in TARGETS)

DATABASE_URLS: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder / 'crcr.db'}",
    "postgresql": lambda _: new_database(),
}
"""Makes an empty database of each kind; returns its URL."""


@asynccontextmanager
async def github_with_backends(seed: int = 7) -> AsyncIterator[GitHub]:
    async with GitHub(seed=seed) as github, serve(github):
        github.limits.points_per_minute = 1_000_000
        github.create_repository(UPSTREAM)
        for name in TARGETS:
            github.create_repository(name, workflows=[Workflow(jobs=(JobSpec("build"),))])
        yield github
        github.finish()


def replica_environment(folder: Path, github: GitHub, url: str, **more: str) -> dict[str, str]:
    """The settings that all processes share, with this database URL."""
    environ = relay_environment(
        folder,
        CRCR_DATABASE_URL=url,
        CRCR_GITHUB_APP_ID=str(github.app_id),
        CRCR_GITHUB_APP_PRIVATE_KEY=github.private_key_pem,
        CRCR_GITHUB_WEBHOOK_SECRET=github.webhook_secret,
        CRCR_GITHUB_API_URL=github.base_url,
        CRCR_OIDC_ISSUERS=json.dumps(
            [{"issuer": github.issuer_url, "kind": "github", "jwks_url": github.jwks_url}]
        ),
        CRCR_RATE_LIMIT_PER_MIN="100000",
        CRCR_LOG_LEVEL="warning",
        **more,
    )
    (folder / "allowlist.yml").write_text(ALLOWLIST)
    return environ


def query_rows(url: str, sql: str) -> list[dict[str, Any]]:
    """Query the database."""
    if not url.startswith("sqlite:///"):
        return run_on(url, sql)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql)]


def query_value(url: str, sql: str) -> Any:
    [row] = query_rows(url, sql)
    return next(iter(row.values()))


def forget_sums(database: Path) -> None:
    """Delete the aggregates, so that a page can read the result only from ClickHouse."""
    with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        for table in ("hours", "days", "job_days"):
            assert connection.execute(f"DELETE FROM {table}").rowcount > 0  # noqa: S608


async def wait_until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    """Poll until the condition holds, with a time-out."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.05)
