"""Back up and restore with the commands of docs/maintain.md, on relays that receive webhooks meanwhile."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from crcr.errors import NotPossible, StoreUnavailable
from crcr.record.store.sqlite.database import connect
from crcr.record.store.sqlite.file import copy_database
from github_sim.github import GitHub
from github_sim.rest.server import serve
from support.data.operator_database import OperatorShell, relay_environment
from support.process import crcr, free_port
from support.running_relay import UPSTREAM, environment
from support.services.postgres import binaries, cluster, drop_database, new_database, run_on
from test_docs import DOCS, blocks

STORES = ("sqlite", "postgresql")
ROLE = "plain_relay"
"""No superuser: from PostgreSQL 15 on it may create tables only in databases of its own."""


def documented(word: str) -> str:
    """The commands of the one block in docs/maintain.md that has a line with this beginning."""
    [block] = [body for body in blocks(DOCS / "maintain.md", "sh") if f"\n{word}" in f"\n{body}"]
    return block


def test_a_copy_is_one_private_file_with_all_committed_rows(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "crcr.db")) as writing:
        writing.execute("CREATE TABLE t (n)")
        writing.execute("INSERT INTO t VALUES (1)")
        writing.execute("BEGIN IMMEDIATE")
        writing.execute("INSERT INTO t VALUES (2)")
        copy_database(tmp_path / "crcr.db", tmp_path / "copy.db")
        writing.execute("COMMIT")
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("SELECT n FROM t").fetchall() == [(1,)]
    assert sorted(path.name for path in tmp_path.iterdir() if "copy" in path.name) == ["copy.db"]


def test_a_backup_overwrites_no_file_and_keeps_no_broken_copy(tmp_path: Path) -> None:
    (tmp_path / "there.db").write_text("precious")
    with closing(connect(tmp_path / "crcr.db")) as writing:
        writing.execute("CREATE TABLE t (n)")
        writing.executemany("INSERT INTO t VALUES (?)", [("x" * 3000,)] * 40)
        with pytest.raises(NotPossible, match=r"there\.db exists"):
            copy_database(tmp_path / "crcr.db", tmp_path / "there.db")
    with pytest.raises(NotPossible, match="cannot be written"):
        copy_database(tmp_path / "crcr.db", tmp_path / "nowhere" / "copy.db")
    broken = bytearray((tmp_path / "crcr.db").read_bytes())
    broken[4096 * 5 : 4096 * 30] = b"\xff" * 4096 * 25
    (tmp_path / "crcr.db").write_bytes(broken)
    with pytest.raises(StoreUnavailable, match=r"damaged|malformed"):
        copy_database(tmp_path / "crcr.db", tmp_path / "copy.db")
    assert sorted(path.name for path in tmp_path.glob("*copy*")) == []
    assert (tmp_path / "there.db").read_text() == "precious"


def test_with_postgresql_it_names_pg_dump(tmp_path: Path) -> None:
    shell = OperatorShell(tmp_path, relay_environment(tmp_path, CRCR_DATABASE_URL=new_database()))
    result = shell.crcr("backup", str(tmp_path / "copy.db"))
    assert (result.exit_code, "pg_dump" in result.stderr) == (1, True)


@dataclass
class Installation:
    """A relay with a store of one kind, driven by the documented commands."""

    kind: str
    folder: Path
    github: GitHub
    url: str
    restored_url: str = ""
    port: int = field(default_factory=free_port)

    @property
    def environ(self) -> dict[str, str]:
        return {
            **environment(self.folder, self.github, self.folder / "allowlist.yml"),
            "CRCR_PUBLIC_URL": f"http://127.0.0.1:{self.port}",
            "CRCR_DATABASE_URL": self.url,
            "CRCR_PORT": str(self.port),
        }

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[None]:
        async with crcr("serve", "--role", "intake", folder=self.folder, environ=self.environ) as process:
            await process.wait_for_line("crcr is listening on")
            yield
            assert await process.stop() == 0

    async def back_up(self) -> None:
        await self._run(documented("crcr backup" if self.kind == "sqlite" else "pg_dump"))

    async def restore(self) -> None:
        await self._run(documented("mv crcr.db*" if self.kind == "sqlite" else "pg_restore"))
        self.url = self.restored_url or self.url

    async def _run(self, commands: str) -> None:
        path = f"{Path(sys.executable).parent}:{binaries()}:{os.environ['PATH']}"
        more = {
            "PATH": path,
            "ADMIN_URL": cluster().admin_url,
            "RELAY_ROLE": ROLE,
            "RESTORED_NAME": self.restored_url.rpartition("/")[2],
            "RESTORED_URL": self.restored_url,
        }
        done = await asyncio.to_thread(
            subprocess.run,
            ["sh", "-euc", commands],
            cwd=self.folder,
            env={**self.environ, **more},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def guids(self) -> set[str]:
        sql = "SELECT guid FROM deliveries"
        if self.kind == "postgresql":
            return {row["guid"] for row in run_on(self.url, sql)}
        with closing(sqlite3.connect(self.folder / "crcr.db")) as store:
            assert store.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            return {guid for (guid,) in store.execute(sql)}


def _role_url(database: str) -> str:
    return cluster().url(database).replace("//crcr@", f"//{ROLE}@")


def _plain_database(name: str) -> str:
    """A database owned by an ordinary role; the URL is that role's."""
    run_on(cluster().admin_url, f"CREATE ROLE {ROLE} LOGIN")
    run_on(cluster().admin_url, f"CREATE DATABASE {name} OWNER {ROLE} TEMPLATE template0")
    return _role_url(name)


