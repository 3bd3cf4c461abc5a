"""The table of backends as a person uses it: sorted, filtered, live, by keyboard, and without JavaScript."""

from pathlib import Path

from playwright.async_api import Browser, Locator, Page, expect

from browser.conftest import Site, open_site
from support.running_relay import UPSTREAM

LISTED = """
L1:
  - org/told
L2:
  - org/alpha: [alice]
  - org/beta: {hardware: NPU}
  - org/gamma
"""
NAMES = ("org/told", "org/alpha", "org/beta", "org/gamma")
MARK_ROWS = "for (const row of document.querySelectorAll('tr[data-key]')) row.same = true"


async def report(site: Site, name: str, conclusion: str, job: str = "build") -> None:
    run = site.relay.github.runs(name)[0]
    await site.relay.github.start_job(run, job)
    await site.relay.github.complete_job(run, job, conclusion)


async def open_summary_page(site: Site, path: str = "/crcr") -> Page:
    await site.page.goto(f"{site.url}{path}")
    await expect(site.page.locator("#live")).to_contain_text("live")
    return site.page


def row(page: Page, name: str) -> Locator:
    return page.locator(f"tr[data-key='{name}']")


async def backend_names(page: Page) -> list[str]:
    keys = "rows => rows.map(row => row.dataset.key).filter(key => key.includes('/'))"
    keys_found: list[str] = await page.locator("table.backends tr[data-key]").evaluate_all(keys)
    return keys_found


