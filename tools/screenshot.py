"""Takes the README's pictures from a running demo: the relay's pages, light and dark, and a gate that blocks."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which

from playwright.async_api import Browser, async_playwright

PAGES = {"hud": "/crcr", "backend": "/crcr/accel-npu/tensorium-npu"}
BLOCKED = "/tensorium/tensorium/pull/2"
WARM_UP_S = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def demo(*options: str) -> AsyncIterator[tuple[str, str]]:
    """A demo while the body runs: the addresses of the relay and of the simulated GitHub."""
    port, github_port = free_port(), free_port()
    command = (sys.executable, "-m", "crcr", "demo", "--port", str(port), "--github-port", str(github_port))
    process = await asyncio.create_subprocess_exec(*command, *options, env=os.environ)
    try:
        await answered(github_port)
        yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{github_port}"
    finally:
        process.terminate()
        await process.wait()


async def answered(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.2)
            else:
                writer.close()
                return


async def photograph_relay(browser: Browser, url: str, folder: Path) -> None:
    for scheme in ("light", "dark"):
        context = await browser.new_context(
            color_scheme="dark" if scheme == "dark" else "light", viewport={"width": 1280, "height": 760}
        )
        page = await context.new_page()
        for name, path in PAGES.items():
            await page.goto(f"{url}{path}")
            await page.locator("#live", has_text="live").wait_for()
            await page.screenshot(path=folder / f"{name}-{scheme}.png")
        await context.close()


async def photograph_gate(browser: Browser, url: str, folder: Path) -> None:
    """The page reloads itself; the moment is when all of the backend has failed, and nobody has waived it yet."""
    page = await browser.new_page(viewport={"width": 1280, "height": 940})
    await page.goto(f"{url}{BLOCKED}")
    await page.get_by_text("novagpu/tensorium-nova failed (build, test-ops)").first.wait_for(timeout=60_000)
    await page.screenshot(path=folder / "demo-gate.png")
    await page.close()


async def main(folder: Path) -> None:
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = await playwright.chromium.launch(executable_path=which("chromium"), args=arguments)
        async with demo("--seed", "3") as (relay, github):
            await photograph_gate(browser, github, folder)
            await asyncio.sleep(WARM_UP_S)
            await photograph_relay(browser, relay, folder)
        await browser.close()


if __name__ == "__main__":
    pictures = Path(sys.argv[1])
    pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(pictures))
