"""Browser tests of live pages: open pull requests, report jobs, load a page, find its elements."""

from playwright.async_api import Locator, Page, expect

from browser.conftest import Site
from support.running_relay import UPSTREAM

LISTED = """
L2:
  - org/alpha
  - org/beta
  - org/gamma
"""
NAMES = ("org/alpha", "org/beta", "org/gamma")
BACKEND = "/crcr/org/alpha"


async def open_pull_request(site: Site, number: int = 1, title: str = "Add an operator") -> None:
    for index in range(number):
        site.relay.clock.advance(60)
        await site.relay.github.open_pr(UPSTREAM, title=f"{title} {index}")
    await site.relay.drain()


async def report_job(site: Site, name: str, conclusion: str, job: str = "build") -> None:
    run = site.relay.github.runs(name)[-1]
    await site.relay.github.start_job(run, job)
    await site.relay.github.complete_job(run, job, conclusion)


async def load_page(page: Page, url: str) -> Page:
    await page.goto(url)
    await expect(live_indicator(page)).to_have_text("live")
    await page.evaluate("window.notReloaded = true")
    return page


def live_indicator(page: Page) -> Locator:
    return page.locator("#live")


def table_row(page: Page, name: str) -> Locator:
    return page.locator(f"tr[data-key='{name}']")
