"""A job's details over its page: content does not move, keys step through failures; failing columns, days, no JavaScript."""

from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, expect

from browser.test_accessibility import find_page_problems
from browser.test_backend_page import job_from_url, stored_site
from crcr.decide.commands.grammar import RetryCommand, parse_commands
from crcr.decide.model import RepoName
from support.data.store_rows import StoreRows

NAMES = (*(f"build on {first}{second}" for first in "abcdefgh" for second in "qrstuvwx"), "lint")
SHARDS = tuple(f"test ({number}, 15)" for number in range(1, 16))
FAILED = {(3, "build on hx"), (3, SHARDS[4]), (3, SHARDS[9]), (2, "lint")}
"""Pull request and job; those of one event in the order of the page."""
ELEMENT_POSITIONS = """[...document.querySelectorAll("main > *:not(#panel), #matrix-table tr > *")].map(
    each => { const {x, y, width} = each.getBoundingClientRect(); return [x, y, width].map(Math.round).join() })"""


def fill(store: StoreRows, pulls: int = 6) -> None:
    """Eighty jobs on each pull request; a few failed."""
    store.sum_up()
    for number in range(1, pulls + 1):
        delivery = store.pull(number, title=f"change {number} " + "of many words " * 8)
        sha = str(number).ljust(40, "0")
        store.dispatch(delivery, number=number, head_sha=sha, hours_ago=24 * (pulls - number) + 1)
        for name in (*NAMES, *SHARDS):
            conclusion = "failure" if (number, name) in FAILED else "success"
            store.job(delivery, conclusion, job_name=name, number=number, head_sha=sha, hours_ago=1)
            if conclusion == "failure":
                message = f"RuntimeError: no kernel for {name.partition(' (')[0]}"
                store.failure(delivery, "good/backend", message, job_name=name, number=number)
    store.sum_up()


async def open_page(page: Page, url: str) -> None:
    await page.goto(url)
    await expect(page.locator("#matrix-table")).to_be_visible()


async def tab_through(page: Page) -> None:
    """Tab through the panel, forwards and backwards; the focus never leaves it."""
    stops = await page.locator("#panel :is(a[href], button:visible, input, pre)").count()
    assert stops > 10
    for key in ("Tab", "Shift+Tab"):
        for _ in range(stops + 2):
            await page.keyboard.press(key)
            assert await page.evaluate("Boolean(document.activeElement.closest('#panel'))"), key


@pytest.mark.timeout(300)
async def test_a_job_panel_opens_over_the_page_without_moving_its_content(
    tmp_path: Path, browser: Browser
) -> None:
    async with stored_site(tmp_path, browser) as (store, url, page):
        fill(store)
        for width in (1440, 1024, 390):
            await page.set_viewport_size({"width": width, "height": 800})
            await open_page(page, url)
            cell = page.locator("#matrix-table td.bad > a:not([data-in-place])").first
            await cell.focus()
            before = await page.evaluate(ELEMENT_POSITIONS)
            await page.keyboard.press("Enter")
            panel = page.locator("#panel")
            await expect(panel).to_be_focused()
            assert await panel.get_attribute("role") == "dialog"
            assert await page.evaluate(ELEMENT_POSITIONS) == before
            if width == 1440:
                await tab_through(page)
            await page.keyboard.press("Escape")
            await expect(panel).to_have_count(0)
            await expect(cell).to_be_focused()
            assert await page.evaluate(ELEMENT_POSITIONS) == before
        await page.goto(f"{url}{await cell.get_attribute('href')}")
        assert await find_page_problems(page) == []


