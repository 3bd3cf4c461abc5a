"""The verdicts on a pull request's page: failures grouped by cause, a line for each failed job, narrow, light and dark."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from browser.conftest import Site
from browser.test_accessibility import add_axe, violations
from browser.test_pull_page import REPORTING, gated_site
from support.github.gated_upstream import GATING, newest_run, open_pull, start_jobs
from support.running_relay import UPSTREAM

NEW = "RuntimeError: no kernel for aten::addmm.out"
OLD = "ImportError: libdevice.so.3: cannot open shared object file"


async def report_test(site: Site, backend: str, message: str | None) -> None:
    """Report the end of `test` in the newest run of the backend, failed with that message or passed."""
    relay = site.relay
    run = newest_run(relay, backend)
    await start_jobs(relay, run, "test")
    job_fields = {
        "name": "CI",
        "job_name": "test",
        "run_id": run.id,
        "run_attempt": 1,
        "status": "completed",
        "conclusion": "failure" if message else "success",
        "failed_tests": [{"name": "test_ops", "file": "test.py", "message": message}] if message else [],
    }
    body = {"event_type": "push", "delivery_id": run.delivery_id, "workflow": job_fields}
    answer = await relay.github.report(run, run.job("test"), status="completed", body=body)
    assert answer.status_code == 200
    await relay.drain()


async def open_judged_pull(site: Site) -> int:
    """A base on which one backend passes and the other starts to fail, and a pull request that fails in both."""
    for old in (None, None, None, OLD, OLD):
        await site.relay.github.push(UPSTREAM)
        await site.relay.drain()
        await report_test(site, GATING, None)
        await report_test(site, REPORTING, old)
    pull = await open_pull(site.relay, title="Add an operator")
    await report_test(site, GATING, NEW)
    await report_test(site, REPORTING, OLD)
    return pull.number


async def is_inside(part: Locator, page: Page) -> bool:
    box, width = await part.bounding_box(), await page.evaluate("document.documentElement.clientWidth")
    return box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_groups_and_verdict_lines_are_readable_at_every_width(
    tmp_path: Path, browser: Browser, scheme: str
) -> None:
    async with gated_site(tmp_path, browser) as site:
        number = await open_judged_pull(site)
        context = await browser.new_context(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        page = await context.new_page()
        for width in (1440, 390):
            await page.set_viewport_size({"width": width, "height": 900})
            await page.goto(f"{site.url}/crcr/pr/{number}")
            groups = page.locator("#alike details")
            await expect(groups).to_have_count(2)
            await expect(groups.filter(has_text=NEW)).to_contain_text("first seen here")
            await expect(groups.filter(has_text=NEW).locator("summary .verdict")).to_contain_text("new")
            await expect(groups.filter(has_text=OLD)).to_contain_text("on the base branch 2 times")
            await expect(groups.filter(has_text=OLD).locator("summary .verdict")).to_contain_text(
                "pre-existing"
            )
            lines = page.locator(".ruling")
            await expect(lines).to_have_count(2)
            await expect(lines.filter(has_text="this failure is not known")).to_contain_text("base passed")
            for line in await lines.all():
                assert await is_inside(line, page)
                for link in await line.locator(".evidence a").all():
                    assert await is_inside(link, page)
            assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            await add_axe(page)
            assert await violations(page) == []
        await context.close()


async def test_evidence_links_to_the_result_of_the_base(tmp_path: Path, browser: Browser) -> None:
    async with gated_site(tmp_path, browser) as site:
        number, page = await open_judged_pull(site), site.page
        await page.goto(f"{site.url}/crcr/pr/{number}")
        line = page.locator(".ruling", has_text="pre-existing")
        await line.get_by_role("link", name="base failed alike").first.click()
        await expect(page.locator("h1")).to_contain_text(site.relay.github.repository(UPSTREAM).head_sha[:12])
        await expect(page.locator("main")).to_contain_text("libdevice.so.3")
        assert site.troubles == []