async def test_an_update_reuses_the_rows_and_keeps_the_sort_order(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await site.relay.github.open_pr(UPSTREAM, title="Add an operator")
        await site.relay.drain()
        await report(site, "org/beta", "failure")
        page = await open_summary_page(site)
        await page.get_by_role("link", name="Failure", exact=True).click()
        await expect(page).to_have_url(f"{site.url}/crcr?sort=-failure")
        await expect(page.locator("th[aria-sort=descending]")).to_have_text("Failure")
        assert (await backend_names(page))[0] == "org/beta"
        await page.evaluate(MARK_ROWS)

        for job in ("build", "test"):
            await report(site, "org/gamma", "failure", job)
        await expect(row(page, "org/gamma").locator(".failed")).to_have_text("2")
        await expect(page.locator(".fresh").first).to_be_attached()
        assert (await backend_names(page))[:2] == ["org/gamma", "org/beta"]
        same_rows = await page.evaluate(
            "[...document.querySelectorAll('tr[data-key]')].every(row => row.same)"
        )
        assert same_rows is True
        await expect(page).to_have_url(f"{site.url}/crcr?sort=-failure")
        await expect(page.locator(".fresh")).to_have_count(0)
        assert site.troubles == []


async def test_typing_filters_at_once_and_updates_do_not_disturb_it(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await site.relay.github.open_pr(UPSTREAM, title="Add an operator")
        await site.relay.drain()
        page = await open_summary_page(site)
        field = page.get_by_label("Filter by name, hardware or on-call")
        await field.press_sequentially("npu")
        await expect(page.locator(".count")).to_contain_text("1 of 4 backends")
        await expect(page).to_have_url(f"{site.url}/crcr?q=npu")
        assert await backend_names(page) == ["org/beta"]

        await field.press_sequentially("x")
        await report(site, "org/beta", "success")
        await expect(page.locator(".count")).to_contain_text("0 of 4 backends")
        await expect(field).to_be_focused()
        await expect(field).to_have_value("npux")

        await page.get_by_role("link", name="Reset").click()
        await expect(page.locator(".count")).to_contain_text("4 backends")
        await expect(field).to_have_value("")
        await page.go_back()
        await expect(field).to_have_value("npux")
        await expect(page.get_by_role("heading", name="No backend matches")).to_be_visible()
        assert site.troubles == []


async def test_an_update_keeps_open_details_focus_and_scroll_position(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await site.relay.github.open_pr(UPSTREAM, title="Add an operator")
        await site.relay.drain()
        await report(site, "org/alpha", "success")
        page = await open_summary_page(site, "/crcr/metrics")
        table = page.locator("figure", has_text="Results").locator("details")
        await table.locator("summary").click()
        await page.get_by_role("link", name="org/alpha").focus()
        await page.set_viewport_size({"width": 1000, "height": 400})
        await page.evaluate("scrollTo(0, 200)")
        before = await page.evaluate("scrollY")

        await report(site, "org/beta", "failure")
        await expect(row(page, "org/beta")).to_contain_text("0%")
        await expect(table.locator("table")).to_be_visible()
        await expect(page.get_by_role("link", name="org/alpha")).to_be_focused()
        assert await page.evaluate("scrollY") == before
        assert site.troubles == []


async def test_a_chart_shows_its_values_on_hover(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await site.relay.github.open_pr(UPSTREAM, title="Add an operator")
        await site.relay.drain()
        await report(site, "org/alpha", "success")
        page = await open_summary_page(site, "/crcr/metrics")
        await page.locator("figure", has_text="Results").locator(".hit").last.hover()
        await expect(page.locator(".tip")).to_contain_text("success: 1")
        await page.mouse.move(0, 0)
        await expect(page.locator(".tip")).to_be_hidden()
        assert site.troubles == []


async def test_without_javascript_sorting_and_filtering_work_by_links_and_forms(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, javascript=False, allowlist=LISTED, downstreams=NAMES) as site:
        page = site.page
        await page.goto(f"{site.url}/crcr")
        await page.get_by_role("link", name="Backend", exact=True).click()
        assert await backend_names(page) == ["org/alpha", "org/beta", "org/gamma", "org/told"]
        await page.get_by_label("Filter by name, hardware or on-call").fill("npu")
        await page.get_by_role("button", name="Filter").click()
        await expect(page).to_have_url(f"{site.url}/crcr?sort=name&q=npu")
        assert await backend_names(page) == ["org/beta"]
        await page.goto(f"{site.url}/crcr/metrics")
        await page.get_by_label("Charts of").select_option("org/beta")
        await page.get_by_role("button", name="Show").click()
        await expect(page).to_have_url(f"{site.url}/crcr/metrics?backend=org%2Fbeta")


async def test_the_keyboard_reaches_everything_in_reading_order(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        page = await open_summary_page(site)
        await page.keyboard.press("Tab")
        await expect(page.locator(".skip")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#main")).to_be_focused()
        focused_texts: list[str] = []
        for _ in range(40):
            await page.keyboard.press("Tab")
            focused_texts.append(await page.evaluate("document.activeElement.textContent.trim()"))
        for earlier, later in (
            ("Push", "30d"),
            ("30d", "Filter"),
            ("L1", "Level"),
            ("Last result", "org/alpha"),
        ):
            assert focused_texts.index(earlier) < focused_texts.index(later)
        await page.get_by_role("link", name="Last result").focus()
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{site.url}/crcr?sort=-last")
        await expect(page.get_by_role("link", name="Last result")).to_be_focused()


async def test_a_backends_page_is_not_refreshed_for_results_of_another_backend(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await site.relay.github.open_pr(UPSTREAM, title="Add an operator")
        await site.relay.drain()
        page = await open_summary_page(site, "/crcr/org/alpha")
        refreshes: list[str] = []
        page.on(
            "request", lambda request: refreshes.append(request.url) if "fragment=" in request.url else None
        )
        await report(site, "org/beta", "failure")
        await report(site, "org/alpha", "success")
        await expect(page.locator("main")).to_contain_text("100%")
        assert 1 <= len(refreshes) <= 2


async def test_a_page_of_a_delisted_backend_shows_that_it_is_gone_and_stops_refreshing(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await site.relay.github.open_pr(UPSTREAM, title="Add an operator")
        await site.relay.drain()
        page = await open_summary_page(site, "/crcr/org/alpha")
        site.relay.write_allowlist(LISTED.replace("  - org/alpha: [alice]\n", ""))
        await site.relay.refresh()
        await site.relay.github.open_pr(UPSTREAM, title="One more")
        await expect(page.locator("#live")).to_contain_text("gone")
        refreshes: list[str] = []
        page.on("request", lambda request: refreshes.append(request.url))
        await page.evaluate(
            "document.dispatchEvent(new Event('crcr:refresh')), dispatchEvent(new Event('online'))"
        )
        await page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert refreshes == []


async def test_fault_48_a_page_catches_up_after_eight_hours_offline(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await site.relay.github.open_pr(UPSTREAM, title="Add an operator")
        await site.relay.drain()
        await site.page.clock.install()
        page = await open_summary_page(site)
        await page.context.set_offline(True)
        await page.evaluate("dispatchEvent(new Event('offline'))")
        await report(site, "org/alpha", "failure")
        await page.clock.fast_forward("08:00:00")
        await page.context.set_offline(False)
        await page.clock.run_for(30_000)
        await expect(row(page, "org/alpha")).to_contain_text("0%")
        await expect(page.locator("#live")).to_contain_text("live")
