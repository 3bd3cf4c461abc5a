"""`chdb:///folder` has one owner: a second process gets a clear error."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from crcr.demo.history.backends import BackendSpec
from crcr.demo.history.fill import fill_database
from crcr.demo.history.generate import HistoryPlan
from crcr.errors import OutsideHeld
from crcr.record.clickhouse.connection import (
    ClickHouseLink,
    ClickHouseLocation,
    is_locked,
    is_locked_by_other,
)
from crcr.record.store.times import to_us
from support.data.operator_database import relay_environment
from support.process import crcr, free_port
from support.replicas import (
    TARGETS,
    forget_sums,
    github_with_backends,
    query_value,
    replica_environment,
    wait_until,
)
from support.running_relay import UPSTREAM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HELD = "is held by another process: only one process at a time can use it"
HOLDER = "import chdb, sys; kept = chdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
RAW = ("Traceback", "DB::Exception", "EmbeddedServer", "Cannot lock")


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    errors: str

    def finding(self, name: str) -> dict[str, Any]:
        [item] = [each for each in json.loads(self.out)["findings"] if each["name"] == name]
        return dict(item)


async def run(*words: str, folder: Path, env: dict[str, str]) -> CommandResult:
    async with crcr(*words, folder=folder, environ=env) as command:
        async with asyncio.timeout(60):
            result = CommandResult(*await command.finish())
    assert not [words for words in RAW if words in result.out + result.errors], result
    return result


@asynccontextmanager
async def lock_folder(folder: Path) -> AsyncIterator[None]:
    """Another process has chDB open on the folder."""
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(folder), stdin=pipe, stdout=pipe
    )
    try:
        assert holder.stdout is not None
        assert await asyncio.wait_for(holder.stdout.readline(), 30) == b"held\n"
        yield
    finally:
        holder.kill()
        await holder.communicate()


async def test_a_relay_runs_on_chdb_and_the_doctor_reports_no_problem(tmp_path: Path) -> None:
    port, url, engine = free_port(), f"sqlite:///{tmp_path / 'crcr.db'}", tmp_path / "engine"
    async with github_with_backends() as github:
        address = {"CRCR_PORT": str(port), "CRCR_PUBLIC_URL": f"http://127.0.0.1:{port}"}
        env = replica_environment(tmp_path, github, url, CRCR_CLICKHOUSE_URL=f"chdb://{engine}", **address)
        github.webhook_url = f"http://127.0.0.1:{port}/github/webhook"
        async with crcr("serve", folder=tmp_path, environ=env) as relay:
            await relay.wait_for_line("crcr is listening on")
            await github.open_pr(UPSTREAM)
            await wait_until(lambda: bool(github.runs(TARGETS[0])))
            [job] = github.runs(TARGETS[0])
            assert (await github.start_job(job, "build")).status_code == 200
            assert (await github.complete_job(job, "build", "success")).status_code == 200
            await wait_until(lambda: query_value(url, "SELECT count(*) FROM unfed") == 0)
            forget_sums(tmp_path / "crcr.db")
            assert await count_passed(port, TARGETS[0]) == 1

            doctor = await run("doctor", "--json", folder=tmp_path, env=env)
            clickhouse_finding = doctor.finding("clickhouse")
            assert (doctor.code, clickhouse_finding["state"]) == (0, "unknown"), doctor.out
            assert await relay.stop() == 0
            assert '"level":"error"' not in await relay.errors()
    assert not is_locked(engine)


async def count_passed(port: int, backend: str) -> int:
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(), timeout=20) as http:
        answer = await http.get(f"http://127.0.0.1:{port}/api/v1/summary", params={"upstream": UPSTREAM})
    assert answer.status_code == 200
    [summary] = [each for each in answer.json()["backends"] if each["name"] == backend]
    number: int = summary["figures"]["tally"]["success"]
    return number


async def test_the_doctor_does_not_report_a_folder_in_use_as_broken(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    env = relay_environment(tmp_path, CRCR_CLICKHOUSE_URL=f"chdb://{engine}")
    async with lock_folder(engine):
        clickhouse_finding = (await run("doctor", "--json", folder=tmp_path, env=env)).finding("clickhouse")
    in_use = f"chdb://{engine} is in use by another process (probably the relay); not checked."
    assert (clickhouse_finding["state"], clickhouse_finding["text"]) == ("unknown", in_use)
    clickhouse_finding = (await run("doctor", "--json", folder=tmp_path, env=env)).finding("clickhouse")
    assert (clickhouse_finding["state"], "answers" in clickhouse_finding["text"]) == ("ok", True)


async def test_a_backfill_is_refused_while_the_relay_runs_and_works_when_it_is_stopped(
    tmp_path: Path,
) -> None:
    engine, backends = tmp_path / "engine", (BackendSpec("org/backend", 3, 6),)
    until_us = to_us(datetime.now(UTC))
    fill_database(
        tmp_path / "crcr.db",
        HistoryPlan(upstream=UPSTREAM, backends=backends, until=until_us, days=5, jobs=300),
    )
    env = relay_environment(tmp_path, CRCR_CLICKHOUSE_URL=f"chdb://{engine}")
    async with lock_folder(engine):
        refused = await run("history", "backfill", folder=tmp_path, env=env)
    assert (refused.code, refused.out) == (1, "")
    assert refused.errors.strip().splitlines() == [
        f"error: chDB's folder {engine} {HELD}",
        "hint: stop the relay first, or use a ClickHouse server",
    ]
    filled = await run("history", "backfill", "--json", folder=tmp_path, env=env)
    counted = {each["table"]: (each["here"], each["there"]) for each in json.loads(filled.out)}
    assert counted["crcr_jobs"][0] == counted["crcr_jobs"][1] > 200


async def test_only_a_running_owner_locks_a_folder(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    assert not is_locked(engine)
    async with lock_folder(engine):
        assert is_locked_by_other(engine)
        link = ClickHouseLink(ClickHouseLocation(f"chdb://{engine}"))
        with pytest.raises(OutsideHeld, match=HELD):
            await link.query("SELECT 1 AS one")
        await link.close()
    assert (engine / "status").is_file()  # left behind by the killed process
    assert not is_locked(engine)
