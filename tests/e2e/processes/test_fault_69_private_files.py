"""Fault 69: the relay's files are readable by its user only, with any umask."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from crcr.cli.doctor.relay.store import sqlite_findings
from crcr.record.migrations.run import migrate
from support.cli_command import run_in_process
from support.data.operator_database import relay_environment
from support.downstream.init_command import FLAGS, LOCAL_GIT, WORKFLOW, checkout
from support.process import crcr, free_port

pytestmark = pytest.mark.slow

STORE = ("crcr.db", "crcr.db-shm", "crcr.db-wal")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder: Path) -> list[str]:
    return [str(path) for path in (folder, *folder.rglob("*")) if mode(path) & 0o077]


async def test_fault_69_database_wal_backup_and_history_are_private(tmp_path: Path) -> None:
    history = tmp_path / "history"
    env = relay_environment(tmp_path, CRCR_PORT=str(free_port()), CRCR_CLICKHOUSE_URL=f"chdb://{history}")
    async with crcr("serve", folder=tmp_path, environ=env, umask=0) as relay:
        await relay.wait_for_line("crcr is listening on")
        assert {name: mode(tmp_path / name) for name in STORE} == dict.fromkeys(STORE, 0o600)
        async with crcr("backup", "copy.db", folder=tmp_path, environ=env, umask=0) as backup:
            assert await backup.wait() == 0
        assert await relay.stop() == 0
    assert mode(tmp_path / "copy.db") == 0o600
    assert list(history.iterdir())
    assert open_to_others(history) == []


async def test_fault_69_a_world_readable_database_is_made_private_and_group_access_is_kept(
    tmp_path: Path,
) -> None:
    """Files of an earlier release: the database and its WAL, open in another process."""
    env = relay_environment(tmp_path)
    migrate(tmp_path / "crcr.db")
    with closing(sqlite3.connect(tmp_path / "crcr.db")) as other:
        other.execute("CREATE TABLE of_another_process (n)")
        for mode_before, mode_after in ((0o644, 0o600), (0o666, 0o600), (0o640, 0o640), (0o600, 0o600)):
            for name in STORE:
                (tmp_path / name).chmod(mode_before)
            warned = "file_mode" in {each.name for each in sqlite_findings(tmp_path / "crcr.db")}
            assert warned == (mode_before != mode_after)
            if mode_before == 0o644:
                async with crcr("migrate", folder=tmp_path, environ=env, umask=0) as command:
                    assert await command.wait() == 0
            else:
                with umask(0):
                    done = await asyncio.to_thread(run_in_process, "migrate", folder=tmp_path, environ=env)
                assert done.code == 0
            assert {name: mode(tmp_path / name) for name in STORE} == dict.fromkeys(STORE, mode_after)


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


async def test_fault_69_files_for_a_repository_follow_the_users_umask(tmp_path: Path) -> None:
    repository = checkout(tmp_path / "backend")
    async with crcr("init", *FLAGS, "--yes", folder=repository, environ=LOCAL_GIT, umask=0o022) as init:
        assert await init.wait() == 0
    assert mode(repository / WORKFLOW) == 0o644
    assert mode((repository / WORKFLOW).parent) == 0o755
