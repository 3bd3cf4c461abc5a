"""Page layout: a header of one line, aligned charts, print, and forced colours."""

from itertools import product
from pathlib import Path

from playwright.async_api import Browser, Page

from browser.conftest import open_site

PAPER = {"width": 1047, "height": 720}
"""A4 landscape, within its margins."""


async def overflows(page: Page, selector: str) -> bool:
    script = (
        "each => each.scrollWidth > each.clientWidth || each.getBoundingClientRect().right > innerWidth + 1"
    )
    return bool(await page.locator(selector).evaluate(script))


async def test_the_header_is_one_line_and_charts_stay_aligned(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser) as site:
        page = site.page
        for width, path in product((1024, 800), ("/crcr/metrics", "/crcr/onboarding?repository=org/silent")):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.goto(f"{site.url}{path}")
            assert (await page.locator(".top").evaluate("each => each.getBoundingClientRect().height")) < 60
            assert not await overflows(page, "html")
        await page.set_viewport_size({"width": 1024, "height": 800})
        await page.goto(f"{site.url}/crcr/metrics")
        # A longer heading in one chart moves the content under the headings of both.
        await page.locator(".chart figcaption").first.evaluate(
            "each => each.append(Object.assign(document.createElement('p'), {textContent: 'long '.repeat(60)}))"
        )
        under = "all => all.slice(0, 2).map(each => Math.round(each.children[1].getBoundingClientRect().top))"
        first, second = await page.locator(".chart").evaluate_all(under)
        assert first == second
        assert site.troubles == []


async def test_in_print_tables_are_not_clipped_and_controls_are_hidden(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser) as site:
        page = site.page
        await page.set_viewport_size({"width": PAPER["width"], "height": PAPER["height"]})
        await page.emulate_media(media="print")
        await page.goto(f"{site.url}/crcr")
        assert not await overflows(page, "#scroll-backends")
        for selector in (".pages", "form.find", "main form", "nav[aria-label=Range]"):
            assert not await page.locator(selector).first.is_visible(), selector


async def test_with_forced_colors_the_current_tab_is_still_marked(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser) as site:
        page = site.page
        await page.emulate_media(forced_colors="active")
        await page.goto(f"{site.url}/crcr")
        style = "each => [getComputedStyle(each).outlineStyle, getComputedStyle(each).borderBottomWidth]"
        for navigation, index, expected in (
            (".pages", 0, "solid"),
            ("nav[aria-label=Range]", 0, "solid"),
            (".tabs", 1, "3px"),
        ):
            current = await page.locator(f"{navigation} [aria-current]").first.evaluate(style)
            other = await page.locator(f"{navigation} a:not([aria-current])").first.evaluate(style)
            assert current[index] == expected
            assert other[index] != expected
