"""One event stream for all tabs of a browser: a dead one is detected, another tab takes over, and pages catch up."""

import asyncio
from pathlib import Path

from playwright.async_api import Browser, Page, Request, Route, expect

from browser.conftest import open_site, wire
from crcr.show.live.event_stream import HEARTBEAT_S
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

OTHER = "pytorch-like/other"
NO_LOCKS = "Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })"
COUNT_BEATS = """
window.beats = 0;
const Real = EventSource;
window.EventSource = class extends Real {
  constructor(address) {
    super(address);
    this.addEventListener("beat", () => { window.beats += 1; });
  }
};
"""
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def record_stream_urls(page: Page) -> list[str]:
    """The URLs of all streams that the browser opens from now on, in any tab."""
    stream_urls: list[str] = []

    def record(request: Request) -> None:
        if "/api/v1/events" in request.url:
            stream_urls.append(request.url)

    page.context.on("request", record)
    return stream_urls


async def test_many_tabs_share_one_stream_and_another_tab_takes_it_over(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        streams = record_stream_urls(site.page)
        tabs = [site.page, *[await site.page.context.new_page() for _ in range(7)]]
        for tab in tabs:
            await load_page(tab, f"{site.url}/crcr")
        await report_job(site, "org/alpha", "failure")
        for tab in tabs:
            await expect(table_row(tab, "org/alpha").locator(".last")).to_contain_text("failure")
        assert len(streams) == 1
        for round_, name in enumerate(("org/beta", "org/gamma"), start=2):
            await tabs.pop(0).close()
            await report_job(site, name, "success")
            for tab in tabs:
                await expect(table_row(tab, name).locator(".last")).to_contain_text("success")
                await expect(live_indicator(tab)).to_have_text("live")
            assert len(streams) == round_
        assert site.troubles == []


async def test_events_during_a_stream_takeover_are_caught_up(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        await load_page(site.page, f"{site.url}/crcr")
        second = await load_page(await site.page.context.new_page(), f"{site.url}/crcr")
        third = await load_page(await site.page.context.new_page(), f"{site.url}{BACKEND}")
        reported = asyncio.Event()

        async def hold_until_reported(route: Route) -> None:
            await reported.wait()
            await route.continue_()

        await second.context.route("**/api/v1/events*", hold_until_reported)
        await site.page.close()
        await report_job(site, "org/alpha", "failure")
        reported.set()
        await expect(table_row(second, "org/alpha").locator(".last")).to_contain_text("failure")
        await expect(third.locator("#matrix-table td.bad > a")).to_have_text("X")


async def test_a_tab_that_opens_with_an_older_page_catches_up_with_one_refresh(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        first = await load_page(site.page, f"{site.url}/crcr")
        late = await first.context.new_page()
        refreshes: list[str] = []
        late.on(
            "request", lambda request: refreshes.append(request.url) if "fragment=" in request.url else None
        )

        async def report_before_response(route: Route) -> None:
            answer = await route.fetch()
            await report_job(site, "org/alpha", "failure")
            await expect(table_row(first, "org/alpha").locator(".last")).to_contain_text("failure")
            await route.fulfill(response=answer)

        await late.route(f"{site.url}/crcr", report_before_response)
        await late.goto(f"{site.url}/crcr")
        await expect(table_row(late, "org/alpha").locator(".last")).to_contain_text("failure")
        await expect(live_indicator(late)).to_have_text("live")
        assert len(refreshes) == 1


async def test_tabs_of_two_upstreams_share_a_stream_and_refresh_only_for_their_own(
    tmp_path: Path, browser: Browser
) -> None:
    listed = {UPSTREAM: LISTED, OTHER: LISTED}
    async with open_site(tmp_path, browser, allowlist=listed, downstreams=NAMES) as site:
        streams = record_stream_urls(site.page)
        first_tab = await load_page(site.page, f"{site.url}/crcr")
        other_tab = await load_page(await first_tab.context.new_page(), f"{site.url}/crcr?upstream={OTHER}")
        refreshes: list[str] = []
        first_tab.on("request", lambda request: refreshes.append(request.url))
        await site.relay.github.open_pr(OTHER, title="Add an operator")
        await expect(other_tab.locator("dd[data-key=deliveries]")).to_contain_text("1 in 14d")
        assert refreshes == []
        await open_pull_request(site)
        await expect(first_tab.locator("dd[data-key=deliveries]")).to_contain_text("1 in 14d")
        assert len(streams) == 1
        assert site.troubles == []


async def test_without_the_locks_api_a_hidden_tab_closes_its_stream(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        page, streams = site.page, record_stream_urls(site.page)
        await page.context.add_init_script(NO_LOCKS)
        await load_page(page, f"{site.url}/crcr")
        async with page.expect_event("requestfailed", lambda request: request.url == streams[0]):
            await page.evaluate(HIDE, True)
        await report_job(site, "org/alpha", "failure")
        await expect(table_row(page, "org/alpha").locator(".last")).to_contain_text("no results")
        await page.evaluate(HIDE, False)
        await expect(table_row(page, "org/alpha").locator(".last")).to_contain_text("failure")
        await expect(live_indicator(page)).to_have_text("live")
        assert len(streams) == 2


async def test_a_stalled_connection_is_detected_and_reopened(tmp_path: Path, browser: Browser) -> None:
    async with (
        open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site,
        wire(site.url) as line,
    ):
        await open_pull_request(site)
        await site.page.context.clock.install()
        page = await load_page(site.page, f"{line.url}/crcr")
        other = await load_page(await page.context.new_page(), f"{line.url}/crcr")
        line.hold()
        await report_job(site, "org/alpha", "failure")
        await page.clock.fast_forward(30_000)
        await expect(live_indicator(page)).to_have_text("live")
        await page.clock.fast_forward(20_000)
        for tab in (page, other):
            await expect(live_indicator(tab)).to_have_text("reconnecting")
        line.let_go()
        for tab in (page, other):
            await expect(live_indicator(tab)).to_have_text("live")
            await expect(table_row(tab, "org/alpha").locator(".last")).to_contain_text("failure")


async def test_heartbeats_keep_an_idle_connection_open(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        page, streams = site.page, record_stream_urls(site.page)
        await page.add_init_script(COUNT_BEATS)
        await page.clock.install()
        await load_page(page, f"{site.url}/crcr")
        for beats in range(1, 4):
            await page.clock.fast_forward(30_000)
            site.relay.clock.advance(HEARTBEAT_S)
            await page.wait_for_function("beats => window.beats >= beats", arg=beats)
            await expect(live_indicator(page)).to_have_text("live")
        assert len(streams) == 1


async def test_a_visible_tab_takes_the_stream_lock_over_from_a_hung_tab(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        await site.page.clock.install()
        # A tab that holds the lock and sends nothing is a hung tab.
        hung = await site.page.context.new_page()
        await hung.goto(f"{site.url}/robots.txt")
        await hung.evaluate("navigator.locks.request('crcr-live-1 ', () => new Promise(() => {})) && null")
        page = site.page
        await page.goto(f"{site.url}/crcr")
        await expect(live_indicator(page)).to_have_text("connecting")
        for _ in range(3):
            await page.clock.fast_forward(25_000)
        await expect(live_indicator(page)).to_have_text("live")
        await report_job(site, "org/alpha", "failure")
        await expect(table_row(page, "org/alpha").locator(".last")).to_contain_text("failure")


async def test_going_offline_is_shown_at_once(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        page = await load_page(site.page, f"{site.url}/crcr")
        await page.context.set_offline(True)
        await expect(live_indicator(page)).to_have_text("reconnecting")
        await report_job(site, "org/alpha", "failure")
        await page.context.set_offline(False)
        await expect(live_indicator(page)).to_have_text("live")
        await expect(table_row(page, "org/alpha").locator(".last")).to_contain_text("failure")


async def test_with_polling_a_page_is_refreshed_and_shows_its_interval(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(
        tmp_path, browser, allowlist=LISTED, downstreams=NAMES, CRCR_HUD_LIVE="poll"
    ) as site:
        await open_pull_request(site)
        streams = record_stream_urls(site.page)
        await site.page.clock.install()
        await site.page.goto(f"{site.url}/crcr")
        await expect(live_indicator(site.page)).to_have_text("updated every 15 s")
        await site.page.evaluate("window.notReloaded = true")
        await report_job(site, "org/alpha", "failure")
        await site.page.clock.fast_forward(16_000)
        await expect(table_row(site.page, "org/alpha").locator(".last")).to_contain_text("failure")
        assert await site.page.evaluate("window.notReloaded") is True
        assert streams == []
