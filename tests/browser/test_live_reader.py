"""A live update keeps the reader's scroll position, filters and open details, also when the relay is unavailable."""

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route, expect

from browser.conftest import open_site
from github_sim.github import JobSpec, Workflow
from support.browser_pages import (
    BACKEND,
    LISTED,
    NAMES,
    live_indicator,
    load_page,
    open_pull_request,
    report_job,
    table_row,
)
from support.running_relay import UPSTREAM

WATCH_FLASHES = """
window.flashes = [];
new MutationObserver((changes) => {
  for (const { target, oldValue } of changes) {
    const fresh = target.classList.contains("fresh");
    if (fresh && !` ${oldValue ?? ""} `.includes(" fresh ")) window.flashes.push(target.className.replace(" fresh", ""));
  }
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["class"], attributeOldValue: true });
"""
TOP = "row => row.getBoundingClientRect().top"


@pytest.mark.parametrize("anchoring", ["auto", "none"], ids=["browser-anchors", "browser-does-not"])
async def test_new_rows_do_not_move_the_row_that_is_in_view(
    tmp_path: Path, browser: Browser, anchoring: str
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site, 20)
        page = site.page
        await page.set_viewport_size({"width": 1200, "height": 500})
        await load_page(page, f"{site.url}/crcr/deliveries")
        await page.evaluate("how => { document.documentElement.style.overflowAnchor = how; }", anchoring)
        rows = page.locator("table.log tbody tr")
        watched = page.locator(f"tr[data-key='{await rows.nth(12).get_attribute('data-key')}']")
        await watched.evaluate("row => scrollTo(0, row.getBoundingClientRect().top + scrollY - 60)")
        before = await watched.evaluate(TOP)
        for index in range(3):  # nothing is dispatched: the relay's health section appears above the rows
            site.relay.clock.advance(60)
            await site.relay.github.open_pr(UPSTREAM, title=f"Another one {index}")
        key = await watched.get_attribute("data-key") or ""
        await expect(rows.nth(15)).to_have_attribute("data-key", key)
        await expect(page.locator("#health section")).to_be_attached()
        assert abs(await watched.evaluate(TOP) - before) <= 1
        await site.relay.drain()
        await expect(page.locator("#health section")).not_to_be_attached()
        assert abs(await watched.evaluate(TOP) - before) <= 1

        await page.evaluate("scrollTo(0, 0)")
        newest = await rows.nth(0).get_attribute("data-key")
        await open_pull_request(site, 1, "The newest")
        await expect(rows.nth(1)).to_have_attribute("data-key", newest or "")
        assert await page.evaluate("scrollY") == 0
        assert site.troubles == []


async def test_a_scrolled_matrix_keeps_its_rows_in_view(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site, 20)
        page = site.page
        await page.set_viewport_size({"width": 1200, "height": 500})
        await load_page(page, f"{site.url}{BACKEND}")
        await page.locator("#scroll-matrix").evaluate(
            "frame => { frame.scrollTop = 200; frame.scrollIntoView(); }"
        )
        rows = page.locator("#matrix-table tbody tr")
        watched = page.locator(f"#{await rows.nth(8).get_attribute('id')}")
        before = await watched.evaluate(TOP)
        await open_pull_request(site, 3, "Another one")
        await expect(rows.nth(11)).to_have_id(await watched.get_attribute("id") or "")
        assert abs(await watched.evaluate(TOP) - before) <= 1
        assert site.troubles == []


@pytest.mark.parametrize("status", [None, 503])
async def test_a_failed_fragment_request_leaves_the_page_unchanged_and_is_retried(
    tmp_path: Path, browser: Browser, status: int | None
) -> None:
    async def fail(route: Route) -> None:
        await (route.abort() if status is None else route.fulfill(status=status, body="not now"))

    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        await report_job(site, "org/alpha", "failure")
        page = await load_page(site.page, f"{site.url}{BACKEND}")
        await page.route("**/*fragment=*", fail)
        cell = page.locator("#matrix-table td.bad > a")
        await cell.click()
        await expect(live_indicator(page)).to_have_text("could not be read, trying again")
        await expect(page).to_have_url(f"{site.url}{BACKEND}")
        await expect(cell).to_be_visible()
        await page.set_viewport_size({"width": 390, "height": 844})
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        await page.set_viewport_size({"width": 1280, "height": 720})
        await page.unroute("**/*fragment=*")
        await expect(page.locator("#panel-title")).to_have_text("build")
        await expect(live_indicator(page)).to_have_text("live")
        await page.keyboard.press("Escape")

        await page.route("**/*fragment=*", fail)
        await page.locator("#jobs th").get_by_role("link", name="Job", exact=True).click()
        await expect(live_indicator(page)).to_have_text("could not be read, trying again")
        await expect(cell).to_be_visible()
        await page.unroute("**/*fragment=*")
        await expect(page.locator("#jobs th[aria-sort]")).to_have_text("Job")
        await expect(live_indicator(page)).to_have_text("live")
        assert await page.evaluate("window.notReloaded") is True


