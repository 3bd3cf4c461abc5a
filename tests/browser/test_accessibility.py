"""Every page in both colour schemes and all widths, checked by axe-core."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser
from sqlalchemy import text

from browser.conftest import Site, open_site
from crcr.decide.model import RepoName
from crcr.record.store.statement import Statement
from support.downstream.sandbox_callers import report_from_sandbox
from support.notices.events import tell_people
from support.published_files import package_file
from support.running_relay import UPSTREAM

ALLOWLIST = """
L1:
  - org/notified
L2:
  - org/reporter: {oncalls: [alice], hardware: "NPU", channels: [issues]}
  - org/probe: {expect: {"*xfail*": failure}}
  - org/silent
L4:
  - org/gate: [bob]
"""
BACKENDS = ("org/notified", "org/reporter", "org/probe", "org/silent", "org/gate")
PAGES = (
    "/crcr",
    "/crcr/pulls",
    "/crcr/pulls?only=waiting&state=closed&sort=gate",
    "/crcr/commits?open=org/reporter",
    "/crcr?kind=push",
    "/crcr?kind=nightly",
    "/crcr?q=nobody",
    "/crcr/metrics",
    "/crcr/levels",
    "/crcr/compat?level=L2",
    "/crcr/compat?backends=org/nobody",
    "/crcr/org/gate",
    "/crcr/org/reporter",
    "/crcr/org/reporter?older=1&result=failure",
    "/crcr/org/reporter?kind=push",
    "/crcr/org/notified",
    "/crcr/org/nobody",
    "/crcr/deliveries",
    "/crcr/deliveries?show=effects",
    "/crcr/failing",
    "/crcr/failing?kind=nightly&q=nobody",
    "/crcr/waivers",
    "/crcr/notices?topic=setup",
    "/crcr/failures",
    "/crcr/audit",
    "/crcr/sandbox",
    "/crcr/sandbox?repository=nobody",
    "/crcr/search?q=org",
    "/crcr/search?q=",
    "/crcr/onboarding",
    "/crcr/onboarding?repository=org/reporter&level=L4",
    "/crcr/onboarding?repository=org/nobody&ci=circleci&nightly=1",
    "/crcr/help",
    "/api/docs",
)
LOOPBACK = {
    "CRCR_PUBLIC_URL": "http://127.0.0.1:8000",
    "CRCR_SANDBOX": "on",
    "CRCR_CHANNELS": '[{"name": "issues", "kind": "issue"}]',
}
"""The onboarding files are generated only for a URL on which callers' tokens are safe in transit."""
_DEMOTE = Statement(
    text(
        "UPDATE level_standings SET standing = 'fails', reason = 'jobs passed: 71.0% of 320 jobs (< 85%)'"
        " WHERE downstream = 'org/gate'"
    )
)
SERIOUS = ("serious", "critical")
WIDTHS = (1440, 1024, 390)
COLOUR_RULES = ("color-contrast", "link-in-text-block")
VIEWS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("light", 390, ()),
    ("light", 1440, (*COLOUR_RULES, "scrollable-region-focusable")),
    ("dark", 1440, COLOUR_RULES),
)
"""The rules for a colour scheme and a width: all rules once, then those that depend on colours and on scrolling."""


async def violations(page: Any, rules: tuple[str, ...] = ()) -> list[str]:
    """Serious violations of these rules, or of all rules, on a page that has axe-core."""
    only = {"runOnly": list(rules)} if rules else {}
    options = {"resultTypes": ["violations"], "preload": False, **only}
    axe_violations = await page.evaluate(
        "options => axe.run(document, options).then(r => r.violations)", options
    )
    return [
        f"{violation['impact']}: {violation['id']} at {node['target']}: {node['html'][:200]}"
        for violation in axe_violations
        if violation["impact"] in SERIOUS
        for node in violation["nodes"][:5]
    ]


async def add_axe(page: Any) -> None:
    await page.evaluate(package_file("axe-core", "axe.min.js").read_text())


async def report_job(
    site: Site, run: Any, job: str, conclusion: str | None, event: str = "pull_request"
) -> None:
    job_fields = {
        "name": "CI",
        "job_name": job,
        "run_id": run.id,
        "run_attempt": 1,
        "url": "https://ci.example/1",
    }
    tests = [{"name": "test_attention", "file": "test_ops.py", "message": "AssertionError: 1.0 != 2.0"}]
    for status in ("in_progress", "completed") if conclusion else ("in_progress",):
        workflow = {**job_fields, "status": status, "conclusion": conclusion, "failed_tests": tests}
        body = {"event_type": event, "delivery_id": run.delivery_id, "workflow": workflow}
        answer = await site.relay.github.report(run, run.jobs[0], status=status, body=body)
        assert answer.status_code == 200


