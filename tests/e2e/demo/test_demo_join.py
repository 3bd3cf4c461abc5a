"""A user's own repository joins the running demo: generated files, really run, with a result on the relay's pages."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support.cli_command import CommandResult, run_in_process
from support.process import crcr, free_port

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
NO_NETWORK = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")


def environ(tmp_path: Path) -> dict[str, str]:
    for name in ("temporary", "cache"):
        (tmp_path / name).mkdir()
    places = {"TMPDIR": str(tmp_path / "temporary"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return {**places, "XDG_RUNTIME_DIR": "", **NO_NETWORK}


def empty(folder: Path) -> bool:
    return [path for path in folder.rglob("*") if path.is_file()] == []


@dataclass(frozen=True)
class Demo:
    relay: str
    github: str
    environ: dict[str, str]
    said: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Demo]:
    """One demo for all tests of the module; it ends without errors and leaves no files behind."""
    folder = tmp_path_factory.mktemp("demo")
    env, port, github_port = environ(folder), free_port(), free_port()
    words = ("demo", "--port", str(port), "--github-port", str(github_port), "--speed", "2", "--no-history")
    async with crcr(*words, folder=folder, environ=env) as running:
        await running.wait_for_line("to stop")
        addresses = (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{github_port}")
        yield Demo(*addresses, env, "".join(running.lines))
        assert await running.stop() == 0
        assert await running.errors() == ""
    assert empty(folder / "temporary")
    assert empty(folder / "cache")


async def succeed(*words: str, folder: Path, environ: dict[str, str]) -> str:
    """Run a command as a process."""
    async with crcr(*words, folder=folder, environ=environ) as command:
        code, output, errors = await command.finish()
        assert code == 0, (output, errors)
        return output


async def run_here(*words: str, folder: Path, environ: dict[str, str]) -> CommandResult:
    return await asyncio.to_thread(run_in_process, *words, folder=folder, environ=environ)


async def wait_for_result(relay: str, name: str) -> dict[str, Any]:
    async with asyncio.timeout(90), httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as http:
        while True:
            summary = (await http.get(f"{relay}/api/v1/summary")).raise_for_status().json()
            for backend in summary["backends"]:
                listed_backend: dict[str, Any] = backend
                if backend["name"] == name and backend["figures"]["last_result"]:
                    return listed_backend
            await asyncio.sleep(0.2)


async def test_an_empty_folder_becomes_a_result_on_the_dashboard(demo: Demo, tmp_path: Path) -> None:
    mine = tmp_path / "my-backend"
    mine.mkdir()
    assert f"{demo.relay}/crcr/onboarding" in demo.said
    relay_options = ("--relay", demo.relay, "--upstream", "tensorium/tensorium", "--audience", "crcr-demo")
    init_options = (*relay_options, "--repo", "me/my-backend", "--command", "true", "--yes")
    await succeed("init", *init_options, folder=mine, environ=demo.environ)
    join = ("demo-join", "me/my-backend", "--github", demo.github)
    joined = await succeed(*join, folder=mine, environ=demo.environ)
    assert ".github/workflows/crcr.yml" in joined
    assert f"{demo.relay}/crcr/me/my-backend" in joined
    result = await wait_for_result(demo.relay, "me/my-backend")
    assert result["figures"]["last_result"]["job_name"] == "build"


async def wait_for_trial(relay: str) -> dict[str, Any]:
    """The sandbox's only job, as soon as it is completed."""
    async with asyncio.timeout(60), httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as http:
        while True:
            jobs = (await http.get(f"{relay}/api/v1/sandbox")).raise_for_status().json()["jobs"]
            for job in jobs:
                if job["state"] == "completed":
                    completed: dict[str, Any] = job
                    return completed
            await asyncio.sleep(0.2)


async def test_an_unlisted_repository_finds_its_report_in_the_sandbox(demo: Demo, tmp_path: Path) -> None:
    mine = tmp_path / "newcomer"
    mine.mkdir()
    join = ("demo-join", "me/newcomer", "--unlisted", "--github", demo.github)
    early = await run_here(*join, folder=mine, environ=demo.environ)
    assert early.code == 1
    assert f"crcr init --relay {demo.relay} --repo me/newcomer" in early.errors
    init = ("init", "--relay", demo.relay, "--repo", "me/newcomer", "--yes")
    assert (await run_here(*init, folder=mine, environ=demo.environ)).code == 0
    joined = await run_here(*join, folder=mine, environ=demo.environ)
    assert joined.code == 0, joined
    assert f"{demo.relay}/crcr/sandbox" in joined.out
    job = await wait_for_trial(demo.relay)
    assert (job["job_name"], job["event_type"], job["conclusion"]) == ("build", "crcr_test", "skipped")


@pytest.mark.parametrize(
    ("address", "words"),
    [("http://127.0.0.1:9", "demo-9.key"), ("https://github.example:443", "is not a demo on this machine")],
)
async def test_joining_without_a_demo_is_an_error_with_a_hint(
    tmp_path: Path, address: str, words: str
) -> None:
    join = ("demo-join", "me/my-backend", "--github", address)
    refusal = await run_here(*join, folder=tmp_path, environ=environ(tmp_path))
    assert refusal.code == 1
    assert words in refusal.errors
    assert "hint:" in refusal.errors
