"""Delay from an accepted callback to an open page in a real Chromium, which runs the page's own script.

The delay runs from the callback's 200 until a MutationObserver sees the new job in the page, on the same clock.
Callbacks are sent one at a time, at random moments, so that they are not in step with the page's timers.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from shutil import which

from playwright.async_api import Browser, Page, async_playwright

from bench.pages.reporter import Reporter
from bench.relay_process.load_client import connect, percentile
from bench.relay_process.relay_setup import RelaySetup, Row

BAR_MS = 300
_TIMES = 30
_PAUSE_S = (1.6, 2.6)
_PATIENCE_S = 10.0
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
)
_WATCH = """(words) => {
  const main = document.getElementById("main");
  window.seen = null;
  window.seenAt = new Promise((resolve) => {
    const look = () => {
      if (!main.textContent.includes(words)) return;
      observer.disconnect();
      resolve(performance.timeOrigin + performance.now());
    };
    const observer = new MutationObserver(look);
    observer.observe(main, { childList: true, subtree: true, characterData: true });
  });
}"""


def measure_live_update(setup: RelaySetup, reporter: Reporter) -> Iterator[Row]:
    delays = asyncio.run(_watch(setup, reporter, f"/crcr/pr/{reporter.number}"))
    p50, p95 = (percentile(delays, share) * 1000 for share in (0.5, 0.95))
    words = f"P50 {p50:.0f}, P95 {p95:.0f}, longest {max(delays) * 1000:.0f} ms"
    yield "callback accepted → visible on an open page", words, f"P95 < {BAR_MS} ms", p95 < BAR_MS


async def _watch(setup: RelaySetup, reporter: Reporter, path: str) -> list[float]:
    chromium = which("chromium-headless-shell") or which("chromium")
    if chromium is None:
        raise SystemExit("Chromium is missing: `make bench` installs it, or install chromium-headless-shell")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=list(_ARGUMENTS))
        try:
            await reporter.open_pull()
            page = await _open(browser, f"http://127.0.0.1:{setup.relay_port}{path}")
            return await _delays(setup, reporter, page)
        finally:
            await browser.close()


async def _open(browser: Browser, address: str) -> Page:
    page = await browser.new_page()
    await page.goto(address)
    await page.wait_for_selector("#live[data-state=on]")
    await asyncio.sleep(1.5)  # until the page has applied the earlier events
    return page


async def _delays(setup: RelaySetup, reporter: Reporter, page: Page) -> list[float]:
    pauses, delays = random.Random(1), []  # noqa: S311  pauses between callbacks
    connection = await connect(setup.relay_port)
    for _ in range(_TIMES):
        name, (opens, _) = reporter.next_job()
        await page.evaluate(_WATCH, name)
        status, answer = await connection.send(opens)
        accepted = time.time()
        if status != 200:
            raise SystemExit(f"a callback was answered {status}: {answer[:200]!r}")
        shown = await asyncio.wait_for(page.evaluate("() => window.seenAt"), _PATIENCE_S)
        delays.append(shown / 1000 - accepted)
        await asyncio.sleep(pauses.uniform(*_PAUSE_S))
    connection.close()
    return delays
