"""Suggestions below the search field as people use them: by keyboard, by mouse, without JavaScript; checked by axe-core."""

from pathlib import Path

from playwright.async_api import Browser, Page, Route, expect

from browser.conftest import Site, open_site
from browser.test_accessibility import add_axe, violations
from support.running_relay import UPSTREAM


async def open_with_pulls(site: Site) -> Page:
    for title in ("Fuse the attention kernels", "Fuse <b>nothing</b>"):
        await site.relay.github.open_pr(UPSTREAM, title=title)
    await site.relay.drain()
    await site.page.goto(f"{site.url}/crcr")
    return site.page


async def test_suggestions_are_a_combobox_that_works_by_keyboard(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser) as site:
        page = await open_with_pulls(site)
        field = page.get_by_role("combobox", name="Search")
        options = page.get_by_role("option")
        await page.keyboard.press("/")
        await field.press_sequentially("fuse")
        await expect(options).to_have_count(2)
        await expect(field).to_have_attribute("aria-expanded", "true")
        await expect(options.first).to_contain_text("Fuse <b>nothing</b>")
        await add_axe(page)
        assert await violations(page) == []
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("ArrowDown")
        await expect(options.nth(1)).to_have_attribute("aria-selected", "true")
        await expect(field).to_have_attribute("aria-activedescendant", "find-option-1")
        await page.keyboard.press("ArrowDown")
        await expect(field).not_to_have_attribute("aria-activedescendant", "find-option-1")
        await page.keyboard.press("Escape")
        await expect(options).to_have_count(0)
        await expect(field).to_be_focused()
        await expect(field).to_have_value("fuse")
        await page.keyboard.press("ArrowDown")
        await expect(options).to_have_count(2)
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{site.url}/crcr/pr/1")
        assert site.troubles == []


async def test_enter_without_a_selection_searches_and_a_click_opens_the_suggestion(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser) as site:
        page = await open_with_pulls(site)
        field = page.locator("#find")
        await field.press_sequentially("repor")
        await expect(page.get_by_role("option")).to_have_count(1)
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{site.url}/crcr/search?q=repor")
        await field.fill("attention")
        await page.get_by_role("option").click()
        await expect(page).to_have_url(f"{site.url}/crcr/pr/1")
        assert site.troubles == []


async def test_a_new_search_aborts_the_request_in_flight_and_its_answer_is_not_shown(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser) as site:
        page = await open_with_pulls(site)
        held: list[Route] = []

        async def hold(route: Route) -> None:
            if "q=fuse" in route.request.url:
                held.append(route)
            else:
                await route.continue_()

        await page.route("**/api/v1/search/suggest*", hold)
        failed: list[str] = []
        page.on("requestfailed", lambda request: failed.append(request.url))
        field = page.locator("#find")
        await field.fill("fuse")
        async with page.expect_event("requestfailed"):
            await page.wait_for_function("() => performance.now() > 0")
            while not held:
                await page.evaluate("new Promise(requestAnimationFrame)")
            await field.fill("reporter")
        await expect(page.get_by_role("option")).to_have_count(1)
        await expect(page.get_by_role("option")).to_contain_text("org/reporter")
        assert [url for url in failed if "q=fuse" in url]


async def test_without_javascript_the_search_is_a_form_and_results_have_chips(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, javascript=False) as site:
        page = await open_with_pulls(site)
        field = page.get_by_role("searchbox", name="Search")
        await field.fill("fuse")
        await field.press("Enter")
        await expect(page).to_have_url(f"{site.url}/crcr/search?q=fuse")
        await expect(page.locator(".found .chip").first).to_contain_text("open")
        await page.goto(f"{site.url}/crcr/pr/1")
        await expect(page.get_by_role("link", name="Atom feed")).to_be_visible()
