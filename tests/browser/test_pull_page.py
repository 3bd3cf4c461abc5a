"""A pull request's page as its author sees it: the gate and its reasons, live, without JavaScript, with hostile text."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, expect

from browser.conftest import Site, open_site
from browser.test_accessibility import find_page_problems
from support.github.gated_upstream import (
    GATING,
    WORKFLOW_WITH_GUID,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
    write_comment,
)
from support.github.pairs import end_run, open_pair, pair_runs, plain_runs
from support.running_relay import UPSTREAM

BREAKING = "crcr/breaking"
REPORTING = "org/reporting"
SILENT = "org/notified"
GATED = f"""
L1:
  - {SILENT}
L2:
  - {REPORTING}
L4:
  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}
"""


@asynccontextmanager
async def gated_site(folder: Path, browser: Browser, *, javascript: bool = True) -> AsyncIterator[Site]:
    names = (GATING, REPORTING, SILENT)
    async with open_site(folder, browser, javascript=javascript, allowlist=GATED, downstreams=names) as site:
        for name in names:
            site.relay.github.repository(name).workflows = [WORKFLOW_WITH_GUID]
        site.relay.github.set_permission(UPSTREAM, "maintainer", "maintain")
        yield site


async def test_the_gate_follows_its_jobs_and_a_waiver_without_a_reload(
    tmp_path: Path, browser: Browser
) -> None:
    async with gated_site(tmp_path, browser) as site:
        page, relay = site.page, site.relay
        pull = await open_pull(relay, title="Add an operator")
        await page.goto(f"{site.url}/crcr/pr/{pull.number}?upstream={UPSTREAM}")
        await expect(page.locator("h1")).to_contain_text("Add an operator")
        await expect(page.locator("#live")).to_contain_text("live")
        await page.evaluate("window.notReloaded = true")
        gate = page.locator(".gate")
        await expect(gate).to_contain_text("waiting for org/gating")

        await run_all(relay, test="failure")
        await expect(gate).to_contain_text("org/gating failed (test)")
        await expect(gate).to_contain_text("/crcr retry org/gating")
        await expect(page.locator(".unit", has_text=GATING)).to_contain_text("failure")

        await write_comment(relay, pull, f"/crcr waive {GATING} because the driver is known to be broken")
        await expect(gate).to_contain_text("waived by @maintainer")
        waivers = page.locator("section", has=page.get_by_role("heading", name="Waivers"))
        await expect(waivers).to_contain_text("the driver is known to be broken")
        await expect(waivers).to_contain_text("in force")
        assert await page.evaluate("window.notReloaded") is True
        assert site.troubles == []


async def test_a_held_pair_updates_live_on_pages_without_accessibility_problems(
    tmp_path: Path, browser: Browser
) -> None:
    async with gated_site(tmp_path, browser) as site:
        page, relay = site.page, site.relay
        pull, other = await open_pair(relay, title="<b>Register</b> the kernel")
        await end_run(relay, plain_runs(relay)[0], "failure")
        await page.goto(f"{site.url}/crcr/pr/{pull.number}?upstream={UPSTREAM}")
        pairs = page.locator("#pairs")
        await expect(pairs).to_contain_text(f"Is being tested with {GATING}#{other.number}")
        await expect(page.locator("#live")).to_contain_text("live")
        await end_run(relay, pair_runs(relay)[0])
        sentence = f"asses with {GATING}#{other.number}, which is not merged"
        await expect(page.locator(".gate")).to_contain_text(f"p{sentence}")
        await expect(pairs).to_contain_text(f"P{sentence}")
        assert await find_page_problems(page) == []
        await page.goto(f"{site.url}/crcr/{GATING}?upstream={UPSTREAM}")
        await expect(page.locator("#pairs")).to_contain_text(f"depends on #{other.number}")
        assert await find_page_problems(page) == []
        assert site.troubles == []


async def test_a_job_result_appears_and_the_open_panel_stays_open(tmp_path: Path, browser: Browser) -> None:
    async with gated_site(tmp_path, browser) as site:
        page, relay = site.page, site.relay
        pull = await open_pull(relay)
        run = newest_run(relay, REPORTING)
        await start_jobs(relay, run, "build")
        await page.goto(f"{site.url}/crcr/pr/{pull.number}")
        await expect(page.locator("#live")).to_contain_text("live")
        unit = page.locator(".unit", has_text=REPORTING)
        await expect(unit).to_contain_text("running")
        await unit.get_by_role("link", name="build").click()
        panel = page.locator("#panel")
        await expect(panel).to_contain_text("not yet reported")
        await expect(panel).to_contain_text(REPORTING)

        await relay.github.complete_job(run, "build", "failure")
        await expect(unit).to_contain_text("failure")
        await expect(panel.locator(".states")).to_contain_text("failure")
        await expect(page.locator(".unit", has_text=SILENT)).to_contain_text("notified")
        await page.keyboard.press("Escape")
        await expect(panel).to_have_count(0)
        await expect(unit.get_by_role("link", name="build")).to_be_focused()
        assert site.troubles == []


async def test_failure_groups_link_to_their_jobs(tmp_path: Path, browser: Browser) -> None:
    async with gated_site(tmp_path, browser) as site:
        page, relay = site.page, site.relay
        pull = await open_pull(relay)
        failures = [
            {"name": "test_lazy", "file": "test.py", "message": "RuntimeError: no kernel on device 3"}
        ]
        for name in (GATING, REPORTING):
            run = newest_run(relay, name)
            await start_jobs(relay, run, "test")
            job_fields = {
                "name": "CI",
                "job_name": "test",
                "run_id": run.id,
                "run_attempt": 1,
                "status": "completed",
            }
            job_fields |= {"conclusion": "failure", "failed_tests": failures}
            body = {"event_type": "pull_request", "delivery_id": run.delivery_id, "workflow": job_fields}
            answer = await relay.github.report(run, run.jobs[1], status="completed", body=body)
            assert answer.status_code == 200
        await relay.drain()
        await page.goto(f"{site.url}/crcr/pr/{pull.number}")
        group = page.locator("#alike details")
        await expect(group).to_contain_text("no kernel on device")
        await expect(group).to_contain_text("2 of 2 backends fail alike")
        await group.locator("summary").click()
        await group.get_by_role("link", name="test").first.click()
        await expect(page.locator("#panel")).to_contain_text("no kernel on device 3")
        assert site.troubles == []


async def test_events_of_another_pull_request_do_not_refresh_the_page(
    tmp_path: Path, browser: Browser
) -> None:
    async with gated_site(tmp_path, browser) as site:
        page, relay = site.page, site.relay
        pull, other = await open_pull(relay), await open_pull(relay)
        request_urls: list[str] = []
        await page.goto(f"{site.url}/crcr/pr/{pull.number}")
        await expect(page.locator("#live")).to_contain_text("live")
        page.on("request", lambda request: request_urls.append(request.url))
        await relay.github.label_pr(other, "topic: ops")
        await page.wait_for_timeout(1_000)
        assert [url for url in request_urls if "fragment" in url] == []
        await relay.github.label_pr(pull, "topic: ops")
        await expect(page.locator(".under")).to_contain_text("topic: ops")


async def test_without_javascript_the_page_is_complete_and_its_links_work(
    tmp_path: Path, browser: Browser
) -> None:
    async with gated_site(tmp_path, browser, javascript=False) as site:
        page = site.page
        pull = await open_pull(site.relay, title="Add an operator")
        await run_all(site.relay, test="failure")
        await page.goto(f"{site.url}/crcr/{GATING}")
        await page.locator("table").get_by_role("link", name=f"#{pull.number}", exact=True).click()
        await expect(page).to_have_url(f"{site.url}/crcr/pr/{pull.number}")
        await expect(page.locator(".gate")).to_contain_text("org/gating failed (test)")
        for name in (GATING, REPORTING, SILENT):
            await expect(page.locator("main")).to_contain_text(name)
        await page.locator(".under").get_by_role("link", name=pull.head_sha[:8]).click()
        await expect(page.locator("h1")).to_contain_text(pull.head_sha[:12])
        await expect(page.locator(".gate")).to_contain_text("org/gating failed (test)")


async def test_fault_29_hostile_text_is_escaped(tmp_path: Path, browser: Browser) -> None:
    evil = "<script>alert('title')</script><img src=x onerror=alert(1)>"
    async with gated_site(tmp_path, browser) as site:
        page, relay = site.page, site.relay
        pull = await open_pull(
            relay, title=evil, author="mallory", body=f"## Downstream\n{evil}", labels=[BREAKING]
        )
        await relay.github.label_pr(pull, evil[:50])
        await write_comment(relay, pull, f"/crcr waive {GATING}:{evil} because {evil}")
        run = newest_run(relay)
        link = "javascript:alert(document.domain)"
        failures = [{"name": evil, "file": evil, "message": evil}]
        for state in ("in_progress", "completed"):
            job_fields = {"name": evil, "job_name": evil, "run_id": run.id, "run_attempt": 1, "url": link}
            job_fields |= {
                "status": state,
                "conclusion": "failure",
                "artifact_url": link,
                "failed_tests": failures,
            }
            body = {"event_type": "pull_request", "delivery_id": run.delivery_id, "workflow": job_fields}
            answer = await relay.github.report(run, run.jobs[0], status=state, body=body)
            assert answer.status_code == 200
        await relay.drain()
        for path in (f"/crcr/pr/{pull.number}", f"/crcr/commit/{pull.head_sha}"):
            await page.goto(f"{site.url}{path}")
            await expect(page.locator("main")).to_contain_text("alert('title')")
            assert await page.locator("main script, main img").count() == 0
            assert await page.locator("a[href^='javascript']").count() == 0
        assert site.troubles == []


async def test_a_narrow_window_needs_no_horizontal_scrolling(tmp_path: Path, browser: Browser) -> None:
    async with gated_site(tmp_path, browser) as site:
        pull = await open_pull(
            site.relay,
            title="Add an operator with a title that is long enough to wrap twice",
            body=f"## Downstream\nThe layout of {'packed_' * 20}weights changes.",
            labels=[BREAKING],
        )
        await run_all(site.relay, test="failure")
        await write_comment(site.relay, pull, f"/crcr ack {GATING}", author="bob")
        await site.page.set_viewport_size({"width": 390, "height": 844})
        await site.page.goto(f"{site.url}/crcr/pr/{pull.number}")
        announcement = site.page.locator("#announcement")
        await expect(announcement).to_contain_text("1 of 3 backends answered")
        await expect(announcement.locator("tr", has_text=GATING)).to_contain_text("bob")
        overflow_px = await site.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow_px <= 0