async def test_keys_step_through_failures_and_copy_buttons_work(tmp_path: Path, browser: Browser) -> None:
    async with stored_site(tmp_path, browser, permissions=["clipboard-read", "clipboard-write"]) as (
        store,
        url,
        page,
    ):
        fill(store)
        await open_page(page, url)
        title, position = page.locator("#panel-title"), page.locator("#panel-position")
        # The columns that failed last come first; collapsed shards include their failed jobs.
        await page.locator("#matrix-table tbody td > a").first.focus()
        for key, name, expected_position in (
            ("j", "build on hx", "1 of 4"),
            ("j", SHARDS[4], "2 of 4"),
            ("ArrowRight", SHARDS[9], "3 of 4"),
            ("j", "lint", "4 of 4"),
            ("j", "lint", "4 of 4"),
            ("k", SHARDS[9], "3 of 4"),
            ("ArrowLeft", SHARDS[4], "2 of 4"),
        ):
            await page.keyboard.press(key)
            await expect(title).to_have_text(name)
            await expect(position).to_have_text(expected_position)
        await page.get_by_role("button", name="Previous failure").click()
        await expect(title).to_have_text("build on hx")
        await expect(page.get_by_role("button", name="Previous failure")).to_be_disabled()
        await page.get_by_role("button", name="Copy command").click()
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert parse_commands(copied) == (RetryCommand(RepoName("Good/Backend"), "300000000000"),)
        await page.get_by_role("button", name="Copy link").click()
        short_path = urlsplit(await page.evaluate("navigator.clipboard.readText()")).path
        assert len(short_path) < 30
        await page.go_back()
        await expect(title).to_have_count(0)
        page_url = urlsplit(url)
        await page.goto(f"{page_url.scheme}://{page_url.netloc}{short_path}")
        await expect(title).to_have_text("build on hx")
        assert job_from_url(page.url) is not None
        await expect(page.locator("#panel-results li")).to_have_count(6)

        await page.goto(f"{page_url.scheme}://{page_url.netloc}/crcr/pr/3")
        await page.locator(".job-line a[data-panel]", has_text="build on hx").first.click()
        await expect(position).to_have_text("1 of 3")
        await page.keyboard.press("j")
        await expect(position).to_have_text("2 of 3")


async def test_failing_jobs_and_one_day_can_be_selected_in_place(tmp_path: Path, browser: Browser) -> None:
    async with stored_site(tmp_path, browser) as (store, url, page):
        fill(store)
        await open_page(page, url)
        heads, rows = page.locator("#matrix-table thead .job"), page.locator("#matrix-table tbody tr")
        await expect(heads.first).to_have_text("build on hx")
        bad = page.locator("#matrix-table td.bad > a:not([data-in-place])").first
        assert "build on hx: failure" in (await bad.get_attribute("title") or "")
        assert "RuntimeError: no kernel for build on hx" in (await bad.get_attribute("title") or "")
        await expect(page.locator("#failures .cause")).to_have_count(3)
        await page.get_by_role("switch", name="failing jobs first").click()
        await expect(heads.first).to_have_text("build on aq")
        await page.get_by_role("switch", name="only failing jobs").click()
        await expect(heads).to_have_count(3)
        await expect(rows).to_have_count(6)

        hits = page.locator("figure").filter(has_text="Pass rate").locator(".hit")
        day = (store.clock.now() - timedelta(hours=24 * 3 + 1)).date()
        days_ago = (store.clock.now().date() - day).days
        await hits.nth(await hits.count() - 1 - days_ago).click()
        await expect(rows).to_have_count(1)
        await expect(page.locator("#matrix-table .what > a").first).to_have_text("#3")
        assert f"day={day}" in page.url
        assert "failing=1" in page.url
        await page.get_by_role("link", name="Show all days").click()
        await expect(rows).to_have_count(6)
        assert "day=" not in page.url


async def test_without_javascript_the_job_details_are_a_section_of_the_page(
    tmp_path: Path, browser: Browser
) -> None:
    async with stored_site(tmp_path, browser, java_script_enabled=False) as (store, url, page):
        fill(store)
        await open_page(page, url)
        await page.locator("#matrix-table td.bad > a:not([data-in-place])").first.click()
        panel = page.locator("#panel")
        await expect(panel).to_contain_text("build on hx")
        heading = await page.locator("h1").bounding_box()
        section = await panel.bounding_box()
        assert section is not None
        assert heading is not None
        assert section["y"] + section["height"] <= heading["y"], "nothing lies under it"
        assert await panel.locator("button:visible").count() == 0
        assert await panel.get_attribute("role") is None
        await expect(page.locator("#panel-retry")).to_have_value("/crcr retry Good/Backend at 300000000000")
        await page.locator("#panel-results li a").first.click()
        await expect(panel).to_contain_text("build on hx")
        await page.locator("#panel-close").click()
        await page.locator("figure").first.locator("summary").click()
        day = (store.clock.now() - timedelta(hours=24 * 3 + 1)).date()
        await page.locator("figure").first.locator(f"tbody a[href*='day={day}']").click()
        await expect(page.locator("#matrix-table tbody tr")).to_have_count(1)
        await page.get_by_role("link", name="Show all days").click()
        await expect(page.locator("#matrix-table tbody tr")).to_have_count(6)
