"""`crcr setup` against the simulated GitHub: one command and one click, repeated, interrupted, and attacked.

The browser is an HTTP client with cookies: it opens the page, and its click posts the page's form.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from github_sim.github import GitHub, Match
from github_sim.rest.server import serve
from support.process import CrcrProcess, crcr, free_port
from support.running_relay import UPSTREAM

pytestmark = pytest.mark.slow


class Form(HTMLParser):
    """The only form of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.action = ""
        self.fields: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.action = values["action"]
        elif tag == "input":
            self.fields[values["name"]] = values["value"]


def browser() -> httpx.AsyncClient:
    headers = {"Accept": "text/html"}
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(), headers=headers, follow_redirects=True, timeout=60
    )


async def click(client: httpx.AsyncClient, address: str) -> httpx.Response:
    form = Form((await client.get(address)).text)
    return await client.post(form.action, data=form.fields)


@dataclass(frozen=True)
class Place:
    """An empty folder, and a GitHub where the App does not exist yet."""

    folder: Path
    github: GitHub
    port: int

    @property
    def words(self) -> tuple[str, ...]:
        address = f"http://127.0.0.1:{self.port}"
        known = ("--upstream", UPSTREAM, "--public-url", address, "--port", str(self.port))
        return ("setup", *known, "--github-url", self.github.base_url, "--no-browser", "--timeout", "30s")

    @asynccontextmanager
    async def setup(self, *more: str) -> AsyncIterator[CrcrProcess]:
        async with crcr(*self.words, *more, folder=self.folder, environ={}) as process:
            yield process

    def mode(self, name: str) -> int:
        return (self.folder / name).stat().st_mode & 0o777


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with GitHub(seed=7) as github, serve(github):
        github.create_repository(UPSTREAM, installed=False)
        yield Place(tmp_path, github, free_port())
        github.finish()


async def page_address(process: CrcrProcess) -> str:
    return (await process.wait_for_line("http://127.0.0.1:")).strip()


async def test_one_command_and_one_click_end_with_a_doctor_that_is_all_green(place: Place) -> None:
    async with place.setup() as process, browser() as client:
        installed = await click(client, await page_address(process))
        code, out, errors = await process.finish()
    assert (code, "Traceback" in errors) == (0, False), out + errors
    assert "is installed on" in installed.text
    assert re.search(r"No problems: (\d+) of \1 checks passed", out), out
    assert f"http://127.0.0.1:{place.port}/github/webhook" in out
    assert {
        name: place.mode(name) for name in ("crcr.toml", "secrets", "secrets/app.pem", "secrets/webhook")
    } == {
        "crcr.toml": 0o600,
        "secrets": 0o700,
        "secrets/app.pem": 0o600,
        "secrets/webhook": 0o600,
    }
    assert not (place.folder / "secrets/new-app.json").exists()
    everything = out + errors + (place.folder / "crcr.toml").read_text()
    for secret in (place.github.webhook_secret, "PRIVATE KEY"):
        assert secret not in everything
