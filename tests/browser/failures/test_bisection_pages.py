"""Bisections in a real browser: a running one updates itself, and its diagram fits every width, in both colour schemes."""

from pathlib import Path

from playwright.async_api import Browser, expect

from browser.conftest import open_site
from browser.test_accessibility import find_page_problems
from support.downstream.callbacks import BACKEND, workflow_with_jobs
from support.failures.bisection import BISECTED, broken_base
from support.sign_in import ADMIN, TOKENS

WIDTHS = (390, 1024, 1440)
TOO_WIDE = "document.documentElement.scrollWidth - innerWidth"


async def test_a_running_bisection_updates_itself(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=BISECTED, downstreams=(BACKEND,)) as site:
        site.relay.github.repository(BACKEND).workflows = list(workflow_with_jobs("test"))
        base = await broken_base(site.relay, commits=6, culprit=4)
        number = await base.start()
        page = site.page
        await page.goto(f"{site.url}/crcr/bisections/{number}")
        cells, runs = page.locator(".range-frame > .range > span"), page.locator("#scroll-runs tbody tr")
        await expect(cells).to_have_count(7)
        await expect(page.locator("#finding")).to_contain_text("Commits left: 6 of 6")
        await expect(runs).to_have_count(1)
        await page.locator("#commits summary").click()
        await base.answer()
        await expect(runs).to_have_count(2)
        await expect(cells.last).to_have_text("X")
        await base.finish(number)
        await expect(page.locator("#finding")).to_contain_text(f"{base.commits[4][:10]} broke it")
        await expect(page.locator(".range-frame > .range > .culprit")).to_have_count(1)
        await expect(page.locator("#commits table")).to_be_visible()
        assert site.troubles == []


async def test_the_pages_fit_a_phone_and_have_no_serious_violation(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=BISECTED, downstreams=(BACKEND,)) as site:
        site.relay.github.repository(BACKEND).workflows = list(workflow_with_jobs("test"))
        page = site.page
        await page.goto(f"{site.url}/crcr/bisections")
        await expect(page.get_by_role("heading", name="No bisection yet")).to_be_visible()
        assert await find_page_problems(page) == []
        base = await broken_base(site.relay, commits=130, culprit=77)
        number = await base.start()
        for _ in range(3):
            await base.answer()
        for path in ("", f"/{number}"):
            await page.goto(f"{site.url}/crcr/bisections{path}")
            assert await find_page_problems(page) == []
        await base.finish(number)
        await page.locator("#commits summary").click()
        await expect(page.locator(".range-frame .culprit").first).to_be_visible()
        assert await find_page_problems(page) == []
        assert site.troubles == []


async def test_an_administrator_starts_and_stops_a_bisection_by_buttons(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=BISECTED, downstreams=(BACKEND,), **TOKENS) as site:
        site.relay.github.repository(BACKEND).workflows = list(workflow_with_jobs("test"))
        await broken_base(site.relay, commits=4, culprit=2)
        page = site.page
        await page.goto(f"{site.url}/crcr/login")
        await page.get_by_label("Token").fill(ADMIN)
        await page.get_by_role("button", name="Sign in").click()
        await page.goto(f"{site.url}/crcr/{BACKEND}?kind=push")
        await page.get_by_role("button", name="Bisect").click()
        await expect(page.locator("#notice")).to_contain_text("Bisection 1 has begun.")
        await page.get_by_role("link", name="bisection 1").click()
        await page.locator("summary", has_text="Stop").click()
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator("#finding")).to_contain_text("stopped by ann")
        await expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        assert site.troubles == []
