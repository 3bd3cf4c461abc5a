"""A test run that is killed leaves no service and no folder behind."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from support.paths import ROOT
from support.replicas import wait_until

SERVICES = {
    "redis": "from support.services.redis import RedisServer as Service",
    "postgresql": "from support.services.postgres import Cluster as Service",
}


@pytest.mark.parametrize("service", SERVICES)
async def test_services_end_with_a_killed_test_process(service: str) -> None:
    code = f"{SERVICES[service]}; made = Service.make(); print(made.folder, flush=True); input()"
    paths = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        env={**os.environ, "PYTHONPATH": paths},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert run.stdout is not None
    folder = Path((await run.stdout.readline()).decode().strip())
    assert any_process_in(folder)
    run.kill()
    await run.communicate()
    await wait_until(lambda: not folder.exists() and not any_process_in(folder))


def any_process_in(folder: Path) -> bool:
    """Whether a process has the folder as its working directory, even after the folder was removed."""
    return any(_target(link).startswith(str(folder)) for link in Path("/proc").glob("[0-9]*/cwd"))


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # it has ended
        return ""
