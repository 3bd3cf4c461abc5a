"""Takes the pictures of README and docs from a running demo: the pages, light and dark, and a gate that blocks."""

import asyncio
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which

from playwright.async_api import Browser, async_playwright

BACKEND = "/crcr/accel-npu/tensorium-npu"
PAGES = {
    "hud": "/crcr",
    "pulls": "/crcr/pulls?state=all",
    "commits": "/crcr/commits",
    "backend": BACKEND,
    "job": BACKEND,
    "metrics": "/crcr/metrics?range=30d",
    "failing": "/crcr/failing",
    "compat": "/crcr/compat",
    "deliveries": "/crcr/deliveries",
    "onboarding": "/crcr/onboarding?repository=lumen-hpc/xpu-ops&command=./ci/test-xpu&nightly=1",
}
HELP = "/crcr/help"
"""A page without live parts."""
WARM_UP_S = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def demo(*options: str) -> AsyncIterator[tuple[str, str]]:
    """A demo while the body runs: the address of the relay, and of the pull request whose gate will block."""
    port, github_port = free_port(), free_port()
    command = (sys.executable, "-m", "crcr", "demo", "--port", str(port), "--github-port", str(github_port))
    process = await asyncio.create_subprocess_exec(
        *command, *options, env={**os.environ, "COLUMNS": "200"}, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(180):
            blocked = await said(process, rf"http://127\.0\.0\.1:{github_port}/\S+/pull/\d+(?= \(fails)")
        yield f"http://127.0.0.1:{port}", blocked
    finally:
        process.terminate()
        await process.communicate()


async def said(process: asyncio.subprocess.Process, wanted: str) -> str:
    while process.stdout is not None and (line := await process.stdout.readline()):
        if found := re.search(wanted, line.decode()):
            return found[0]
    raise RuntimeError("the demo ended before it had begun")


async def photograph_relay(browser: Browser, url: str, blocked: str, folder: Path) -> None:
    for scheme in ("light", "dark"):
        context = await browser.new_context(
            color_scheme="dark" if scheme == "dark" else "light", viewport={"width": 1280, "height": 800}
        )
        page = await context.new_page()
        for name, path in {**PAGES, "pull": blocked}.items():
            await page.goto(f"{url}{path}")
            await page.locator("#live", has_text="live").wait_for()
            if name == "job":
                await page.locator("td a[href*='job=']", has_text="X").first.click()
                await page.locator("aside").wait_for()
                await page.evaluate("document.querySelector('.matrix-frame').scrollIntoView()")
            if name == "onboarding":
                await page.get_by_role("button", name=re.compile("Check (now|again)")).click()
                await page.get_by_role("button", name="Check again").wait_for()
                await page.goto(f"{url}{path}")
            await page.screenshot(path=folder / f"{name}-{scheme}.png")
        await page.goto(f"{url}{HELP}")
        await page.screenshot(path=folder / f"help-{scheme}.png")
        await context.close()


async def photograph_gate(browser: Browser, address: str, folder: Path) -> None:
    """The page reloads itself; the moment is when the backend has failed, and nobody has waived it yet."""
    page = await browser.new_page(viewport={"width": 1280, "height": 940})
    await page.goto(address)
    await page.get_by_text("novagpu/tensorium-nova failed (test-ops)").first.wait_for(timeout=60_000)
    await page.screenshot(path=folder / "demo-gate.png")
    await page.close()


async def main(folder: Path) -> None:
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = await playwright.chromium.launch(
            executable_path=which("chromium-headless-shell"), args=arguments
        )
        async with demo("--seed", "3", "--history", "30d") as (relay, blocked):
            await photograph_gate(browser, blocked, folder)
            await asyncio.sleep(WARM_UP_S)
            await photograph_relay(browser, relay, f"/crcr/pr/{blocked.rpartition('/')[2]}", folder)
        await browser.close()


if __name__ == "__main__":
    pictures = Path(sys.argv[1])
    pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(pictures))
