"""`OperatorShell`: runs `crcr` commands on a relay's database, which may have a history.

A real relay makes the history: it dispatched a pull request to three backends, one of which is hidden and one of which
GitHub refuses, so that its dispatch is parked.
"""

import asyncio
import json
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import structlog
from typer.testing import CliRunner, Result

from crcr.cli.main import app
from github_sim.github import GitHub
from github_sim.oidc.signing import private_pem
from support.running_relay import UPSTREAM, RunningRelay, running_relay
from support.services.cleanup import temporary_folder

ALLOWLIST = """
L1:
  - org/refused
L2:
  - Org/Reporter: {oncalls: [ada]}
  - org/secret: {visibility: hidden}
"""

_ELIGIBLE = (
    "INSERT INTO level_standings (upstream, downstream, level, standing, since_at, changed_at, evaluated_at, results,"
    " left_out, reason) VALUES ('pytorch-like/core', 'org/reporter', 2, 'holds', 0, 0, 0, ?, 0, 'every criterion is met')"
)
_CRITERION = {
    "name": "pass_rate",
    "title": "jobs passed",
    "target": "≥ 90%",
    "measured": "96% of 400 jobs",
    "value": 96.0,
    "met": "met",
    "met_since": "2026-03-01T00:00:00+00:00",
    "leaves": "< 85%",
    "leave_measured": "96% of 200 jobs",
    "broken": False,
}


@dataclass(frozen=True)
class OperatorShell:
    folder: Path
    environ: dict[str, str]
    delivery: str = ""

    def crcr(self, *words: str, given: str | None = None) -> Result:
        """Run a command in this process; the result has its exit code, stdout and stderr."""
        with restore_logging():
            return CliRunner().invoke(app, words, env={**self.environ, "COLUMNS": None}, input=given)

    def ok(self, *words: str) -> str:
        result = self.crcr(*words)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.ok(*words, "--json"))

    def rows(self, sql: str, *params: object) -> list[dict[str, Any]]:
        connection = sqlite3.connect(self.folder / "crcr.db")
        connection.row_factory = sqlite3.Row
        found = [dict(row) for row in connection.execute(sql, params)]
        connection.close()
        return found

    def write(self, sql: str, *params: object) -> None:
        connection = sqlite3.connect(self.folder / "crcr.db")
        with connection:
            connection.execute(sql, params)
        connection.close()

    def make_eligible(self) -> None:
        """Have Org/Reporter meet the criteria of L3."""
        self.write(_ELIGIBLE, json.dumps([_CRITERION]))

    def copy_effect(self, effect_id: int, *, times: int) -> None:
        columns = "upstream, kind, target, lane, delivery, state, due_at, created_at, finished_at"
        copy = f"INSERT INTO effects ({columns}) SELECT {columns} FROM effects WHERE effect_id = ?"  # noqa: S608
        connection = sqlite3.connect(self.folder / "crcr.db")
        with connection:
            connection.executemany(copy, [(effect_id,)] * times)
        connection.close()


@contextmanager
def restore_logging() -> Iterator[None]:
    """Restore the process-wide log, which a command redirects to a stream that is closed after it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()


def relay_environment(folder: Path, **more: str) -> dict[str, str]:
    """A complete environment with an unreachable GitHub."""
    (folder / "allowlist.yml").write_text(ALLOWLIST)
    return {
        "CRCR_UPSTREAM": UPSTREAM,
        "CRCR_ALLOWLIST": str(folder / "allowlist.yml"),
        "CRCR_GITHUB_APP_ID": "12345",
        "CRCR_GITHUB_APP_PRIVATE_KEY": private_pem("cli"),
        "CRCR_GITHUB_WEBHOOK_SECRET": "a-secret-that-nobody-sees",
        "CRCR_GITHUB_API_URL": "http://127.0.0.1:9",
        "CRCR_DATABASE_URL": f"sqlite:///{folder / 'crcr.db'}",
        "CRCR_OIDC_AUDIENCE": "crcr-test",
        **more,
    }


def database_with_history(folder: Path) -> OperatorShell:
    """A copy of a database that a relay made, which has stopped."""
    made, delivery = _history()
    for file in made.glob("crcr.db*"):
        shutil.copy(file, folder / file.name)
    return OperatorShell(folder, relay_environment(folder), delivery)


@cache
def _history() -> tuple[Path, str]:
    """Make the history once for all tests of a process: the folder with its database, and the delivery's GUID."""
    folder = temporary_folder("crcr-test-")
    return folder, asyncio.run(_make_history(folder))


async def _make_history(folder: Path) -> str:
    def prepare(github: GitHub) -> None:
        github.create_repository("org/refused", installed=False)

    async with running_relay(
        folder, ALLOWLIST, downstreams=("org/reporter", "org/secret"), prepare=prepare
    ) as relay:
        await relay.github.open_pr(UPSTREAM, title="Add an operator")
        await relay.drain()
        await _report(relay, "org/reporter", "success")
        await _report(relay, "org/secret", "failure")
        return relay.github.deliveries()[-1].guid


async def _report(relay: RunningRelay, downstream: str, conclusion: str) -> None:
    run = relay.github.runs(downstream)[0]
    relay.clock.advance(30)
    await relay.github.start_job(run, "build")
    relay.clock.advance(60)
    await relay.github.complete_job(run, "build", conclusion)
