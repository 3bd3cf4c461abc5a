"""The documentation site in Chromium, as the relay serves it: within its security policy, by keyboard, without JavaScript."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page
from starlette.applications import Starlette

from browser.test_accessibility import add_axe, violations
from crcr.show.help import docs_site
from crcr.show.http.response_headers import wrap_app
from github_sim.rest.server import Server
from support.deploy.built_site import built_site

__all__ = ["built_site"]

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(loop_scope="session")
async def address(built_site: Path) -> AsyncIterator[str]:
    app = Starlette(routes=docs_site.routes(built_site))
    server = Server(wrap_app(app, public_url="http://127.0.0.1", is_public=True), "127.0.0.1", 0)
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop()


@asynccontextmanager
async def open_docs(browser: Browser, address: str, path: str = "", **options: Any) -> AsyncIterator[Page]:
    """A page of the site; it must neither violate its policy nor load anything from another origin."""
    context = await browser.new_context(**options)
    page, troubles = await context.new_page(), []
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda sent: None if sent.url.startswith(address) else troubles.append(sent.url))
    await page.goto(f"{address}/docs/{path}")
    yield page
    assert troubles == []
    await context.close()


async def test_the_search_finds_a_task_by_keyboard_alone(browser: Browser, address: str) -> None:
    async with open_docs(browser, address) as page:
        await page.wait_for_load_state("networkidle")  # the search is ready once its index is loaded
        await page.keyboard.press("/")
        await page.keyboard.type("rotate webhook secret")
        await page.get_by_text(re.compile(r"^\d+ results?$")).wait_for()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/docs/tasks/rotate-webhook-secret/**")
        await page.get_by_role("heading", name="Rotate the webhook secret").first.wait_for()


async def test_the_site_can_be_read_without_javascript(browser: Browser, address: str) -> None:
    options: dict[str, Any] = {"java_script_enabled": False, "viewport": {"width": 390, "height": 800}}
    async with open_docs(browser, address, **options) as page:
        await page.get_by_role("link", name="Waive a failure").first.click()
        await page.wait_for_url("**/docs/tasks/waive-failure/")
        await page.get_by_role("heading", name="Waive a failure").wait_for()
        assert await page.locator("article li").count() == 3


@pytest.mark.parametrize(
    ("scheme", "width", "path"),
    [("light", 1440, "tasks/blocked-pull-request/"), ("dark", 390, ""), ("light", 390, "reference/metrics/")],
)
async def test_a_page_of_the_site_has_no_serious_violations_and_fits_the_screen(
    browser: Browser, address: str, scheme: str, width: int, path: str
) -> None:
    options: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
    async with open_docs(browser, address, path, **options) as page:
        await add_axe(page)
        # Chromium and Firefox let the keyboard scroll a table, which the theme's frames rely on.
        serious = [
            violation
            for violation in await violations(page)
            if "scrollable-region-focusable" not in violation
        ]
        assert serious == []
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
