"""The grids as a person uses them: live, by keyboard, without JavaScript, in all widths, with thousands of rows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from bench.pages.many_pulls import PullStore
from bench.relay_process.relay_setup import UPSTREAM as BENCH
from playwright.async_api import Browser, Page, expect
from starlette.applications import Starlette

from browser.conftest import Site, open_site
from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.model import RepoName
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.store.database import Tx
from crcr.record.store.times import to_us
from crcr.record.views.sql_views import SqlViews
from crcr.show.pages.frame import Frame
from crcr.show.pages.routes import routes
from github_sim.rest.server import Server
from support.clock import ManualClock
from support.running_relay import UPSTREAM
from support.stores.tables import open_handle

LISTED = """
L2:
  - org/alpha
  - org/beta
"""
NAMES = ("org/alpha", "org/beta")


async def report(site: Site, name: str, conclusion: str) -> None:
    run = site.relay.github.runs(name)[-1]
    await site.relay.github.start_job(run, "build")
    await site.relay.github.complete_job(run, "build", conclusion)


async def open_page(site: Site, path: str) -> Page:
    await site.page.goto(f"{site.url}{path}")
    await expect(site.page.locator("#live")).to_contain_text("live")
    return site.page


async def test_a_grid_is_live_and_a_cell_links_to_its_backend(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        page = await open_page(site, "/crcr/pulls")
        await expect(page.locator(".empty")).to_contain_text("No open pull requests yet")
        pull = await site.relay.github.open_pr(UPSTREAM, title="Fuse the kernels")
        await site.relay.drain()
        row = page.locator(f"#pull-{pull.number}")
        await expect(row).to_contain_text("2 backends to finish")
        await report(site, "org/beta", "failure")
        await site.relay.drain()
        await expect(row.locator("td.bad")).to_have_text("X")

        first = row.locator("td > a").first
        await first.focus()
        await page.keyboard.press("ArrowRight")
        await expect(row.locator("td.bad > a")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/crcr/pr/{pull.number}#unit-*")
        target = await page.evaluate("document.querySelector(location.hash).textContent")
        assert "org/beta" in target
        assert site.troubles == []


async def test_the_author_of_mine_is_typed_once_and_kept_in_the_browser(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        for author in ("ada", "bob"):
            await site.relay.github.open_pr(UPSTREAM, title=f"Of {author}", author=author)
        await site.relay.drain()
        page = await open_page(site, "/crcr/pulls")
        await page.get_by_role("button", name="Mine").click()
        await expect(page.locator("#filter-author")).to_be_focused()
        await page.keyboard.type("ada")
        await page.keyboard.press("Enter")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.goto(f"{site.url}/crcr/pulls")
        await page.get_by_role("link", name="Mine (ada)").click()
        await expect(page).to_have_url(f"{site.url}/crcr/pulls?author=ada")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.get_by_role("button", name="forget").click()
        await expect(page.get_by_role("button", name="Mine")).to_be_visible()
        assert site.troubles == []


async def test_without_javascript_everything_is_a_link_or_a_form(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES, javascript=False) as site:
        for author in ("ada", "bob"):
            await site.relay.github.open_pr(UPSTREAM, title=f"Of {author}", author=author)
        await site.relay.github.push(UPSTREAM, message="Rename it")
        await site.relay.drain()
        await report(site, "org/alpha", "failure")
        await site.relay.drain()
        page = site.page
        await page.goto(f"{site.url}/crcr/pulls")
        await page.get_by_label("Author", exact=True).fill("bob")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.get_by_role("link", name="Blocked").click()
        await expect(page).to_have_url(f"{site.url}/crcr/pulls?author=bob&only=blocked")
        await expect(page.locator(".empty")).to_contain_text("No matching pull requests")
        await page.get_by_role("link", name="Commits", exact=True).click()
        await expect(page.locator("tbody td.bad")).to_have_text("X")
        await page.get_by_role("link", name="org/alpha").click()
        await page.locator("tbody td.bad > a").click()
        await expect(page.locator("#panel")).to_contain_text("build")


MANY = PullStore(pulls=2_000, backends=40, jobs=1, tested=60)


class FixedAllowlists:
    async def in_force(self, tx: Tx, upstream: RepoName) -> Allowlist:
        return cast("Allowlist", read_allowlist(MANY.allowlist()).allowlist)


@asynccontextmanager
async def open_many(folder: Path) -> AsyncIterator[str]:
    """The pages over a store with 2,000 open pull requests and 40 backends; yields their base URL."""
    clock, upstream = ManualClock(), RepoName(BENCH)
    MANY.fill(folder / "crcr.db", to_us(clock.now()))
    database = open_handle(folder / "crcr.db")
    frame = Frame(SqlViews(database, FixedAllowlists(), (upstream,)), upstreams=(upstream,), clock=clock)
    server = Server(Starlette(routes=routes(frame)), "127.0.0.1", 0)
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop()
        await database.close()


SCROLL_AND_MEASURE = """() => {
  const frame = document.getElementById("scroll-matrix");
  frame.scrollTo(400, 300);
  const at = (selector) => document.querySelector(selector).getBoundingClientRect();
  const [box, row, head] = [frame.getBoundingClientRect(), at("tbody tr:nth-child(20) th"), at("thead .corner")];
  return {
    wide: document.documentElement.scrollWidth - innerWidth,
    sideways: frame.scrollLeft > 0,
    row: Math.round(row.left - box.left),
    head: Math.round(head.top - box.top),
    title: document.querySelector("tbody .name").clientWidth > 20,
  };
}"""


async def test_2000_pull_requests_and_40_backends_fit_every_width(tmp_path: Path, browser: Browser) -> None:
    async with open_many(tmp_path) as url:
        for width, scheme in ((390, "light"), (1024, "dark"), (1440, "light")):
            context = await browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            page = await context.new_page()
            for path in ("/crcr/pulls", "/crcr/commits?open=owner7/backend7"):
                await page.goto(f"{url}{path}")
                await expect(page.locator("tbody tr")).to_have_count(50)
                await expect(page.locator("thead .names th")).to_have_count(40)
                expected = {"wide": 0, "sideways": True, "row": 1, "head": 1, "title": True}
                assert {"path": path, "width": width, **await page.evaluate(SCROLL_AND_MEASURE)} == {
                    "path": path,
                    "width": width,
                    **expected,
                }
            await context.close()
        page = await browser.new_page(java_script_enabled=False)
        await page.goto(f"{url}/crcr/pulls?q=change")
        await page.get_by_role("link", name="Next").click()
        await expect(page.locator("tbody tr").first).to_contain_text("#1950")
        await page.goto(f"{url}/crcr/pulls?only=failing&sort=-age")
        assert await page.locator("tbody tr").count() == 3
