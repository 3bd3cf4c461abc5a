"""The log and the search as a person uses them: filters, pagination, keys, open rows that stay open, no JavaScript."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from browser.conftest import Site, open_site
from browser.test_accessibility import find_page_problems
from support.notices.events import tell_people
from support.running_relay import UPSTREAM
from support.sign_in import ADMIN, TOKENS


async def open_pulls(site: Site, count: int) -> None:
    for number in range(count):
        await site.relay.github.open_pr(UPSTREAM, title=f"Add operator {number}")
    await site.relay.drain()


async def test_filters_and_pagination_work_and_are_in_the_url(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser) as site:
        page = site.page
        await open_pulls(site, 27)
        await page.goto(f"{site.url}/crcr/deliveries")
        rows = page.locator("table.log tbody tr")
        await expect(rows).to_have_count(25)
        await page.get_by_role("link", name="Older").click()
        await expect(rows).to_have_count(2)
        await page.get_by_role("link", name="Back to the start").click()
        await expect(rows).to_have_count(25)

        await page.get_by_label("Pull request").fill("#3")
        await page.get_by_role("button", name="Filter").click()
        await expect(page).to_have_url(f"{site.url}/crcr/deliveries?event=&state=&number=%233&sha=")
        await expect(rows).to_have_count(1)
        await page.get_by_role("link", name="Clear").click()
        await expect(rows).to_have_count(25)
        assert site.troubles == []


async def test_an_open_row_stays_open_when_the_page_refreshes_itself(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser) as site:
        page = site.page
        await open_pulls(site, 1)
        await page.goto(f"{site.url}/crcr/deliveries")
        await expect(page.locator("#live")).to_contain_text("live")
        backend = page.locator("table.log").get_by_role("link", name="org/reporter")
        await expect(backend).to_be_hidden()
        await page.locator("details summary").first.click()
        await expect(backend).to_be_visible()
        await open_pulls(site, 1)
        await expect(page.locator("table.log tbody tr")).to_have_count(2)
        await expect(page.locator("details[open]")).to_have_count(1)
        await expect(page.locator("details[open]").get_by_role("link", name="org/reporter")).to_be_visible()
        assert site.troubles == []


async def test_a_slash_focuses_the_search_and_escape_leaves_it(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser) as site:
        page = site.page
        await open_pulls(site, 1)
        await page.goto(f"{site.url}/crcr/audit")
        search = page.locator("#find")
        await page.keyboard.press("/")
        await expect(search).to_be_focused()
        await expect(search).to_have_value("")
        await page.keyboard.press("Escape")
        await expect(search).not_to_be_focused()

        await page.get_by_label("Who").focus()
        await page.keyboard.press("/")
        await expect(page.get_by_label("Who")).to_have_value("/")
        await page.keyboard.press("?")
        await expect(page.locator("dialog")).to_have_count(0)

        await search.fill("#1")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{site.url}/crcr/pr/1")
        assert site.troubles == []


async def test_arrows_move_through_the_rows_of_a_list(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser) as site:
        page = site.page
        await open_pulls(site, 3)
        await page.goto(f"{site.url}/crcr/deliveries")
        rows = page.locator("table.log tbody tr")
        await rows.nth(0).get_by_role("link").first.focus()
        for key, row, link in (
            ("ArrowDown", 1, 0),
            ("ArrowRight", 1, 1),
            ("ArrowDown", 2, 1),
            ("ArrowDown", 2, 1),
            ("Home", 0, 1),
            ("ArrowLeft", 0, 0),
            ("End", 2, 0),
            ("ArrowUp", 1, 0),
        ):
            await page.keyboard.press(key)
            await expect(rows.nth(row).get_by_role("link").nth(link)).to_be_focused()
        assert site.troubles == []


async def test_a_question_mark_opens_the_list_of_keys(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser) as site:
        page = site.page
        await page.goto(f"{site.url}/crcr")
        await page.keyboard.press("?")
        keys = page.get_by_role("dialog", name="Keys")
        await expect(keys).to_contain_text("the row before or after")
        await page.keyboard.press("Escape")
        await expect(keys).to_be_hidden()
        await page.keyboard.press("?")
        await page.get_by_role("button", name="Close").click()
        await expect(keys).to_be_hidden()
        assert site.troubles == []


async def test_without_javascript_rows_open_and_filters_and_search_work(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, javascript=False) as site:
        page = site.page
        await open_pulls(site, 2)
        await page.goto(f"{site.url}/crcr/deliveries")
        await page.locator("details summary").first.click()
        await expect(page.locator("details[open]").get_by_role("link", name="org/reporter")).to_be_visible()
        await page.get_by_label("Event").select_option("push")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator("main")).to_contain_text("No matching deliveries")
        await page.locator("#find").fill("operator 1")
        await page.locator("#find").press("Enter")
        await page.get_by_role("link", name="#2", exact=True).click()
        await expect(page).to_have_url(f"{site.url}/crcr/pr/2")


@pytest.mark.parametrize("width", [390, 1024, 1440])
async def test_no_log_page_scrolls_horizontally(tmp_path: Path, browser: Browser, width: int) -> None:
    async with open_site(tmp_path, browser) as site:
        page = site.page
        await page.set_viewport_size({"width": width, "height": 900})
        await site.relay.github.open_pr(UPSTREAM, title="x" * 250, author="a-rather-long-login-of-somebody")
        await site.relay.drain()
        await page.goto(f"{site.url}/crcr/deliveries")
        first = await page.locator("table.log a").first.get_attribute("href")
        paths = (
            "/crcr/deliveries",
            "/crcr/deliveries?show=effects",
            "/crcr/failing",
            "/crcr/waivers",
            "/crcr/audit",
            "/crcr/search?q=xxxx",
        )
        for path in (*paths, first):
            await page.goto(f"{site.url}{path}")
            assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0, path


async def test_notices_appear_live_and_administrators_see_their_channels(
    tmp_path: Path, browser: Browser
) -> None:
    allowlist = "L2:\n  - org/reporter: {oncalls: [alice], channels: [issues]}\n"
    channels = '[{"name": "issues", "kind": "issue"}]'
    async with open_site(
        tmp_path,
        browser,
        allowlist=allowlist,
        downstreams=("org/reporter",),
        CRCR_CHANNELS=channels,
        **TOKENS,
    ) as site:
        page = site.page
        await page.goto(f"{site.url}/crcr/notices")
        await expect(page.get_by_role("heading", name="No notices yet")).to_be_visible()
        await expect(page.locator("#live")).to_contain_text("live")
        await tell_people(site.relay)
        rows = page.locator("table.log tbody tr")
        await expect(rows.first).to_be_visible()
        await expect(page.locator("table.log")).not_to_contain_text("issues")
        await page.goto(f"{site.url}/crcr/login")
        await page.get_by_label("Token").fill(ADMIN)
        await page.get_by_role("button", name="Sign in").click()
        await page.goto(f"{site.url}/crcr/notices")
        await expect(page.locator("table.log")).to_contain_text("the entry of org/reporter names it")
        assert await find_page_problems(page) == []
        assert site.troubles == []
