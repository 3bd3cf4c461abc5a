"""A real Chromium that loads pages of a real relay over HTTP; the relay's clock is still set by the test."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from github_sim.rest.server import Server
from support.running_relay import RunningRelay, running_relay

ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser")
"""The first installed one is used: the headless shell needs less than half of the CPU time for the same tests."""
ALLOWLIST = """
L1:
  - org/notified
L2:
  - org/reporter: [alice]
  - org/silent
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder run in one event loop, so that they can share one Chromium."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    program = next(filter(None, map(which, PROGRAMS)), None)
    if program is None:
        pytest.fail(f"Chromium is missing: `make test` installs it, or install the package {PROGRAMS[0]}")
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield running
        await running.close()


@pytest_asyncio.fixture(loop_scope="session")
async def browser(chromium: Browser) -> AsyncIterator[Browser]:
    """A Chromium without pages, cookies or storage: each test opens its own contexts."""
    yield chromium
    for context in chromium.contexts:
        await context.close()


class Site:
    def __init__(self, relay: RunningRelay, url: str, page: Page) -> None:
        self.relay = relay
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
async def open_site(
    folder: Path,
    browser: Browser,
    *,
    javascript: bool = True,
    allowlist: str | Mapping[str, str] = ALLOWLIST,
    downstreams: tuple[str, ...] = ("org/notified", "org/reporter", "org/silent"),
    **more: str,
) -> AsyncIterator[Site]:
    async with running_relay(folder, allowlist, downstreams=downstreams, **more) as relay:  # type: ignore[arg-type]
        server = Server(relay.app, "127.0.0.1", 0)
        await server.start()
        context = await browser.new_context(java_script_enabled=javascript)
        try:
            yield Site(relay, server.url, await context.new_page())
        finally:
            await context.close()
            relay.services.closing.set()
            await server.stop()


class Wire:
    """A TCP proxy to a site that can stall: the connections stay open and no data passes."""

    def __init__(self, url: str) -> None:
        self._far = urlsplit(url)
        self._passing = asyncio.Event()
        self._passing.set()
        self._ends: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self.url: str

    def hold(self) -> None:
        self._passing.clear()

    def let_go(self) -> None:
        self._passing.set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._joined, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for end in self._ends:
            end.close()
        await asyncio.gather(*(end.wait_closed() for end in self._ends), return_exceptions=True)

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = await asyncio.open_connection(self._far.hostname, self._far.port)
        self._ends += [writer, far[1]]
        for source, sink in ((reader, far[1]), (far[0], writer)):
            pump = asyncio.create_task(self._pass_on(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                await self._passing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass  # when one side is closed, close the other
        sink.close()


@asynccontextmanager
async def wire(url: str) -> AsyncIterator[Wire]:
    one = Wire(url)
    await one.open()
    try:
        yield one
    finally:
        await one.close()
