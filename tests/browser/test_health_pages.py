"""Under an exhausted rate limit the pages show what is held back and until when; open pages update, also when it resets."""

from datetime import timedelta
from pathlib import Path

from playwright.async_api import Browser, expect

from browser.conftest import open_site
from crcr.show.live.shared_health import POLL_EVERY_S
from support.browser_pages import load_page
from support.github.gated_upstream import (
    BACKENDS,
    GATE,
    GATED,
    LABEL,
    WORKFLOW_WITH_GUID,
    finish_jobs,
    gate_state,
    newest_run,
    open_pull,
    start_jobs,
)
from support.running_relay import UPSTREAM

HELD = "held back by GitHub's rate limit until 01:01 UTC (requests per hour)"


async def test_open_pages_show_an_exhausted_rate_limit_until_it_resets(
    tmp_path: Path, browser: Browser
) -> None:
    async with open_site(tmp_path, browser, allowlist=GATED, downstreams=BACKENDS) as site:
        relay = site.relay
        for name in BACKENDS:
            relay.github.repository(name).workflows = [WORKFLOW_WITH_GUID]
        relay.github.require_checks(UPSTREAM, [GATE])
        pull = await open_pull(relay, title="Fuse the two kernels", labels=[LABEL])
        await start_jobs(relay, newest_run(relay))
        context = site.page.context
        await context.clock.set_fixed_time(relay.clock.now() + timedelta(minutes=7))
        pages = {path: await context.new_page() for path in ("/crcr", f"/crcr/pr/{pull.number}")}
        for path, page in pages.items():
            await load_page(page, f"{site.url}{path}")
            await expect(page.locator("#health section")).to_have_count(0)

        relay.github.spend_hour(UPSTREAM, leave=0)
        await finish_jobs(relay, newest_run(relay))
        relay.clock.advance(7 * 60)
        assert gate_state(relay, pull) == "pending"
        delay_text = f"1 gate is decided and not yet published on GitHub, since 00:00 UTC: {HELD}."
        for selector, red, page in (
            ("#attention", "relay red", pages["/crcr"]),
            ("#health", "relay: red", pages[f"/crcr/pr/{pull.number}"]),
        ):
            await expect(page.locator(selector)).to_contain_text(delay_text)
            await expect(page.locator(selector)).to_contain_text(red)
        gate = pages[f"/crcr/pr/{pull.number}"].locator(".gate")
        await expect(gate).to_contain_text("passed")
        await expect(gate.locator(".unpublished")).to_contain_text(
            f"Decided 7m ago, not yet published on GitHub: {HELD}."
        )
        effects = await context.new_page()
        await load_page(effects, f"{site.url}/crcr/deliveries?show=effects")
        await expect(effects.locator("#held")).to_contain_text(f"1 gate is {HELD}.")
        await expect(effects.locator(".log .why").first).to_contain_text("Held back by GitHub's rate limit")
        for name, page in (*pages.items(), ("effects", effects)):
            await page.screenshot(path=tmp_path / f"{name.strip('/').replace('/', '-')}.png")

        await relay.pass_time(54 * 60)
        assert gate_state(relay, pull) == "success"
        relay.clock.advance(POLL_EVERY_S)  # the health can be read before the gate is published
        for page in (*pages.values(), effects):
            await expect(page.locator("#health section")).to_have_count(0)
            assert await page.evaluate("window.notReloaded")
        await expect(pages["/crcr"].locator("#attention")).not_to_contain_text("1 gate is decided")
        await expect(pages["/crcr"].locator("#relay-health")).to_contain_text("relay green")
        await expect(gate.locator(".unpublished")).to_have_count(0)
        assert site.troubles == []