async def test_a_panel_that_failed_to_load_is_not_shown_after_another_was_opened(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        await report_job(site, "org/alpha", "failure")
        await report_job(site, "org/alpha", "success", "test")
        page = await load_page(site.page, f"{site.url}{BACKEND}")
        await page.route("**/*fragment=panel*", lambda route: route.abort())
        await page.locator("#matrix-table td.bad > a").click()
        await expect(live_indicator(page)).to_have_text("could not be read, trying again")
        await page.unroute("**/*fragment=panel*")
        async with page.expect_request(lambda request: "fragment=panel" in request.url):
            await page.locator("#matrix-table td.ok > a").click()
        await expect(page.locator("#panel-title")).to_have_text("test")
        await expect(live_indicator(page)).to_have_text("live")


@pytest.mark.parametrize("selector", ["#matrix-table td.bad > a", "#jobs th a"])
async def test_a_fragment_answered_401_reloads_the_page_for_sign_in(
    tmp_path: Path, browser: Browser, selector: str
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        await report_job(site, "org/alpha", "failure")
        page = await load_page(site.page, f"{site.url}{BACKEND}")
        await page.route("**/*fragment=*", lambda route: route.fulfill(status=401, body="who are you?"))
        async with page.expect_event("load"):
            await page.locator(selector).first.click()
        assert await page.evaluate("window.notReloaded") is None


async def test_back_and_forward_restore_the_filter_even_while_its_field_has_focus(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        page = await load_page(site.page, f"{site.url}/crcr")
        field = page.locator("#filter")
        await page.get_by_role("link", name="Backend", exact=True).click()
        await expect(page).to_have_url(f"{site.url}/crcr?sort=name")
        await field.press_sequentially("alp")
        await expect(table_row(page, "org/beta")).to_have_count(0)
        await expect(page).to_have_url(f"{site.url}/crcr?sort=name&q=alp")
        await page.go_back()
        await expect(table_row(page, "org/beta")).to_be_visible()
        await expect(field).to_have_value("")
        await expect(field).to_be_focused()
        await page.go_forward()
        await expect(field).to_have_value("alp")
        await expect(table_row(page, "org/beta")).to_have_count(0)
        assert await page.evaluate("window.notReloaded") is True
        assert site.troubles == []


async def test_text_typed_during_a_page_load_is_kept(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        page = await load_page(site.page, f"{site.url}/crcr")
        field, typed = page.locator("#filter"), asyncio.Event()

        async def answer_later(route: Route) -> None:
            await typed.wait()
            await route.continue_()

        await page.route(re.compile("sort=name"), answer_later, times=1)
        await page.get_by_role("link", name="Backend", exact=True).click()
        await field.press_sequentially("alp")
        typed.set()
        await expect(table_row(page, "org/beta")).to_have_count(0)
        await expect(field).to_have_value("alp")
        assert site.troubles == []


async def test_export_links_follow_the_filter_in_the_url(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        page = await load_page(site.page, f"{site.url}{BACKEND}")
        formats = page.locator("#formats a")
        plain = await formats.first.get_attribute("href")
        assert "q=" not in (plain or "q=")
        await page.locator("#filter-q").fill("operator")
        for link in await formats.all():
            await expect(link).to_have_attribute("href", re.compile(r"[?&]q=operator"))
        await page.locator("#matrix-filters").get_by_role("link", name="Clear the filters").click()
        await expect(formats.first).to_have_attribute("href", plain or "")
        assert site.troubles == []


async def test_only_a_changed_status_flashes_and_at_most_once_in_a_few_seconds(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        jobs = tuple(JobSpec(f"job {number}") for number in range(1, 6))
        site.relay.github.repository("org/alpha").workflows = [Workflow(jobs=jobs)]
        await open_pull_request(site)
        await report_job(site, "org/alpha", "success", "job 1")
        page = site.page
        await page.add_init_script(WATCH_FLASHES)
        await page.clock.install()
        await load_page(page, f"{site.url}/crcr")
        last, total = (
            table_row(page, "org/alpha").locator(".last"),
            table_row(page, "org/alpha").locator(".total"),
        )

        async def flashes(number: int, conclusion: str) -> list[str]:
            await page.evaluate("window.flashes = []")
            await report_job(site, "org/alpha", conclusion, f"job {number}")
            await expect(total).to_have_text(str(number))
            await expect(last).to_contain_text(conclusion)
            flashed: list[str] = await page.evaluate("window.flashes")
            return flashed

        assert await flashes(2, "success") == []
        assert await flashes(3, "failure") == ["last"]
        assert await flashes(4, "success") == []
        await page.clock.fast_forward(6_000)
        assert await flashes(5, "failure") == ["last"]
        assert site.troubles == []


async def test_changing_a_filter_keeps_the_job_panel_open(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        await report_job(site, "org/alpha", "failure")
        page = await load_page(site.page, f"{site.url}{BACKEND}")
        await page.locator("#matrix-table td.bad > a").click()
        title = page.locator("#panel-title")
        await expect(title).to_have_text("build")
        await page.locator("#filter-q").fill("nothing like it")
        await expect(page.locator("#matrix .empty")).to_be_visible()
        await expect(page).to_have_url(re.compile(r"[?&]job="))
        await expect(title).to_have_text("build")
        # The job's details cover the end of the filter row.
        await page.locator("#matrix-filters").get_by_role("link", name="Clear the filters").press("Enter")
        await expect(page.locator("#matrix-table td.bad > a")).to_have_attribute("aria-current", "true")
        await expect(page).to_have_url(re.compile(r"[?&]job="))
        await page.keyboard.press("Escape")
        await expect(title).to_have_count(0)
        await expect(page).to_have_url(f"{site.url}{BACKEND}")
        assert site.troubles == []
