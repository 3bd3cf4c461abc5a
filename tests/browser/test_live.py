"""One event stream for all tabs of a browser: a dead one is noticed, another tab takes over, and pages catch up."""

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
    """The addresses of all streams that the browser opens from now on, from whichever tab."""
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/api/v1/events" in request.url:
            asked.append(request.url)

    page.context.on("request", note)
    return asked


async def test_many_tabs_are_live_over_one_stream_which_the_next_takes_over(
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


async def test_what_happens_between_two_listening_tabs_is_caught_up(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        await load_page(site.page, f"{site.url}/crcr")
        second = await load_page(await site.page.context.new_page(), f"{site.url}/crcr")
        third = await load_page(await site.page.context.new_page(), f"{site.url}{BACKEND}")
        reported = asyncio.Event()

        async def wait(route: Route) -> None:
            await reported.wait()
            await route.continue_()

        await second.context.route("**/api/v1/events*", wait)
        await site.page.close()
        await report_job(site, "org/alpha", "failure")
        reported.set()
        await expect(table_row(second, "org/alpha").locator(".last")).to_contain_text("failure")
        await expect(third.locator("#matrix-table td.bad > a")).to_have_text("X")


async def test_a_tab_that_joins_with_an_older_page_catches_up_once(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        first = await load_page(site.page, f"{site.url}/crcr")
        late = await first.context.new_page()
        read: list[str] = []
        late.on("request", lambda request: read.append(request.url) if "fragment=" in request.url else None)

        async def dawdle(route: Route) -> None:
            answer = await route.fetch()
            await report_job(site, "org/alpha", "failure")
            await expect(table_row(first, "org/alpha").locator(".last")).to_contain_text("failure")
            await route.fulfill(response=answer)

        await late.route(f"{site.url}/crcr", dawdle)
        await late.goto(f"{site.url}/crcr")
        await expect(table_row(late, "org/alpha").locator(".last")).to_contain_text("failure")
        await expect(live_indicator(late)).to_have_text("live")
        assert len(read) == 1


async def test_tabs_of_two_upstreams_share_a_stream_and_hear_their_own(
    tmp_path: Path, browser: Browser
) -> None:
    listed = {UPSTREAM: LISTED, OTHER: LISTED}
    async with open_site(tmp_path, browser, allowlist=listed, downstreams=NAMES) as site:
        streams = record_stream_urls(site.page)
        ours = await load_page(site.page, f"{site.url}/crcr")
        theirs = await load_page(await ours.context.new_page(), f"{site.url}/crcr?upstream={OTHER}")
        read: list[str] = []
        ours.on("request", lambda request: read.append(request.url))
        await site.relay.github.open_pr(OTHER, title="Add an operator")
        await expect(theirs.locator("dd[data-key=deliveries]")).to_contain_text("1 in 14d")
        assert read == []
        await open_pull_request(site)
        await expect(ours.locator("dd[data-key=deliveries]")).to_contain_text("1 in 14d")
        assert len(streams) == 1
        assert site.troubles == []


async def test_without_locks_a_tab_that_nobody_sees_holds_no_connection(
    tmp_path: Path, browser: Browser
) -> None:
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


async def test_a_connection_that_died_without_a_word_is_found_out_and_made_anew(
    tmp_path: Path, browser: Browser
) -> None:
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


async def test_a_heart_that_beats_keeps_a_quiet_connection(tmp_path: Path, browser: Browser) -> None:
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


async def test_a_tab_that_hangs_loses_its_place_to_one_that_is_looked_at(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        await site.page.clock.install()
        # What holds the lock and never says a word is a tab that hangs.
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


async def test_who_is_offline_is_told_at_once(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        page = await load_page(site.page, f"{site.url}/crcr")
        await page.context.set_offline(True)
        await expect(live_indicator(page)).to_have_text("reconnecting")
        await report_job(site, "org/alpha", "failure")
        await page.context.set_offline(False)
        await expect(live_indicator(page)).to_have_text("live")
        await expect(table_row(page, "org/alpha").locator(".last")).to_contain_text("failure")


async def test_without_a_stream_a_page_is_read_again_and_says_so(tmp_path: Path, browser: Browser) -> None:
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