@asynccontextmanager
async def run_installation(kind: str, folder: Path) -> AsyncIterator[Installation]:
    (folder / "allowlist.yml").write_text("L1:\n  - org/told\n")
    async with GitHub(seed=7) as github, serve(github):
        github.create_repository(UPSTREAM)
        github.create_repository("org/told")
        url = f"sqlite:///{folder / 'crcr.db'}" if kind == "sqlite" else _plain_database("crcr_plain")
        installation = Installation(kind, folder, github, url)
        github.webhook_url = f"http://127.0.0.1:{installation.port}/github/webhook"
        if kind == "postgresql":
            installation.restored_url = _role_url("crcr_restored")
        yield installation
        if kind == "postgresql":
            drop_database(installation.restored_url)
            drop_database(url)
            run_on(cluster().admin_url, f"DROP ROLE {ROLE}")
        github.finish()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", STORES)
async def test_a_backup_under_load_is_complete_and_missing_webhooks_are_recovered(
    kind: str, tmp_path: Path
) -> None:
    async with run_installation(kind, tmp_path) as installation:
        async with installation.relay():
            stop = asyncio.Event()
            sending = [asyncio.create_task(_keep_opening(installation.github, stop)) for _ in range(3)]
            before = await _after(installation.github, 15)
            await installation.back_up()
            await _after(installation.github, len(installation.github.deliveries()) + 15)
            stop.set()
            await asyncio.gather(*sending)
        everything = {each.guid for each in installation.github.deliveries()}
        assert installation.guids() == everything
        await installation.restore()
        copied = installation.guids()
        assert before <= copied < everything
        async with installation.relay(), asyncio.timeout(90):
            while installation.guids() != everything:
                await asyncio.sleep(0.2)


async def _keep_opening(github: GitHub, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await github.open_pr(UPSTREAM)
        await asyncio.sleep(0.05)


async def _after(github: GitHub, many: int) -> set[str]:
    """Wait for this number of deliveries, and return those that were acknowledged."""
    while len(github.deliveries()) < many:
        await asyncio.sleep(0.05)
    return {each.guid for each in github.deliveries() if each.status_code == 202}
