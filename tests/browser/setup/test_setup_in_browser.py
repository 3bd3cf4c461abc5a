"""The page of `crcr setup` in Chromium: one click goes through GitHub's form and back, within the page's own policy."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser

from crcr.cli.setup.new_app import GitHubAddresses, convert_code, find_ids, install_url
from crcr.cli.setup.redirect_server import RedirectServer
from crcr.decide.github.repository_setup import app_manifest
from github_sim.github import GitHub
from github_sim.rest.server import serve
from support.running_relay import UPSTREAM


@pytest_asyncio.fixture(loop_scope="session")
async def github() -> AsyncIterator[GitHub]:
    async with GitHub(seed=7) as simulator, serve(simulator):
        simulator.create_repository(UPSTREAM, installed=False)
        yield simulator
        simulator.finish()


def open_server(github: GitHub) -> RedirectServer:
    def build(redirect_url: str) -> dict[str, object]:
        return app_manifest(name="relay", public_url="http://127.0.0.1:9", redirect_url=redirect_url)

    return RedirectServer(GitHubAddresses.from_web_url(github.base_url).form(None), 0, build_manifest=build)


async def test_one_click_creates_and_installs_the_app(browser: Browser, github: GitHub) -> None:
    addresses = GitHubAddresses.from_web_url(github.base_url)
    with open_server(github) as server:
        context = await browser.new_context(viewport={"width": 390, "height": 800})
        page = await context.new_page()
        troubles: list[str] = []
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        await page.goto(server.address)
        page_width = await page.evaluate("document.documentElement.scrollWidth")
        click = asyncio.create_task(page.get_by_role("button").click())
        code = await asyncio.to_thread(server.wait_for_code, 20)
        assert code is not None
        app = await asyncio.to_thread(convert_code, code, addresses, None)
        ids = await asyncio.to_thread(find_ids, UPSTREAM, addresses)
        assert app.page is not None
        server.finish(install_url(app.page, ids))
        await click
        await page.wait_for_url(f"{github.base_url}/**")
        assert UPSTREAM in await page.inner_text("main")
    assert github.world.installation_of(github.repository(UPSTREAM)) is not None
    assert (page_width <= 390, troubles) == (True, [])
