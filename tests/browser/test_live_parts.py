"""A live page requests the parts that changed: other parts keep their elements, and no input of the reader is lost."""

from pathlib import Path
from random import Random

from playwright.async_api import Browser, Page, Response, Route, expect

from browser.conftest import open_site
from crcr.show.http.page_parts import cut_page, mark_part
from support.browser_pages import (
    LISTED,
    NAMES,
    live_indicator,
    load_page,
    open_pull_request,
    report_job,
    table_row,
)
from support.running_relay import UPSTREAM

# Each row gets a mark that only this element has, and a list of the rows in which something changed.
MARK_ROWS = """() => {
  window.changedRows = new Set();
  const rows = "tr[data-key], section.unit";
  for (const row of document.querySelectorAll(rows)) row.marked = true;
  new MutationObserver((changes) => {
    for (const { target } of changes) {
      const row = target.parentElement?.closest(rows) ?? (target.matches?.(rows) ? target : null);
      if (row && !target.closest?.("time")) window.changedRows.add(row.dataset.key ?? row.querySelector("h3").textContent);
    }
  }).observe(document.getElementById("main"), { subtree: true, childList: true, characterData: true });
}"""
CHANGED = "() => [...window.changedRows].sort()"
MARKED = "row => row.marked === true"


def record_refreshes(page: Page) -> list[Response]:
    refreshes: list[Response] = []
    page.on("response", lambda answer: refreshes.append(answer) if "fragment=" in answer.url else None)
    return refreshes