async def send_uncounted_reports(site: Site, run: Any) -> None:
    """Send a report that is refused, and a sandbox report of an unlisted repository."""
    await site.relay.github.report(run, "build", run_id="1")
    await report_from_sandbox(site.relay, conclusion="failure")


async def break_base(site: Site) -> None:
    """Fail a job on the base branch; one of four commits broke it."""
    for conclusion in ("success", "failure"):
        message = "Rename an operator that has a long name already, in all of its overloads (#1)"
        await site.relay.github.push(UPSTREAM, message=message, files={"src/ops.py": conclusion}, commits=4)
        await site.relay.drain()
        await report_job(site, site.relay.github.runs("org/reporter")[-1], "test (1, 2)", conclusion, "push")
    assert (await site.relay.http.get("/api/v1/culprits")).json()


async def demote_gate(site: Site) -> None:
    """Evaluate the levels of two days, with one backend that fails its level."""
    now, levels = site.relay.clock.now(), site.relay.services.levels
    for day in (1, 0):
        await levels.evaluate_now(RepoName(UPSTREAM), now - timedelta(days=day))
    await site.relay.services.database.write(lambda tx: tx.run(_DEMOTE))


async def fill(site: Site) -> list[str]:
    """Results of all kinds; returns the pages that exist only with them."""
    github = site.relay.github
    dependency = await github.open_pr("org/gate")
    pr = await github.open_pr(
        UPSTREAM,
        title="Fuse the attention kernels",
        body=f"## Downstream\nThe layout changes.\n\nDepends-On: org/gate#{dependency.number}",
        labels=["crcr/breaking"],
    )
    await site.relay.drain()
    run = github.runs("org/reporter")[0]
    for job, conclusion in (
        *(("build", "success"), ("test (1, 2)", "failure"), ("test (2, 2)", "cancelled"), ("lint", None)),
        *(("docs", "skipped"), ("style", "neutral"), ("slow", "timed_out"), ("manual", "action_required")),
    ):
        await report_job(site, run, job, conclusion)
    for run in github.runs("org/gate"):  # of the pull request and of the pair
        await github.start_job(run, "build")
        await github.complete_job(run, "build", "failure")
    await send_uncounted_reports(site, github.runs("org/reporter")[0])
    await github.push(UPSTREAM)
    for sha in (pr.head_sha, github.repository(UPSTREAM).head_sha):
        for job, conclusion in (("linux / build", "success"), ("linux / test", "failure")):
            await github.end_ci_check(await github.start_ci_check(UPSTREAM, sha, job), conclusion)
        await github.start_ci_check(UPSTREAM, sha, "macos / build")
    await break_base(site)
    await tell_people(site.relay)
    await demote_gate(site)
    await site.relay.drain()
    guid = github.runs("org/reporter")[0].delivery_id
    await site.page.goto(f"{site.url}/crcr/org/reporter")
    cell = await site.page.locator("a[href*='job=']").first.get_attribute("href")
    commit = await site.page.locator("a[href*='/crcr/commit/']").first.get_attribute("href")
    groups = (await site.relay.http.get("/api/v1/failures")).json()["items"]
    assert groups
    failures = [f"/crcr/failures/{group['fingerprint']}" for group in groups]
    return [
        f"/crcr/pr/{pr.number}",
        str(commit),
        f"/crcr/deliveries/{guid}",
        "/crcr/notices",
        f"/crcr/org/reporter{cell}",
        *failures,
    ]


async def find_page_problems(page: Any) -> list[str]:
    """Violations and overflows of the loaded page, in each width and colour scheme."""
    problems: list[str] = []
    await add_axe(page)
    for scheme, width, rules in VIEWS:
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await page.set_viewport_size({"width": width, "height": 900})
        problems += [f"{scheme}, at {width}: {violation}" for violation in await violations(page, rules)]
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 900})
        overflow_px = await page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        problems += [f"{overflow_px} px too wide at {width}"] if overflow_px > 0 else []
    return problems


@pytest.mark.timeout(600)
async def test_no_page_has_a_serious_violation_or_scrolls_horizontally(
    tmp_path: Path, browser: Browser
) -> None:
    problems: list[str] = []
    async with open_site(tmp_path, browser, allowlist=ALLOWLIST, downstreams=BACKENDS, **LOOPBACK) as site:  # type: ignore[arg-type]
        for path in (*PAGES, *await fill(site)):
            await site.page.goto(f"{site.url}{path}")
            problems += [f"{path}: {problem}" for problem in await find_page_problems(site.page)]
    assert problems == []
