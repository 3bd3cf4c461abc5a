"""Page layout: a header of one line, aligned charts, print, and forced colours."""

from itertools import product
from pathlib import Path

from playwright.async_api import Browser, Page

from browser.conftest import open_site

PAPER = {"width": 1047, "height": 720}
"""A4 across, within its margins."""


async def wider_than_its_place(page: Page, what: str) -> bool:
    script = (
        "each => each.scrollWidth > each.clientWidth || each.getBoundingClientRect().right > innerWidth + 1"
    )
    return bool(await page.locator(what).evaluate(script))


async def test_the_frame_keeps_to_one_line_and_charts_to_theirs(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser) as site:
        page = site.page
        for width, path in product((1024, 800), ("/crcr/metrics", "/crcr/onboarding?repository=org/silent")):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.goto(f"{site.url}{path}")
            assert (await page.locator(".top").evaluate("each => each.getBoundingClientRect().height")) < 60
            assert not await wider_than_its_place(page, "html")
        await page.set_viewport_size({"width": 1024, "height": 800})
        await page.goto(f"{site.url}/crcr/metrics")
        # A heading of two lines in one chart moves what stands under the headings of both.
        await page.locator(".chart figcaption").first.evaluate(
            "each => each.append(Object.assign(document.createElement('p'), {textContent: 'long '.repeat(60)}))"
        )
        under = "all => all.slice(0, 2).map(each => Math.round(each.children[1].getBoundingClientRect().top))"
        first, second = await page.locator(".chart").evaluate_all(under)
        assert first == second
        assert site.troubles == []


async def test_on_paper_the_tables_are_whole_and_nothing_is_to_be_clicked(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser) as site:
        page = site.page
        await page.set_viewport_size({"width": PAPER["width"], "height": PAPER["height"]})
        await page.emulate_media(media="print")
        await page.goto(f"{site.url}/crcr")
        assert not await wider_than_its_place(page, "#scroll-backends")
        for what in (".pages", "form.find", "main form", "nav[aria-label=Range]"):
            assert not await page.locator(what).first.is_visible(), what


async def test_where_the_reader_chose_the_colours_the_current_tab_is_still_seen(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser) as site:
        page = site.page
        await page.emulate_media(forced_colors="active")
        await page.goto(f"{site.url}/crcr")
        style = "each => [getComputedStyle(each).outlineStyle, getComputedStyle(each).borderBottomWidth]"
        for where, place, marked in (
            (".pages", 0, "solid"),
            ("nav[aria-label=Range]", 0, "solid"),
            (".tabs", 1, "3px"),
        ):
            current = await page.locator(f"{where} [aria-current]").first.evaluate(style)
            other = await page.locator(f"{where} a:not([aria-current])").first.evaluate(style)
            assert current[place] == marked
            assert other[place] != marked
