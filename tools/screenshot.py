"""Takes the README's pictures: runs the demo for a while and photographs its pages, light and dark."""

import asyncio
import os
import socket
import sys
from pathlib import Path
from shutil import which

from playwright.async_api import async_playwright

PAGES = {"hud": "/crcr", "backend": "/crcr/accel-npu/tensorium-npu"}
WARM_UP_S = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def photograph(port: int, folder: Path) -> None:
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = await playwright.chromium.launch(executable_path=which("chromium"), args=arguments)
        for scheme in ("light", "dark"):
            context = await browser.new_context(
                color_scheme="dark" if scheme == "dark" else "light", viewport={"width": 1280, "height": 760}
            )
            page = await context.new_page()
            for name, path in PAGES.items():
                await page.goto(f"http://127.0.0.1:{port}{path}")
                await page.locator("#live", has_text="live").wait_for()
                await page.screenshot(path=folder / f"{name}-{scheme}.png")
            await context.close()
        await browser.close()


async def main(folder: Path) -> None:
    port = free_port()
    command = (sys.executable, "-m", "crcr", "demo", "--seed", "3", "--speed", "3", "--port", str(port))
    demo = await asyncio.create_subprocess_exec(*command, env=os.environ)
    try:
        await asyncio.sleep(WARM_UP_S)
        await photograph(port, folder)
    finally:
        demo.terminate()
        await demo.wait()


if __name__ == "__main__":
    pictures = Path(sys.argv[1])
    pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(pictures))
