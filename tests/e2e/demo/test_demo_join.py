"""A repository of one's own takes part in the running demo: generated files, really run, seen on the relay's pages."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.process import crcr, free_port

pytestmark = pytest.mark.slow
NO_NETWORK = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")


def environ(tmp_path: Path) -> dict[str, str]:
    for name in ("temporary", "cache"):
        (tmp_path / name).mkdir()
    places = {"TMPDIR": str(tmp_path / "temporary"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return {**places, "XDG_RUNTIME_DIR": "", **NO_NETWORK}


def empty(folder: Path) -> bool:
    return [path for path in folder.rglob("*") if path.is_file()] == []


async def succeeded(words: tuple[str, ...], folder: Path, env: dict[str, str]) -> str:
    async with crcr(*words, folder=folder, environ=env) as command:
        said, errors = await command.process.communicate()
        assert command.process.returncode == 0, (said, errors)
        return said.decode()


async def first_result(relay: str, name: str) -> dict[str, Any]:
    async with asyncio.timeout(90), httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as http:
        while True:
            summary = (await http.get(f"{relay}/api/v1/summary")).raise_for_status().json()
            for backend in summary["backends"]:
                found: dict[str, Any] = backend
                if backend["name"] == name and backend["figures"]["last_result"]:
                    return found
            await asyncio.sleep(0.2)


async def test_from_an_empty_folder_to_a_result_on_the_dashboard(tmp_path: Path) -> None:
    env, port, github_port = environ(tmp_path), free_port(), free_port()
    relay, github = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{github_port}"
    mine = tmp_path / "my-backend"
    mine.mkdir()
    started = ("demo", "--port", str(port), "--github-port", str(github_port), "--speed", "2")
    async with crcr(*started, folder=tmp_path, environ=env) as demo:
        await demo.wait_for_line("to stop")
        assert f"{relay}/crcr/onboarding" in "".join(demo.lines)
        told = ("--relay", relay, "--upstream", "tensorium/tensorium", "--audience", "crcr-demo")
        asked = (*told, "--repo", "me/my-backend", "--command", "true", "--yes")
        await succeeded(("init", *asked), mine, env)
        said = await succeeded(("demo-join", "me/my-backend", "--github", github), mine, env)
        assert ".github/workflows/crcr.yml" in said
        assert f"{relay}/crcr/me/my-backend" in said
        result = await first_result(relay, "me/my-backend")
        assert result["figures"]["last_result"]["job_name"] == "build"
        assert await demo.stop() == 0
        assert await demo.errors() == ""
    assert empty(tmp_path / "temporary")
    assert empty(tmp_path / "cache")


async def first_trial(relay: str) -> dict[str, Any]:
    """What the sandbox's one job came to, once it is over."""
    async with asyncio.timeout(60), httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as http:
        while True:
            jobs = (await http.get(f"{relay}/api/v1/sandbox")).raise_for_status().json()["jobs"]
            for job in jobs:
                if job["state"] == "completed":
                    found: dict[str, Any] = job
                    return found
            await asyncio.sleep(0.2)


async def test_one_on_no_allowlist_finds_its_report_in_the_sandbox(tmp_path: Path) -> None:
    env, port, github_port = environ(tmp_path), free_port(), free_port()
    relay, github = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{github_port}"
    mine = tmp_path / "newcomer"
    mine.mkdir()
    started = ("demo", "--port", str(port), "--github-port", str(github_port))
    join = ("demo-join", "me/newcomer", "--unlisted", "--github", github)
    async with crcr(*started, folder=tmp_path, environ=env) as demo:
        await demo.wait_for_line("to stop")
        async with crcr(*join, folder=mine, environ=env) as early:
            errors = await early.errors()
            assert await early.wait() == 1
        assert f"crcr init --relay {relay} --repo me/newcomer" in errors
        await succeeded(("init", "--relay", relay, "--repo", "me/newcomer", "--yes"), mine, env)
        said = await succeeded(join, mine, env)
        assert f"{relay}/crcr/sandbox" in said
        job = await first_trial(relay)
        assert (job["job_name"], job["event_type"], job["conclusion"]) == ("build", "crcr_test", "skipped")
        assert await demo.stop() == 0
        assert await demo.errors() == ""


@pytest.mark.parametrize(
    ("address", "words"),
    [("http://127.0.0.1:9", "demo-9.key"), ("https://github.example:443", "is not a demo on this machine")],
)
async def test_without_a_demo_it_says_what_to_do(tmp_path: Path, address: str, words: str) -> None:
    join = ("demo-join", "me/my-backend", "--github", address)
    async with crcr(*join, folder=tmp_path, environ=environ(tmp_path)) as command:
        errors = await command.errors()
        assert await command.wait() == 1
    assert words in errors
    assert "hint:" in errors
