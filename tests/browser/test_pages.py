"""The pages in a browser: live, without JavaScript, and with hostile text in every field."""

from pathlib import Path

from playwright.async_api import Browser, expect

from browser.conftest import open_site
from support.running_relay import UPSTREAM


async def test_a_result_appears_on_an_open_page_without_a_reload(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser) as site:
        page, github = site.page, site.relay.github
        await page.goto(f"{site.url}/crcr")
        await expect(page.locator("#live")).to_contain_text("live")
        await page.evaluate("window.notReloaded = true")
        row = page.locator("tr", has_text="org/reporter")
        await expect(row).to_contain_text("no results")

        await github.open_pr(UPSTREAM, title="Add an operator")
        await site.relay.drain()
        run = github.runs("org/reporter")[0]
        await github.start_job(run, "build")
        await github.complete_job(run, "build", "failure")

        await expect(row).to_contain_text("0%")
        await expect(row).to_contain_text("failure")
        assert await page.evaluate("window.notReloaded") is True
        assert site.troubles == []


async def test_a_backend_page_shows_its_matrix_and_follows_a_running_job(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser) as site:
        page, github = site.page, site.relay.github
        pr = await github.open_pr(UPSTREAM, title="Add an operator")
        await site.relay.drain()
        run = github.runs("org/reporter")[0]
        await github.start_job(run, "build")
        await page.goto(f"{site.url}/crcr")
        await page.get_by_role("link", name="org/reporter").click()

        row = page.locator("tr", has_text=f"#{pr.number}").first
        await expect(page.locator("main")).to_contain_text("build")
        await expect(row).to_contain_text("?")
        await github.complete_job(run, "build", "success")
        await expect(row).to_contain_text("O")
        assert site.troubles == []


async def test_without_javascript_the_page_is_complete(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, javascript=False) as site:
        await site.relay.github.open_pr(UPSTREAM, title="Add an operator")
        await site.relay.drain()
        await site.page.goto(f"{site.url}/crcr")
        for name in ("org/notified", "org/reporter", "org/silent"):
            await expect(site.page.locator("main")).to_contain_text(name)
        await site.page.get_by_role("link", name="org/reporter").click()
        await expect(site.page).to_have_url(f"{site.url}/crcr/org/reporter")


async def test_fault_29_hostile_text_is_escaped(tmp_path: Path, browser: Browser) -> None:
    evil = "<script>alert('job')</script><img src=x onerror=alert(1)>"
    async with open_site(tmp_path, browser) as site:
        page, github = site.page, site.relay.github
        await github.open_pr(UPSTREAM, title=evil, author="mallory")
        await site.relay.drain()
        run = github.runs("org/reporter")[0]
        link = "javascript:alert(document.domain)"
        workflow = {
            "name": evil,
            "job_name": evil,
            "run_id": run.id,
            "run_attempt": 1,
            "url": link,
            "artifact_url": link,
        }
        failures = [{"name": evil, "file": evil, "message": evil}]
        for status in ("in_progress", "completed"):
            report = {**workflow, "status": status, "conclusion": "failure", "failed_tests": failures}
            body = {"event_type": "pull_request", "delivery_id": run.delivery_id, "workflow": report}
            answer = await github.report(run, run.jobs[0], status=status, body=body)
            assert answer.status_code == 200
        await page.goto(f"{site.url}/crcr/org/reporter")
        await expect(page.locator("main")).to_contain_text("alert('job')")
        assert await page.locator("main script, main img").count() == 0
        assert await page.locator("a[href^='javascript']").count() == 0
        assert site.troubles == []


async def test_a_page_catches_up_after_it_was_offline(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser) as site:
        page, github = site.page, site.relay.github
        await page.goto(f"{site.url}/crcr")
        await expect(page.locator("#live")).to_contain_text("live")
        await page.context.set_offline(True)  # cuts the stream like a closed laptop lid
        await page.evaluate("dispatchEvent(new Event('offline'))")
        await expect(page.locator("#live")).to_have_text("reconnecting")
        await github.open_pr(UPSTREAM, title="Add an operator")
        await site.relay.drain()
        await page.context.set_offline(False)
        await expect(page.locator("tr", has_text="org/notified")).to_contain_text("notified 1 time")