async def test_one_result_replaces_only_its_row_and_the_figures(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        await report_job(site, "org/alpha", "success")  # so that every column has a value
        page = await load_page(site.page, f"{site.url}/crcr")
        await page.locator("#filter").press_sequentially("o", delay=0)
        await expect(page).to_have_url(f"{site.url}/crcr?q=o")
        await expect(page.locator(".filters .count")).to_contain_text("3 of 3")
        await page.evaluate(MARK_ROWS)
        refreshes = record_refreshes(page)
        link = table_row(page, "org/gamma").locator("a")
        await link.focus()
        await report_job(site, "org/gamma", "failure")
        await expect(table_row(page, "org/gamma").locator(".last")).to_contain_text("failure")
        await expect(page.locator(".card[data-key=jobs] .figure")).to_have_text("2")
        await expect(link).to_be_focused()
        await expect(page.locator("#filter")).to_have_value("o")
        # The worst backend is now first: the other rows moved and are still the same elements.
        await expect(page.locator("tbody tr[data-key*='/']").first).to_have_attribute("data-key", "org/gamma")
        assert await page.evaluate(CHANGED) == ["org/gamma"]
        for name in NAMES:
            assert await table_row(page, name).evaluate(MARKED)
        assert refreshes
        for answer in refreshes:
            assert "fragment=parts" in answer.url
            assert "org/alpha" not in await answer.text()

        site.relay.write_allowlist(f"{LISTED}L3:\n  npu:\n    org/delta: [ann]\n")
        await site.relay.refresh()
        await report_job(site, "org/beta", "success")
        await expect(table_row(page, "org/delta")).to_be_visible()
        for name in NAMES:
            assert await table_row(page, name).evaluate(MARKED)
        assert site.troubles == []


async def test_a_pull_request_page_replaces_the_block_of_one_backend(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        for name in NAMES:
            await report_job(site, name, "failure")
            await report_job(site, name, "success", "test")
        page = await load_page(site.page, f"{site.url}/crcr/pr/1")
        block = page.locator("section.unit", has=page.get_by_role("heading", name="org/beta"))
        await block.locator("details").click()
        await page.evaluate(MARK_ROWS)
        refreshes = record_refreshes(page)
        run = site.relay.github.runs("org/beta")[-1]
        await site.relay.github.rerun(run)
        await site.relay.github.start_job(site.relay.github.runs("org/beta")[-1], "build")
        await expect(block).to_contain_text("attempt 2")
        await expect(block.locator("details")).to_have_attribute("open", "")
        assert await block.evaluate(MARKED)
        assert await page.evaluate(CHANGED) == ["org/beta"]
        texts = [await answer.text() for answer in refreshes]
        assert texts
        assert not [text for text in texts if "org/alpha</a></h3>" in text]
        assert site.troubles == []


async def test_a_refresh_answered_503_is_retried_only_after_its_retry_after(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        page = site.page
        await page.clock.install()
        await load_page(page, f"{site.url}/crcr")
        refresh_urls: list[str] = []

        async def refuse(route: Route) -> None:
            refresh_urls.append(route.request.url)
            await route.fulfill(status=503, headers={"Retry-After": "40"}, body="not now")

        await page.route("**/*fragment=*", refuse)
        async with page.expect_response("**/*fragment=*"):
            await report_job(site, "org/alpha", "failure")
            await page.clock.run_for(2_000)
        await report_job(site, "org/beta", "failure")
        await page.clock.run_for(35_000)
        await expect(live_indicator(page)).to_have_text("live")
        assert len(refresh_urls) == 1
        async with page.expect_response("**/*fragment=*"):
            await page.clock.run_for(30_000)
        await expect(live_indicator(page)).to_have_text("not up to date, trying again")
        await expect(table_row(page, "org/alpha").locator(".last")).to_contain_text("no results")
        assert len(refresh_urls) == 2
        await page.unroute("**/*fragment=*")
        await page.clock.run_for(60_000)
        await expect(table_row(page, "org/alpha").locator(".last")).to_contain_text("failure")
        await expect(live_indicator(page)).to_have_text("live")


async def test_a_partial_response_that_does_not_fit_is_followed_by_a_full_refresh(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        await open_pull_request(site)
        page = await load_page(site.page, f"{site.url}/crcr")
        stub = '<h1>Other</h1><template data-same="0-900"></template>'
        await page.route(
            "**/*fragment=parts*", lambda route: route.fulfill(content_type="text/html", body=stub)
        )
        async with page.expect_response("**/*fragment=main*"):
            await report_job(site, "org/alpha", "failure")
        await expect(table_row(page, "org/alpha").locator(".last")).to_contain_text("failure")
        await expect(page.locator("h1")).to_have_text("Backends")


# Both return the page without whitespace between elements, which partial responses omit.
VERSIONS = "() => { window.parts = crcr.shownParts(); return crcr.versionsOf(window.parts); }"
REFRESH = """([answer, whole]) => {
  const main = document.getElementById("main");
  const parse = (html) => new DOMParser().parseFromString(`<body>${html}`, "text/html").body;
  const text = (tree) => tree.innerHTML.replace(/>\\s+</g, "><").trim();
  const fresh = parse(answer);
  if (!crcr.completeParts(fresh, window.parts, main)) throw new Error("does not fit");
  crcr.morph(main, fresh, { rows: true });
  return [text(main), text(parse(whole))];
}"""


def random_main(random: Random) -> str:
    """Groups of rows with keys, a list without keys whose items may be equal, and parts between other elements."""
    rows = random.sample(range(12), random.randint(0, 12))
    groups = [
        "".join(mark_part(f'<tr data-key="{row}"><td>{row} {random.choice("ab")}</td></tr>') for row in group)
        for group in (rows[:4], rows[4:])
    ]
    items = "".join(mark_part(f"<li>{random.choice('abc')}</li>") for _ in range(random.randint(0, 6)))
    marked = mark_part("<section>marked</section>")
    note = random.choice(["", "<section>note</section>", marked, marked, marked])
    inner, outer = random.sample((note, ""), 2)
    keys = random.sample("xyz", 2)
    tables = "".join(
        f'<tbody data-key="{key}">{group}</tbody>' for key, group in zip(keys, groups, strict=True)
    )
    figures = mark_part(f"<section class='cards'><p>{random.choice('ab')}</p></section>")
    return (
        f"<h1>Title</h1><div>{inner}</div>{outer}{figures}<table>{tables}</table>{outer}"
        f"<ul><li>first</li>{items}</ul><p>end</p>"
    )


async def test_a_page_updated_from_parts_equals_the_whole_page_after_any_change(
    tmp_path: Path, browser: Browser
) -> None:
    random = Random(3)
    async with open_site(tmp_path, browser) as site:
        await site.page.goto(f"{site.url}/crcr/onboarding")
        for _ in range(150):
            whole = random_main(random)
            versions = await site.page.evaluate(VERSIONS)
            answer = cut_page(whole.encode()).without(versions).decode()
            shown, expected = await site.page.evaluate(REFRESH, [answer, whole])
            assert shown == expected
        assert site.troubles == []


async def test_in_tree_checks_appear_on_the_open_page_of_their_pull_request(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=LISTED, downstreams=NAMES) as site:
        github = site.relay.github
        pull = await github.open_pr(UPSTREAM, title="Add an operator")
        page = await load_page(site.page, f"{site.url}/crcr/pr/{pull.number}")
        check = await github.start_ci_check(UPSTREAM, pull.head_sha, "linux / test")
        await expect(page.locator("#in-tree")).to_contain_text("1 running")
        site.relay.clock.advance(20)
        await github.end_ci_check(check, "failure")
        await expect(page.locator("#in-tree a")).to_have_text("linux / test")
        await expect(page.locator("#in-tree")).to_contain_text("1 failed")
        assert await page.evaluate("window.notReloaded")
