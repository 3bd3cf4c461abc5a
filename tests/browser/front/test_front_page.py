"""The front page as a person uses it: attention, the relay's chip, sticky headers, favourites; by keyboard, without scripts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from starlette.applications import Starlette

from browser.test_accessibility import add_axe, violations
from crcr.decide.health.relay import Health, HealthState, Reason, ReasonCode
from crcr.decide.model import Conclusion, Level, RepoName
from crcr.decide.views.attention import Attention, AttentionItem, AttentionKind
from crcr.decide.views.overview import AllowlistState, Probe, Summary
from crcr.show.live.shared_health import SharedHealth
from crcr.show.pages import routes as pages_routes
from crcr.show.pages.frame import Frame
from github_sim.rest.server import Server
from support.clock import ManualClock
from support.data.overview_views import (
    NOW,
    UPSTREAM,
    FixedViews,
    figures,
    last_result,
    many_backends,
    relay_health,
    summary,
)
from support.page_reader import HOSTILE

AMBER = Health(
    HealthState.AMBER,
    (
        Reason(
            code=ReasonCode.PAUSED,
            state=HealthState.AMBER,
            text="Dispatching has been paused since 09:00 UTC.",
        ),
    ),
)
NAME = "ascend-team/torch-backend-00"


class AmberHealth:
    async def health(self, _: object) -> dict[RepoName, Health]:
        return {UPSTREAM: AMBER}


def summary_with_attention() -> Summary:
    """Forty backends, and an attention line of each kind, one with hostile text."""
    kinds: dict[AttentionKind, dict[str, Any]] = {
        AttentionKind.BACKEND_RED: {
            "backend": RepoName(NAME),
            "level": Level.L4,
            "oncalls": ("ada", "grace"),
        },
        AttentionKind.BACKEND_SILENT: {"backend": RepoName("intel-team/torch-backend-01"), "level": Level.L2},
        AttentionKind.PULL_BLOCKED: {"number": 12_345, "text": "".join(HOSTILE).replace("\x00", "")},
        AttentionKind.IN_TREE_RED: {"sha": "a" * 40},
        AttentionKind.BASE_RED: {"oncalls": ("mia",)},
        AttentionKind.BACKEND_SUSPENDED: {"backend": RepoName("o" * 39 + "/" + "r" * 90), "level": Level.L3},
    }
    items = tuple(
        AttentionItem(**{"kind": kind, "text": "12 jobs fail on main: build, test", "since": NOW, **fields})
        for kind, fields in kinds.items()
    )
    probes = (Probe(RepoName("relay/probe"), last_result(), stale=True),)
    page_summary = many_backends(40)
    rows = page_summary.levels[-1][1]
    expected = replace(last_result(Conclusion.FAILURE), counted=last_result().counted)
    widest = replace(rows[0].figures or figures(), last_result=expected)
    probe = replace(rows[0], level=Level.L2, figures=widest, name=RepoName("relay/probe"), probe=True)
    page_summary = replace(
        page_summary, levels=(*page_summary.levels[:-1], (page_summary.levels[-1][0], (probe, *rows[1:])))
    )
    health = replace(page_summary.health, probes=probes, parked=2_000)
    return replace(
        page_summary, health=health, attention=Attention(items=items, blocked_pulls=1_234, branch="main")
    )


def empty_summary() -> Summary:
    allowlist = AllowlistState(version=None, source=None, read_at=None, newest_is_bad=False, problems=())
    return summary(allowlist=allowlist, health=relay_health(last_delivery_at=None, last_result_at=None))


@asynccontextmanager
async def serve(page_summary: Summary) -> AsyncIterator[str]:
    clock = ManualClock(NOW)
    frame = Frame(
        FixedViews(page_summary),  # type: ignore[arg-type]
        upstreams=(UPSTREAM,),
        clock=clock,
        health=SharedHealth(AmberHealth(), clock),
    )
    server = Server(Starlette(routes=pages_routes.routes(frame)), "127.0.0.1", 0)
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop()


async def overflow(page: Page) -> int:
    script = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    return int(await page.evaluate(script))


@pytest.mark.parametrize("make", [summary_with_attention, empty_summary])
async def test_the_page_fits_every_width_and_has_no_serious_accessibility_violation(
    browser: Browser, make: Any
) -> None:
    async with serve(make()) as url:
        for width, scheme in product((390, 1024, 1440), ("light", "dark")):
            context = await browser.new_context(
                viewport={"width": width, "height": 800},
                color_scheme=scheme,  # type: ignore[arg-type]
            )
            page = await context.new_page()
            await page.goto(f"{url}/crcr")
            await page.locator("#relay-health > summary").click()
            await expect(page.locator(".relay-facts")).to_be_visible()
            assert (width, await overflow(page)) == (width, 0)
            await add_axe(page)
            rules = () if scheme == "light" else ("color-contrast",)
            assert (width, scheme, await violations(page, rules)) == (width, scheme, [])
            facts = await page.locator(".relay-facts").bounding_box()
            assert facts
            assert facts["x"] >= 0
            assert facts["x"] + facts["width"] <= width
            await context.close()


@pytest.mark.parametrize("width", [1001, 1081, 1241, 1361])
async def test_the_table_headers_stay_in_view(browser: Browser, width: int) -> None:
    async with serve(summary_with_attention()) as url:
        context = await browser.new_context(viewport={"width": width, "height": 700})
        page = await context.new_page()
        await page.goto(f"{url}/crcr")
        assert await overflow(page) == 0
        await page.locator("table.backends tbody tr").last.scroll_into_view_if_needed()
        await expect(page.locator("table.backends thead th").nth(1)).to_be_in_viewport(ratio=1)
        is_topmost = "head => { const box = head.getBoundingClientRect(); return head.contains(document.elementFromPoint(box.x + 5, box.y + box.height / 2)); }"
        assert await page.locator("table.backends thead th").nth(1).evaluate(is_topmost)


async def test_without_javascript_the_chip_opens_and_script_only_controls_are_hidden(
    browser: Browser,
) -> None:
    async with serve(summary_with_attention()) as url:
        context = await browser.new_context(java_script_enabled=False)
        page = await context.new_page()
        await page.goto(f"{url}/crcr")
        await expect(page.locator(".attention-list")).to_contain_text("Dispatching has been paused")
        await expect(page.locator("#relay-health .facts")).to_be_hidden()
        await page.locator("#relay-health > summary").click()
        await expect(page.locator("#relay-health .facts")).to_contain_text("2,000")
        for selector in (".star", ".favourites-only"):
            await expect(page.locator(selector).first).to_be_hidden()
        await page.get_by_role("link", name="#12345").click()
        await expect(page).to_have_url(f"{url}/crcr/pr/12345")


async def test_the_keyboard_reaches_the_chip_and_the_attention_lines_in_reading_order(
    browser: Browser,
) -> None:
    async with serve(summary_with_attention()) as url:
        page = await (await browser.new_context()).new_page()
        await page.goto(f"{url}/crcr")
        await page.locator("#main").focus()
        focused_texts = []
        for _ in range(12):
            await page.keyboard.press("Tab")
            focused_texts.append(await page.evaluate("document.activeElement.textContent.trim()"))
        assert focused_texts[1:4] == [NAME, "intel-team/torch-backend-01", "#12345"]
        assert "relay amber" in focused_texts[0]
        await page.locator("#relay-health > summary").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator(".relay-facts")).to_be_visible()


async def test_favourites_stay_in_the_browser_and_survive_a_refresh(browser: Browser) -> None:
    async with serve(summary_with_attention()) as url:
        page = await (await browser.new_context()).new_page()
        await page.goto(f"{url}/crcr")
        rows = page.locator("table.backends tr[data-key*='/']:visible")
        await expect(rows).to_have_count(40)
        only = page.get_by_role("button", name="Favourites", exact=False).first
        await only.click()
        await expect(page.locator("#no-favourites")).to_contain_text("None of these backends is a favourite")
        await expect(rows).to_have_count(0)
        await only.click()
        star = page.get_by_role("button", name=f"Favourite: {NAME}")
        await star.focus()
        await page.keyboard.press("Space")
        await expect(star).to_have_attribute("aria-pressed", "true")
        await only.click()
        await expect(rows).to_have_count(1)
        await expect(page.locator("#no-favourites")).to_have_count(0)

        await page.reload()
        await expect(rows).to_have_count(1)
        await page.get_by_role("link", name="Pass rate").click()  # replaces the content in place
        await expect(page).to_have_url(f"{url}/crcr?sort=rate")
        await expect(star).to_have_attribute("aria-pressed", "true")
        await expect(rows).to_have_count(1)
        await star.click()
        await expect(page.locator("#no-favourites")).to_be_visible()
        await page.evaluate("localStorage.setItem('crcr.favourites', '{broken')")
        await page.reload()
        await expect(only).to_have_attribute("aria-pressed", "true")


async def test_an_empty_installation_shows_the_setup_steps(browser: Browser) -> None:
    async with serve(empty_summary()) as url:
        page = await (await browser.new_context()).new_page()
        await page.goto(f"{url}/crcr")
        steps = page.locator("#checklist li")
        await expect(steps).to_have_count(5)
        await expect(steps.nth(2)).to_contain_text("/github/webhook")
        await expect(steps.nth(3)).to_contain_text("crcr allowlist refresh")
        await expect(page.locator("main")).not_to_contain_text("Nothing needs attention")
