"""A backend's own page in a real browser: its matrix, a job's details, by mouse, by keyboard and without
JavaScript; live updates keep everything that the reader had open.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Browser, Page, expect
from starlette.applications import Starlette

from browser.conftest import Site, open_site
from crcr.show.pages import routes as pages_routes
from crcr.show.pages.frame import Frame
from crcr.show.urls.job_tokens import decode_job_key
from github_sim.github import JobSpec, Workflow, WorkflowRun
from github_sim.rest.server import Server
from support.data.store_rows import UPSTREAM as STORED
from support.data.store_rows import StoreRows, open_store_rows
from support.running_relay import RELAY_URL, UPSTREAM

REPORTER = "org/reporter"
PATH = f"/crcr/{REPORTER}"
SHARDS = tuple(f"test ({number}, 6)" for number in range(1, 7))
WIDE = tuple(f"build on {first}{second}" for first in "abcdef" for second in "uvwxyz")
LETTERS = {"success": "O", "failure": "X", "cancelled": "C", "skipped": "S", "neutral": "N", None: "?"}
CELLS = "#matrix-table tbody td > a"


@asynccontextmanager
async def reporter_site(
    folder: Path, browser: Browser, jobs: tuple[str, ...] = ("build", "test"), *, javascript: bool = True
) -> AsyncIterator[Site]:
    async with open_site(folder, browser, javascript=javascript) as site:
        site.relay.github.repository(REPORTER).workflows = [Workflow(jobs=tuple(map(JobSpec, jobs)))]
        yield site


async def open_finished_run(
    site: Site, title: str = "Add an operator", /, **conclusions: str | None
) -> WorkflowRun:
    """Open a pull request and start all its jobs; end each with its named conclusion or success, None leaves it running."""
    github = site.relay.github
    await github.open_pr(UPSTREAM, title=title)
    await site.relay.drain()
    run = github.runs(REPORTER)[-1]
    for job in run.jobs:
        await github.start_job(run, job.name)
        conclusion = conclusions.get(job.name, "success")
        if conclusion:
            await github.complete_job(run, job.name, conclusion)
    await site.relay.drain()
    return run


async def open_backend_page(site: Site, query: str = "") -> Page:
    await site.page.goto(f"{site.url}{PATH}{query}")
    await expect(site.page.locator("#live")).to_contain_text("live")
    await site.page.evaluate("window.notReloaded = true")
    return site.page


def job_from_url(url: str) -> str | None:
    return next(iter(parse_qs(urlsplit(url).query).get("job", [])), None)


async def test_the_matrix_matches_the_stored_jobs(tmp_path: Path, browser: Browser) -> None:
    async with reporter_site(tmp_path, browser) as site:
        await open_finished_run(site, build="failure")
        await open_finished_run(site, test="cancelled")
        await open_finished_run(site, build="neutral", test=None)
        page = await open_backend_page(site)
        shown: dict[tuple[str, str], str] = {}
        names = await page.locator("#matrix-table .job span").all_text_contents()
        for row in await page.locator("#matrix-table tbody tr").all():
            number = (await row.locator(".what a").first.text_content() or "").removeprefix("#")
            letters = await row.locator("td > a").all_text_contents()
            shown |= {(number, name): letter for name, letter in zip(names, letters, strict=True)}
        stored = {
            (str(row["number"]), row["job_name"]): LETTERS[row["conclusion"]]
            for row in site.relay.jobs(REPORTER)
        }
        assert shown == stored
        assert len(stored) == 6
        assert site.troubles == []


async def test_a_cell_opens_job_details_and_their_url_reopens_them(tmp_path: Path, browser: Browser) -> None:
    async with reporter_site(tmp_path, browser) as site:
        await open_finished_run(site, test="failure")
        page = await open_backend_page(site)
        cell = page.locator("#matrix-table td.bad > a")
        await cell.click()
        panel = page.locator("#panel")
        await expect(panel).to_contain_text("test")
        await expect(panel).to_contain_text("failure")
        await expect(panel).to_be_focused()
        await expect(cell).to_have_attribute("aria-current", "true")
        key = decode_job_key(job_from_url(page.url))
        assert key is not None
        assert key.job_name == "test"
        job_url = await page.locator("#panel-link").input_value()

        await page.keyboard.press("Escape")
        await expect(panel).to_have_count(0)
        await expect(cell).to_be_focused()
        assert job_from_url(page.url) is None
        assert await page.evaluate("window.notReloaded") is True

        await page.goto(job_url.replace(RELAY_URL, site.url))
        await expect(panel).to_contain_text("failure")
        await page.locator("#panel-close").click()
        await expect(panel).to_have_count(0)
        assert site.troubles == []


async def test_back_and_forward_navigate_through_opened_details(tmp_path: Path, browser: Browser) -> None:
    async with reporter_site(tmp_path, browser) as site:
        await open_finished_run(site, test="failure")
        page = await open_backend_page(site)
        title = page.locator("#panel-title")
        await page.locator("#matrix-table td.ok > a").click()
        await expect(title).to_have_text("build")
        await page.locator("#matrix-table td.bad > a").click()
        await expect(title).to_have_text("test")
        await page.go_back()
        await expect(title).to_have_text("build")
        await page.go_back()
        await expect(title).to_have_count(0)
        await page.go_forward()
        await expect(title).to_have_text("build")
        assert await page.evaluate("window.notReloaded") is True
        assert site.troubles == []


async def test_arrow_keys_move_through_the_matrix_and_enter_opens_details(
    tmp_path: Path, browser: Browser
) -> None:
    async with reporter_site(tmp_path, browser) as site:
        await open_finished_run(site, build="failure")
        await open_finished_run(site)
        page = await open_backend_page(site)
        stops = page.locator(f"{CELLS}[tabindex='0']")
        await expect(stops).to_have_count(1)
        await stops.focus()
        for key in ("ArrowRight", "ArrowDown", "ArrowLeft"):
            await page.keyboard.press(key)
        focused = page.locator(f"{CELLS}:focus")
        await expect(focused).to_have_text("X")
        await expect(stops).to_have_count(1)
        await page.keyboard.press("ArrowLeft")
        await expect(focused).to_have_text("X")
        await page.keyboard.press("Enter")
        await expect(page.locator("#panel-title")).to_have_text("build")
        await page.keyboard.press("Escape")
        await expect(focused).to_have_text("X")
        assert site.troubles == []


async def test_an_update_keeps_scroll_position_focus_and_open_details(
    tmp_path: Path, browser: Browser
) -> None:
    async with reporter_site(tmp_path, browser, WIDE) as site:
        page = site.page
        await page.set_viewport_size({"width": 1000, "height": 700})
        run = await open_finished_run(site, **{WIDE[-1]: None})
        await open_backend_page(site)
        frame = page.locator("#scroll-matrix")
        await frame.evaluate("frame => frame.scrollTo(300, 0)")
        await page.locator("#matrix-table td.run > a").click()
        await expect(page.locator("#panel")).to_contain_text("running")
        await page.locator("#panel-link").focus()
        before = await frame.evaluate("frame => [frame.scrollLeft, scrollY]")

        await site.relay.github.complete_job(run, WIDE[-1], "failure")
        await site.relay.drain()
        await expect(page.locator("#panel")).to_contain_text("failure")
        await expect(page.locator("#matrix-table td.bad > a")).to_have_attribute("aria-current", "true")
        assert await frame.evaluate("frame => [frame.scrollLeft, scrollY]") == before
        await expect(page.locator("#panel-link")).to_be_focused()
        await expect(page.locator(f"{CELLS}[tabindex='0']")).to_have_count(1)
        assert await page.evaluate("window.notReloaded") is True
        assert site.troubles == []


async def test_shards_unfold_in_place(tmp_path: Path, browser: Browser) -> None:
    async with reporter_site(tmp_path, browser, ("build", *SHARDS)) as site:
        await open_finished_run(site, **{SHARDS[3]: "failure"})
        page = await open_backend_page(site)
        await expect(page.locator("#matrix-table tbody td.bad")).to_have_text("X1/6")
        await page.locator("#matrix-table thead .shards a").click()
        await expect(page.locator("#matrix-table thead .job")).to_have_count(7)
        await expect(page.locator("#matrix-table tbody td.bad")).to_have_text("X")
        assert "open=" in page.url
        await page.locator("#matrix-table thead .opened a").first.click()
        await expect(page.locator("#matrix-table tbody td.bad")).to_have_text("X1/6")
        assert await page.evaluate("window.notReloaded") is True
        assert site.troubles == []


async def test_filters_narrow_the_matrix_and_stay_in_the_url(tmp_path: Path, browser: Browser) -> None:
    async with reporter_site(tmp_path, browser) as site:
        await open_finished_run(site, "Add an operator", build="failure")
        await open_finished_run(site, "Mend the docs")
        page = await open_backend_page(site)
        rows = page.locator("#matrix-table tbody tr")
        await expect(rows).to_have_count(2)
        await page.locator("#filter-q").fill("mend")
        await expect(rows).to_have_count(1)
        await expect(page.locator("#matrix")).to_contain_text("2 events searched")
        assert "q=mend" in page.url
        await page.locator("#filter-result").select_option("failure")
        await expect(page.locator("#matrix")).to_contain_text("No matching events")
        await page.locator("#matrix .empty").get_by_role("link", name="Clear the filters").click()
        await expect(rows).to_have_count(2)
        await page.locator("#jobs").get_by_role("link", name="build").click()
        await expect(page.locator("#matrix-table thead .job")).to_have_count(1)
        assert site.troubles == []


async def test_without_javascript_everything_is_a_link_or_a_form(tmp_path: Path, browser: Browser) -> None:
    async with reporter_site(tmp_path, browser, ("build", *SHARDS), javascript=False) as site:
        page = site.page
        await open_finished_run(site, "Add an operator", build="failure")
        await open_finished_run(site, "Mend the docs")
        await page.goto(f"{site.url}{PATH}")
        await page.locator("#matrix-table td.bad > a").first.click()
        await expect(page.locator("#panel")).to_contain_text("failure")
        await expect(page.locator("#matrix-table td.bad > a").first).to_have_attribute("aria-current", "true")
        await page.locator("#panel-close").click()
        await expect(page.locator("#panel")).to_have_count(0)
        await page.locator("#matrix-table thead .shards a").click()
        await expect(page.locator("#matrix-table thead .job")).to_have_count(7)
        await page.locator("#filter-q").fill("mend")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator("#matrix-table tbody tr")).to_have_count(1)
        await expect(page.locator("#matrix-table thead .job")).to_have_count(7)


async def test_hostile_text_is_escaped_in_the_job_details(tmp_path: Path, browser: Browser) -> None:
    evil = "<script>alert('job')</script><img src=x onerror=alert(1)>"
    async with reporter_site(tmp_path, browser) as site:
        page, github = site.page, site.relay.github
        await github.open_pr(UPSTREAM, title=evil, author="mallory")
        await site.relay.drain()
        run = github.runs(REPORTER)[0]
        link = "javascript:alert(document.domain)"
        job_fields = {
            "name": evil,
            "job_name": evil,
            "run_id": run.id,
            "run_attempt": 1,
            "url": link,
            "artifact_url": link,
        }
        job_fields |= {
            "failed_tests": [{"name": evil, "file": evil, "message": evil}],
            "environment": {evil: evil},
        }
        for state in ("in_progress", "completed"):
            workflow = {**job_fields, "status": state, "conclusion": "failure"}
            body = {"event_type": "pull_request", "delivery_id": run.delivery_id, "workflow": workflow}
            assert (await github.report(run, run.jobs[0], status=state, body=body)).status_code == 200
        await open_backend_page(site)
        await page.locator("#matrix-table td.bad > a").click()
        await expect(page.locator("#panel")).to_contain_text("alert('job')")
        assert await page.locator("main script, main img").count() == 0
        assert await page.locator("a[href^='javascript']").count() == 0
        await expect(page.locator("#panel-title")).to_have_text(evil)
        assert site.troubles == []


@asynccontextmanager
async def stored_site(
    folder: Path, browser: Browser, **context: Any
) -> AsyncIterator[tuple[StoreRows, str, Page]]:
    """The pages over a store that is filled row by row, for more rows than a simulated history would produce."""
    async with open_store_rows(folder, upstreams=(STORED,)) as store:
        store.allowlist()
        server = Server(
            Starlette(routes=pages_routes.routes(Frame(store.views, upstreams=(STORED,), clock=store.clock))),
            "127.0.0.1",
            0,
        )
        await server.start()
        browser_context = await browser.new_context(**context)
        try:
            yield store, f"{server.url}/crcr/good/backend", await browser_context.new_page()
        finally:
            await browser_context.close()
            await server.stop()


def fill(store: StoreRows, events: int, names: tuple[str, ...]) -> None:
    for number in range(1, events + 1):
        delivery = store.pull(number, title=f"change {number}")
        store.dispatch(delivery, number=number, head_sha=f"{number:040x}", hours_ago=events - number + 1)
        for name in names:
            store.job(delivery, job_name=name, number=number, hours_ago=max(1, events - number))


async def test_older_events_can_be_paged_to_the_end(tmp_path: Path, browser: Browser) -> None:
    async with stored_site(tmp_path, browser, java_script_enabled=False) as (store, url, page):
        fill(store, 120, ("build",))
        await page.goto(url)
        event_titles: list[str] = []
        while True:
            event_titles += await page.locator("#matrix-table .what > a:first-child").all_text_contents()
            older = page.get_by_role("link", name="Older events")
            if not await older.count():
                break
            await older.click()
        assert event_titles == [f"#{number}" for number in range(120, 0, -1)]
        await page.get_by_role("link", name="Newest events").click()
        await expect(page.locator("#matrix-table .what > a:first-child").first).to_have_text("#120")


async def test_headers_stay_in_view_and_only_the_matrix_scrolls_horizontally(
    tmp_path: Path, browser: Browser
) -> None:
    names = (*WIDE, *(f"{'a very long name of a job ' * 6}{letter}" for letter in "abcdefgh"))
    async with stored_site(tmp_path, browser) as (store, url, page):
        fill(store, 40, names)
        for width in (1440, 1024, 390):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.goto(url)
            frame = page.locator("#scroll-matrix")
            await frame.evaluate("frame => frame.scrollTo(400, 500)")
            box = await frame.bounding_box()
            head = await page.locator("#matrix-table thead .job").nth(20).bounding_box()
            first = await page.locator("#matrix-table tbody th").nth(20).bounding_box()
            assert box is not None
            assert head is not None
            assert first is not None
            assert box["y"] <= head["y"] < box["y"] + 40
            assert abs(first["x"] - box["x"]) < 3
            assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            await frame.evaluate("frame => frame.scrollTo(0, 0)")
            await page.locator(CELLS).first.click()
            await expect(page.locator("#panel")).to_be_visible()
            assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            panel = await page.locator("#panel").bounding_box()
            assert panel is not None
            assert (panel["width"] == width) is (width == 390)


async def test_a_matrix_of_2400_cells_loads_within_limits(tmp_path: Path, browser: Browser) -> None:
    async with stored_site(tmp_path, browser) as (store, url, page):
        fill(store, 50, (*WIDE, *(f"other {first}{second}" for first in "abcd" for second in "klmnopqrstu")))
        answer = await page.goto(url)
        assert answer is not None
        assert len(await answer.body()) < 1_500_000
        assert await page.locator(CELLS).count() == 2_400
        timing = json.loads(
            await page.evaluate("JSON.stringify(performance.getEntriesByType('navigation')[0])")
        )
        assert timing["domInteractive"] < 20_000, "seconds would mean that something grows with the square"
