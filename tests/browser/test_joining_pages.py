"""Refused reports and the sandbox in a browser: live, by keyboard, without JavaScript, with escaped text."""

from pathlib import Path

from playwright.async_api import Browser, expect

from browser.conftest import open_site
from support.browser_pages import BACKEND, LISTED, NAMES, load_page, open_pull_request
from support.downstream.sandbox_callers import report_from_sandbox

EVIL = "<img src=x onerror=alert(1)>\u202e"


async def test_a_refused_report_appears_on_the_open_page(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        page = await load_page(site.page, f"{site.url}{BACKEND}")
        await expect(page.locator("#refusals")).to_have_count(0)
        run = site.relay.github.runs("org/alpha")[-1]
        await site.relay.github.report(run, "build", status="completed", name=EVIL)

        row = page.locator("#refusals tbody tr")
        await expect(row).to_have_count(1)
        await expect(row).to_contain_text("The job's start was never reported")
        await expect(row).to_contain_text("Next step: send in_progress")
        await expect(row).to_contain_text("<img src=x onerror=alert(1)>[U+202E]")
        await expect(page.locator("#refused-line")).to_contain_text("1 report refused")
        assert await page.evaluate("window.notReloaded")
        await row.get_by_role("link").click()
        await expect(page).to_have_url(f"{site.url}/crcr/deliveries/{run.delivery_id}")
        assert site.troubles == []


async def test_sandbox_reports_are_readable_without_javascript(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, javascript=False, CRCR_SANDBOX="on") as site:
        page = site.page
        await page.goto(f"{site.url}/crcr")
        await page.get_by_role("link", name="Sandbox").click()
        await expect(page.get_by_role("heading", name="No sandbox reports yet")).to_be_visible()
        await report_from_sandbox(site.relay, conclusion="failure", job_name=EVIL)
        await report_from_sandbox(site.relay, "quiet/place", private=True)
        await page.reload()

        await expect(page.locator("#sandbox-banner")).to_contain_text("do not count")
        rows = page.locator("table.tried tbody tr")
        await expect(rows).to_have_count(2)
        await expect(rows.filter(has_text="a private repository (id")).to_contain_text("running")
        own_row = rows.filter(has_text="new/comer")
        await expect(own_row).to_contain_text("<img src=x onerror=alert(1)>[U+202E]")
        await expect(own_row.locator("pre")).to_be_hidden()
        await own_row.locator("summary").focus()
        await page.keyboard.press("Enter")
        await expect(own_row.locator("pre")).to_have_text("AssertionError: 1.0 != 2.0")
        await own_row.get_by_role("link").click()
        await expect(rows).to_have_count(1)
        assert site.troubles == []
