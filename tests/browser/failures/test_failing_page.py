"""Continuously failing jobs in a real browser: the list updates with results, and fits a phone."""

from pathlib import Path

from playwright.async_api import Browser, expect

from browser.conftest import Site, open_site
from github_sim.world.actions import JobSpec, Workflow
from support.github.gated_upstream import run_all
from support.running_relay import UPSTREAM

JOBS = Workflow(jobs=(JobSpec("build"), JobSpec("test with a rather long name (3.12, ubuntu-latest, cuda)")))


async def push_and_run(site: Site, **conclusions: str) -> None:
    site.relay.clock.advance(3600)
    await site.relay.github.push(UPSTREAM)
    await site.relay.drain()
    await run_all(site.relay, "org/reporter", **conclusions)


async def test_a_job_is_listed_when_it_fails_and_removed_when_it_passes(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser) as site:
        site.relay.github.repository("org/reporter").workflows = [JOBS]
        await push_and_run(site)
        await site.page.goto(f"{site.url}/crcr/failing")
        await expect(site.page.get_by_role("heading", name="No job fails on main")).to_be_visible()
        await push_and_run(site, build="failure")
        rows = site.page.locator("table.log tbody tr")
        await expect(rows).to_have_count(1)
        await expect(rows.first).to_contain_text("alice")
        await push_and_run(site)
        await expect(rows).to_have_count(0)


async def test_the_list_sorts_in_place_and_fits_a_phone(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser) as site:
        site.relay.github.repository("org/reporter").workflows = [JOBS]
        await push_and_run(site)
        await push_and_run(site, build="failure")
        await push_and_run(site, **{job.name: "failure" for job in JOBS.jobs})
        page = site.page
        await page.goto(f"{site.url}/crcr/failing")
        rows = page.locator("table.log tbody tr")
        await expect(rows.first).to_contain_text("build")
        column = page.locator("thead th", has_text="Job")
        for order in ("ascending", "descending"):
            await column.get_by_role("link").click()
            await expect(column).to_have_attribute("aria-sort", order)
        await expect(rows.first).to_contain_text("test with")
        assert page.url.endswith("sort=-job")
        for width in (390, 1024, 1440):
            await page.set_viewport_size({"width": width, "height": 900})
            assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
