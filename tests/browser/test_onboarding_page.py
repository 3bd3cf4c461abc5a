"""The onboarding page in a browser: choices update their files at once, code is copied, and the check is live."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from browser.conftest import open_site
from crcr.decide.model import Level, RepoName
from crcr.join.files import generate
from crcr.join.request import Ci, JoinRequest
from support.browser_pages import load_page
from support.page_reader import HOSTILE
from support.running_relay import AUDIENCE, UPSTREAM

RELAY = "http://127.0.0.1:8000"
ONBOARDING = "/crcr/onboarding"


def workflow(page: Page) -> Locator:
    return page.locator("#file-1")


def generated(**more: object) -> str:
    defaults = {"ci": Ci.GITHUB, "upstream": RepoName(UPSTREAM), "repository": RepoName("new/backend")}
    join_request = JoinRequest(**{**defaults, "relay_url": RELAY, "audience": AUDIENCE, **more})  # type: ignore[arg-type]
    return generate(join_request)[0].text


async def fill(page: Page, name: str, value: str) -> None:
    await page.locator(f"#wanted-{name}").fill(value)
    await page.locator(f"#wanted-{name}").press("Tab")


async def test_choices_update_the_files_at_once_and_stay_in_the_url(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, CRCR_PUBLIC_URL=RELAY) as site:
        page = site.page
        await page.goto(f"{site.url}{ONBOARDING}")
        await page.evaluate("window.notReloaded = true")
        await fill(page, "repository", "new/backend")
        await expect(page.locator("#allowlist-entry")).to_contain_text("new/backend")
        await fill(page, "job_name", "npu tests")
        await expect(workflow(page)).to_contain_text('CRCR_JOB_NAME: "npu tests"')
        await page.get_by_role("radio", name="Buildkite").check()
        await expect(workflow(page)).to_contain_text("bridge")
        await expect(page.locator("#step-registration")).to_be_visible()
        assert "ci=buildkite" in page.url
        assert "job_name=npu+tests" in page.url
        assert await page.evaluate("window.notReloaded")
        await page.go_back()
        await expect(page.get_by_role("radio", name="GitHub Actions")).to_be_checked()
        await expect(workflow(page)).to_contain_text("name: upstream")
        assert site.troubles == []


async def test_a_copy_button_copies_exactly_the_file(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, CRCR_PUBLIC_URL=RELAY) as site:
        page = site.page
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await page.goto(f"{site.url}{ONBOARDING}?repository=new/backend&level=L4&oncalls=ada")
        button = page.get_by_role("button", name="Copy .github/workflows/crcr.yml")
        await button.click()
        await expect(button).to_have_text("Copied")
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied == generated(level=Level.L4, oncalls=("ada",))
        assert site.troubles == []


async def test_without_a_clipboard_the_copy_button_selects_the_code(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, CRCR_PUBLIC_URL=RELAY) as site:
        page = site.page
        await page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        await page.goto(f"{site.url}{ONBOARDING}?repository=new/backend")
        await page.get_by_role("button", name="Copy allowlist").click()
        assert await page.evaluate("getSelection().toString().trim()") == "L2:\n  - new/backend"
        assert site.troubles == []


async def test_without_javascript_the_form_and_the_check_work(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, javascript=False, CRCR_PUBLIC_URL=RELAY) as site:
        page = site.page
        await page.goto(f"{site.url}{ONBOARDING}")
        assert not await page.locator("button[data-copy]").first.is_visible()
        await page.locator("#wanted-repository").fill("org/reporter")
        await page.locator("#wanted-command").fill("make test")
        await page.get_by_role("button", name="Show my set-up").click()
        await expect(workflow(page)).to_contain_text("make test")
        await expect(page.locator("#wanted-command")).to_have_value("make test")
        await page.get_by_role("button", name="Check now").click()
        await expect(page.locator("#notice")).to_contain_text("Asking GitHub")
        await expect(page.get_by_text("this list updates by itself")).to_be_hidden()
        await expect(page.locator("#step-check")).to_contain_text("Reload this page")
        await expect(page.locator("#wanted-command")).to_have_value("make test")


async def test_the_findings_of_a_check_appear_on_the_open_page(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, CRCR_PUBLIC_URL=RELAY) as site:
        page = await load_page(site.page, f"{site.url}{ONBOARDING}?repository=org/reporter")
        await page.get_by_role("button", name="Check now").click()
        await expect(page.locator("#step-check")).to_contain_text("is in progress")
        await expect(page.get_by_text("this list updates by itself")).to_be_visible()
        await expect(page.get_by_text("Reload this page")).to_be_hidden()
        await expect(page.locator("#live")).to_have_text("live")
        await page.evaluate("window.notReloaded = true")
        await site.relay.drain()
        await expect(page.get_by_role("button", name="Check again")).to_be_visible()
        await expect(page.locator("#findings [data-key=app]")).to_contain_text("The App is installed")
        await expect(page.locator("#step-app")).to_have_attribute("data-state", "ok")
        assert await page.evaluate("window.notReloaded")
        assert site.troubles == []


async def test_the_onboarding_form_works_by_keyboard(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, CRCR_PUBLIC_URL=RELAY) as site:
        page = site.page
        await page.goto(f"{site.url}{ONBOARDING}")
        await page.get_by_role("radio", name="GitHub Actions").focus()
        await page.keyboard.press("ArrowRight")
        await expect(page.get_by_role("radio", name="Buildkite")).to_be_checked()
        await expect(page.get_by_role("radio", name="Buildkite")).to_be_focused()
        await expect(workflow(page)).to_contain_text("bridge")
        await page.keyboard.press("Tab")
        await page.keyboard.type("new/backend")
        await page.keyboard.press("Enter")
        await expect(page.locator("#allowlist-entry")).to_contain_text("new/backend")
        await expect(page.locator("#wanted-repository")).to_be_focused()
        await page.locator("#file-1").focus()
        await page.keyboard.press("End")
        await expect(page.locator("#file-1")).to_be_focused()


@pytest.mark.parametrize("hostile", [*HOSTILE[:6], "${{ github.token }}"], ids=range(7))
async def test_hostile_input_is_escaped_and_the_other_fields_keep_their_values(
    tmp_path: Path, browser: Browser, hostile: str
) -> None:
    async with open_site(tmp_path, browser, CRCR_PUBLIC_URL=RELAY) as site:
        page = site.page
        await page.goto(f"{site.url}{ONBOARDING}?repository=new/backend")
        for name in ("runs_on", "branch"):
            await fill(page, name, hostile)
            await expect(page.locator(f"#why-{name}")).to_be_visible()
        assert await page.locator("#file-1").count() == 0
        assert await page.locator("main script, main img, main [onerror]").count() == 0
        await expect(page.locator("#wanted-repository")).to_have_value("new/backend")
        assert site.troubles == []


async def test_code_scrolls_in_its_own_frame(tmp_path: Path, browser: Browser) -> None:
    async with open_site(tmp_path, browser, CRCR_PUBLIC_URL=RELAY) as site:
        page = site.page
        await page.set_viewport_size({"width": 390, "height": 900})
        await page.goto(f"{site.url}{ONBOARDING}?repository=new/backend&ci=gitlab&nightly=1")
        is_overflowing = "each => each.scrollWidth > each.clientWidth"
        assert await workflow(page).evaluate(is_overflowing)
        assert not await page.locator("html").evaluate(is_overflowing)
        assert not await page.locator(".pages").evaluate(is_overflowing)
