"""A real Chromium looking at a real relay over HTTP; the clock behind the relay is still moved by hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which

import pytest
from playwright.async_api import Browser, Page, async_playwright

from crcr.sim.server import Server
from stage import Stage, stage

ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
ALLOWLIST = """
L1:
  - org/notified
L2:
  - org/reporter: [alice]
  - org/silent
"""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    chromium = which("chromium") or which("chromium-browser")
    if chromium is None:
        pytest.fail("Chromium is missing: `make test` installs it, or install the package chromium")
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        yield running
        await running.close()


class Site:
    def __init__(self, it: Stage, url: str, page: Page) -> None:
        self.it = it
        self.url = url
        self.page = page
        self.troubles: list[str] = []
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", lambda dialog: self.troubles.append(f"dialog: {dialog.message}"))

    def _note(self, kind: str, text: str) -> None:
        if kind == "error":
            self.troubles.append(text)


@asynccontextmanager
async def site(
    folder: Path,
    browser: Browser,
    *,
    javascript: bool = True,
    allowlist: str = ALLOWLIST,
    downstreams: tuple[str, ...] = ("org/notified", "org/reporter", "org/silent"),
) -> AsyncIterator[Site]:
    async with stage(folder, allowlist, downstreams=downstreams) as it:
        server = Server(it.app, "127.0.0.1", 0)
        await server.start()
        context = await browser.new_context(java_script_enabled=javascript)
        try:
            yield Site(it, server.url, await context.new_page())
        finally:
            await context.close()
            it.services.stopping.set()
            await server.stop()
